/* Spellings of the shared words. */
#include "base/words.h"

#include <string.h>

static const char *const kinds[DTP_OP_KIND_COUNT] = {
#define X(suffix, spelling, class, words) spelling,
#include "base/op_table.def"
#undef X
};

static const char *const streams[DTP_STREAM_COUNT] = {
#define DTP_STREAM_TEXT(suffix, text) text,
    DTP_STREAM_TABLE(DTP_STREAM_TEXT)
#undef DTP_STREAM_TEXT
};

static const char *const roles[DTP_ROLE_COUNT] = {
#define DTP_ROLE_TEXT(suffix, text) text,
    DTP_ROLE_TABLE(DTP_ROLE_TEXT)
#undef DTP_ROLE_TEXT
};

const char *dtp_op_kind_text(enum dtp_op_kind kind)
{
    return kinds[kind];
}

bool dtp_op_kind_parse(const char *text, enum dtp_op_kind *out)
{
    for (int i = 0; i < DTP_OP_KIND_COUNT; i++)
        if (!strcmp(text, kinds[i])) {
            *out = (enum dtp_op_kind)i;
            return true;
        }
    return false;
}

enum dtp_collective dtp_op_kind_collective(enum dtp_op_kind kind)
{
    /* Both tables list the collectives in one order. */
    _Static_assert(DTP_OP_ALL_TO_ALL - DTP_OP_ALL_GATHER == (int)DTP_ALL_TO_ALL - (int)DTP_ALL_GATHER, "order");
    _Static_assert(DTP_OP_SEND - DTP_OP_ALL_GATHER == (int)DTP_SEND_RECV - (int)DTP_ALL_GATHER, "order");
    return kind == DTP_OP_RECV || kind == DTP_OP_SHIFT ? DTP_SEND_RECV
                                                       : (enum dtp_collective)((int)kind - (int)DTP_OP_ALL_GATHER);
}

const char *dtp_stream_text(enum dtp_stream stream)
{
    return streams[stream];
}

bool dtp_stream_parse(const char *text, enum dtp_stream *out)
{
    for (int i = 0; i < DTP_STREAM_COUNT; i++)
        if (!strcmp(text, streams[i])) {
            *out = (enum dtp_stream)i;
            return true;
        }
    return false;
}

static const char *const forms[DTP_FORM_COUNT] = {
#define DTP_FORM_TEXT(suffix, text) text,
    DTP_FORM_TABLE(DTP_FORM_TEXT)
#undef DTP_FORM_TEXT
};

const char *dtp_form_text(enum dtp_form form)
{
    return forms[form];
}

bool dtp_form_parse(const char *text, enum dtp_form *out)
{
    for (int i = 1; i < DTP_FORM_COUNT; i++)
        if (!strcmp(text, forms[i])) {
            *out = (enum dtp_form)i;
            return true;
        }
    return false;
}

const char *dtp_role_text(enum dtp_role role)
{
    return roles[role];
}

bool dtp_role_parse(const char *text, enum dtp_role *out)
{
    for (int i = 0; i < DTP_ROLE_COUNT; i++)
        if (!strcmp(text, roles[i])) {
            *out = (enum dtp_role)i;
            return true;
        }
    return false;
}

static const char *const contents[] = {
#define DTP_CONTENT_NAME(suffix, text) text,
    DTP_CONTENT_TABLE(DTP_CONTENT_NAME)
#undef DTP_CONTENT_NAME
};

const char *dtp_content_text(enum dtp_content content)
{
    return (unsigned)content < DTP_CONTENT_COUNT ? contents[content] : "?";
}

bool dtp_content_parse(const char *text, enum dtp_content *out)
{
    for (int i = DTP_CONTENT_NONE + 1; i < DTP_CONTENT_COUNT; i++)
        if (!strcmp(text, contents[i])) {
            *out = (enum dtp_content)i;
            return true;
        }
    return false;
}

const char *dtp_owner_key(enum dtp_owner owner)
{
    static const char *const keys[] = {
#define DTP_OWNER_KEY(suffix, key, words) key,
        DTP_OWNER_TABLE(DTP_OWNER_KEY)
#undef DTP_OWNER_KEY
    };
    return (unsigned)owner < DTP_OWNER_COUNT ? keys[owner] : "?";
}

const char *dtp_owner_words(enum dtp_owner owner)
{
    static const char *const words_of[] = {
#define DTP_OWNER_WORDS(suffix, key, words) words,
        DTP_OWNER_TABLE(DTP_OWNER_WORDS)
#undef DTP_OWNER_WORDS
    };
    return (unsigned)owner < DTP_OWNER_COUNT ? words_of[owner] : "?";
}

const char *dtp_phase_key(enum dtp_phase phase)
{
    static const char *const keys[] = {
#define DTP_PHASE_KEY(suffix, key, words) key,
        DTP_PHASE_TABLE(DTP_PHASE_KEY)
#undef DTP_PHASE_KEY
    };
    return (unsigned)phase < DTP_PHASE_COUNT ? keys[phase] : "?";
}

const char *dtp_phase_words(enum dtp_phase phase)
{
    static const char *const words_of[] = {
#define DTP_PHASE_WORDS(suffix, key, words) words,
        DTP_PHASE_TABLE(DTP_PHASE_WORDS)
#undef DTP_PHASE_WORDS
    };
    return (unsigned)phase < DTP_PHASE_COUNT ? words_of[phase] : "?";
}

const char *dtp_collective_text(enum dtp_collective collective)
{
    static const char *const texts[] = {
#define DTP_COLLECTIVE_NAME(suffix, text) text,
        DTP_COLLECTIVE_TABLE(DTP_COLLECTIVE_NAME)
#undef DTP_COLLECTIVE_NAME
    };
    return (unsigned)collective < DTP_COLLECTIVE_COUNT ? texts[collective] : "?";
}
