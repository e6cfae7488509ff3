/* Spellings and classes of operations, streams and roles. */
#include "program/program.h"

#include <string.h>

static const struct {
    const char *text;
    enum dtp_op_class class;
} kinds[DTP_OP_KIND_COUNT] = {
#define X(suffix, spelling, class, words) {spelling, DTP_CLASS_##class},
#include "program/op_table.def"
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
    return kinds[kind].text;
}

bool dtp_op_kind_parse(const char *text, enum dtp_op_kind *out)
{
    for (int i = 0; i < DTP_OP_KIND_COUNT; i++)
        if (!strcmp(text, kinds[i].text)) {
            *out = (enum dtp_op_kind)i;
            return true;
        }
    return false;
}

enum dtp_op_class dtp_op_kind_class(enum dtp_op_kind kind)
{
    return kinds[kind].class;
}

enum dtp_collective dtp_op_kind_collective(enum dtp_op_kind kind)
{
    /* Both tables list the collectives in one order. */
    _Static_assert(DTP_OP_ALL_TO_ALL - DTP_OP_ALL_GATHER == (int)DTP_ALL_TO_ALL - (int)DTP_ALL_GATHER, "order");
    return (enum dtp_collective)((int)kind - (int)DTP_OP_ALL_GATHER);
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
