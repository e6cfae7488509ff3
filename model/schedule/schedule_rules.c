/* Which combinations a schedule knows. Each rule says what is nearest of what it would take. */
#include "schedule/schedule.h"

#include "base/append.h"

#include <inttypes.h>
#include <stdio.h>

#define MAX_RANKS 65536u
#define MAX_CHUNKS 4096u
#define MAX_MICRO_BATCHES 16777216u
#define MAX_PASSES 100000000u /* 1.6 GB of lists */

static enum dtp_status refuse(struct dtp_faults *faults, const char *key, const char *text)
{
    return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, key, "%s", text);
}

/* Counts that no schedule can have. */
static enum dtp_status check_counts(const struct dtp_schedule_shape *s, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    char text[160];
    if (s->ranks < 1 || s->ranks > MAX_RANKS) {
        snprintf(text, sizeof text, "a pipeline has 1 to %u ranks, not %" PRIu32, MAX_RANKS, s->ranks);
        status = refuse(faults, "stages", text);
    }
    if (s->micro_batches < 1 || s->micro_batches > MAX_MICRO_BATCHES) {
        snprintf(text, sizeof text, "a step has 1 to %u micro-batches, not %" PRIu32, MAX_MICRO_BATCHES,
                 s->micro_batches);
        status = refuse(faults, "micro_batches", text);
    }
    if (s->chunks > MAX_CHUNKS) {
        snprintf(text, sizeof text, "a rank holds at most %u chunks, not %" PRIu32, MAX_CHUNKS, s->chunks);
        status = refuse(faults, "virtual_stages", text);
    }
    return status;
}

/* Any number of chunks, which micro-batches go through in groups. */
static bool loops(enum dtp_schedule_kind kind)
{
    return kind == DTP_SCHEDULE_INTERLEAVED || kind == DTP_SCHEDULE_ZB_INTERLEAVED;
}

/* What is asked of chunks and group against what the kind has. */
static enum dtp_status check_chunks(struct dtp_schedule_shape *s, struct dtp_faults *faults)
{
    const struct dtp_schedule_row *row = dtp_schedule_row(s->kind);
    enum dtp_status status = DTP_OK;
    char text[200];
    if (row->chunks == 0) {
        s->chunks = s->chunks ? s->chunks : 2;
        snprintf(text, sizeof text, "%s takes 2 chunks of a rank or more; with one it is schedule %s", row->word,
                 s->kind == DTP_SCHEDULE_LOOPED_BFS    ? "gpipe"
                 : row->backward == DTP_BACKWARD_WHOLE ? "1f1b"
                                                       : "zb-h1");
        if (s->chunks == 1)
            return refuse(faults, "virtual_stages", text);
        snprintf(text, sizeof text, "%s takes 2 ranks or more; one rank has nothing to interleave", row->word);
        if (s->ranks == 1)
            return refuse(faults, "stages", text);
    } else if (s->chunks && s->chunks != row->chunks) {
        snprintf(text, sizeof text, "%s has %" PRIu32 " chunk%s a rank, not %" PRIu32 "; interleaved takes any number",
                 row->word, row->chunks, dtp_plural(row->chunks), s->chunks);
        status = refuse(faults, "virtual_stages", text);
    }
    if (s->group && !loops(s->kind)) {
        snprintf(text, sizeof text, "%s has no groups of micro-batches; interleaved has", row->word);
        status = refuse(faults, "group", text);
    }
    s->chunks = row->chunks ? row->chunks : s->chunks;
    return status;
}

static uint32_t rounds_of(uint32_t micro_batches, uint32_t ranks)
{
    return micro_batches < ranks ? 1 : micro_batches / ranks;
}

uint32_t dtp_schedule_group(const struct dtp_schedule_shape *s)
{
    if (s->group)
        return s->group;
    return s->equal_rounds && loops(s->kind) ? s->micro_batches / rounds_of(s->micro_batches, s->ranks) : s->ranks;
}

/* torch.distributed.pipelining (schedules.py, ScheduleInterleaved1F1B): number_of_rounds divides the micro-batches, and
 * nothing else sets a round's. */
