/* Spellings of the shared words. */
#include "base/execution.h"

#include "base/word_table.h"

static const char *const kinds[DTP_OP_KIND_COUNT] = {
#define X(suffix, spelling, class, words) spelling,
#include "base/op_table.def"
#undef X
};
DTP_TEXT_AND_PARSE_OF_ARRAY(op_kind, kinds, 0)
DTP_TEXT_AND_PARSE(stream, DTP_STREAM_TABLE, 0)
DTP_TEXT_AND_PARSE(form, DTP_FORM_TABLE, DTP_FORM_NONE + 1)
DTP_TEXT_AND_PARSE(issue, DTP_ISSUE_TABLE, DTP_ISSUE_APART + 1)
DTP_TEXT_AND_PARSE(role, DTP_ROLE_TABLE, 0)
DTP_TEXT_AND_PARSE(content, DTP_CONTENT_TABLE, DTP_CONTENT_NONE + 1)
DTP_WORDS_OF_TABLE(dtp_owner_key, dtp_owner, DTP_OWNER_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_owner_words, dtp_owner, DTP_OWNER_TABLE, DTP_ROW_SECOND)
DTP_WORDS_OF_TABLE(dtp_phase_key, dtp_phase, DTP_PHASE_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_phase_words, dtp_phase, DTP_PHASE_TABLE, DTP_ROW_SECOND)
DTP_WORDS_OF_TABLE(dtp_collective_text, dtp_collective, DTP_COLLECTIVE_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_issuer_text, dtp_issuer, DTP_ISSUER_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_allocator_text, dtp_allocator, DTP_ALLOCATOR_TABLE, DTP_ROW_WORD)

enum dtp_collective dtp_op_kind_collective(enum dtp_op_kind kind)
{
    /* Both tables list the collectives in one order. */
    _Static_assert(DTP_OP_ALL_TO_ALL - DTP_OP_ALL_GATHER == (int)DTP_ALL_TO_ALL - (int)DTP_ALL_GATHER, "order");
    _Static_assert(DTP_OP_SEND - DTP_OP_ALL_GATHER == (int)DTP_SEND_RECV - (int)DTP_ALL_GATHER, "order");
    return kind == DTP_OP_RECV || kind == DTP_OP_SHIFT ? DTP_SEND_RECV
                                                       : (enum dtp_collective)((int)kind - (int)DTP_OP_ALL_GATHER);
}