static enum dtp_status set_round(struct dtp_schedule_shape *s, struct dtp_faults *faults)
{
    char text[256];
    uint32_t m = s->micro_batches, rounds = rounds_of(m, s->ranks), below = m, above = m, asked = s->group;
    s->group = m / rounds;
    if (m % rounds == 0 && (asked == 0 || asked == s->group))
        return DTP_OK;
    if (m % rounds == 0) {
        snprintf(text, sizeof text,
                 "%s goes in %" PRIu32 " round%s, as many as %" PRIu32 " ranks fit into %" PRIu32
                 " micro-batches: a group is of %" PRIu32 ", not %" PRIu32,
                 dtp_schedule_row(s->kind)->word, rounds, dtp_plural(rounds), s->ranks, m, s->group, asked);
        return refuse(faults, "group", text);
    }
    while (below % rounds_of(below, s->ranks))
        below--;
    while (above % rounds_of(above, s->ranks))
        above++;
    snprintf(text, sizeof text,
             "%s goes in as many rounds as %" PRIu32 " ranks fit into %" PRIu32 " micro-batches, %" PRIu32
             ", which must divide them; the nearest are %" PRIu32 " and %" PRIu32,
             dtp_schedule_row(s->kind)->word, s->ranks, m, rounds, below, above);
    return refuse(faults, "micro_batches", text);
}

/* Megatron-LM (schedules.py): a group has at least as many micro-batches as there are ranks, and so has the last one.
 */
static enum dtp_status check_group(struct dtp_schedule_shape *s, struct dtp_faults *faults)
{
    const char *word = dtp_schedule_row(s->kind)->word;
    char text[256];
    if (s->equal_rounds)
        return set_round(s, faults);
    uint32_t p = s->ranks, m = s->micro_batches, group = dtp_schedule_group(s);
    s->group = group;
    if (group < p || group > m) {
        if (m < p)
            snprintf(text, sizeof text,
                     "%s takes at least as many micro-batches as ranks, %" PRIu32 "; %" PRIu32 " are too few", word, p,
                     m);
        else
            snprintf(text, sizeof text,
                     "a group has from %" PRIu32 " (the ranks) to %" PRIu32 " micro-batches (those of a step), not "
                     "%" PRIu32,
                     p, m, group);
        return refuse(faults, m < p ? "micro_batches" : "group", text);
    }
    uint32_t rest = m % group;
    if (rest == 0 || rest >= p)
        return DTP_OK;
    snprintf(text, sizeof text,
             "%s leaves %" PRIu32 " of %" PRIu32 " micro-batches to the last group of %" PRIu32
             ", which takes at least %" PRIu32 " (the ranks); the nearest are %" PRIu32 " and %" PRIu32,
             word, rest, m, group, p, m - rest, m - rest + p);
    return refuse(faults, "micro_batches", text);
}

/* deepseek-ai/DualPipe: both phases must be full before the first pair. */
static enum dtp_status check_dual(const struct dtp_schedule_shape *s, struct dtp_faults *faults)
{
    const char *word = dtp_schedule_row(s->kind)->word;
    enum dtp_status status = DTP_OK;
    char text[200];
    bool both_ways = s->kind == DTP_SCHEDULE_DUALPIPE;
    if (both_ways && s->ranks % 2) {
        snprintf(text, sizeof text,
                 "%s goes both ways and takes an even number of ranks; the nearest to %" PRIu32 " is %" PRIu32
                 ", or schedule dualpipev",
                 word, s->ranks, s->ranks + 1);
        status = refuse(faults, "stages", text);
    }
    if (s->micro_batches < 2 * (uint64_t)s->ranks) {
        snprintf(text, sizeof text, "%s takes two micro-batches for each rank or more: %" PRIu64 ", not %" PRIu32, word,
                 2 * (uint64_t)(s->ranks + (both_ways && s->ranks % 2)), s->micro_batches);
        status = refuse(faults, "micro_batches", text);
    } else if (both_ways && s->micro_batches % 2) {
        snprintf(text, sizeof text,
                 "%s sends half of the micro-batches each way; the nearest even number to %" PRIu32 " is %" PRIu32,
                 word, s->micro_batches, s->micro_batches + 1);
        status = refuse(faults, "micro_batches", text);
    }
    return status;
}

enum dtp_status dtp_schedule_resolve(struct dtp_schedule_shape *shape, struct dtp_faults *faults)
{
    enum dtp_status status = check_counts(shape, faults);
    if (status == DTP_OK)
        status = check_chunks(shape, faults);
    if (status == DTP_OK && loops(shape->kind))
        status = check_group(shape, faults);
    if (status == DTP_OK && (shape->kind == DTP_SCHEDULE_DUALPIPE || shape->kind == DTP_SCHEDULE_DUALPIPEV))
        status = check_dual(shape, faults);
    if (status != DTP_OK)
        return status;
    uint64_t passes = (uint64_t)3 * shape->ranks * shape->micro_batches * shape->chunks;
    if (passes > MAX_PASSES) {
        char text[160];
        snprintf(text, sizeof text,
                 "up to %" PRIu64 " passes of all ranks are more than the %u that are listed; take fewer micro-batches",
                 passes, MAX_PASSES);
        status = refuse(faults, "micro_batches", text);
    }
    return status;
}
