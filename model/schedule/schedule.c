#include "schedule/schedule.h"

#include "base/nearest.h"
#include "base/word_table.h"
#include "schedule/schedule_lists.h"

#include <stdlib.h>
#include <string.h>

static const struct dtp_schedule_row rows[DTP_SCHEDULE_COUNT] = {
#define DTP_SENDS_BLOCKING true
#define DTP_SENDS_RENDEZVOUS false
#define DTP_SCHEDULE(suffix, generator, word, chunks, placement, backward, copies, sends, rule, bubble, words, source) \
    [DTP_SCHEDULE_##suffix] = {                                                                                        \
        word,  chunks, DTP_CHUNKS_##placement, DTP_BACKWARD_##backward, copies, DTP_SENDS_##sends, rule, bubble,       \
        words, source},
#include "schedule/schedule.def"
};

static void (*const generators[DTP_SCHEDULE_COUNT])(struct dtp_pass_list *list) = {
#define DTP_SCHEDULE(suffix, generator, ...) [DTP_SCHEDULE_##suffix] = dtp_list_##generator,
#include "schedule/schedule.def"
};

const struct dtp_schedule_row *dtp_schedule_row(enum dtp_schedule_kind kind)
{
    return &rows[kind];
}

bool dtp_schedule_turns_round(enum dtp_schedule_kind kind)
{
    return kind == DTP_SCHEDULE_LOOPED_BFS;
}

bool dtp_schedule_parse(const char *word, enum dtp_schedule_kind *out)
{
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++)
        if (dtp_names_equal(word, rows[i].word)) {
            *out = (enum dtp_schedule_kind)i;
            return true;
        }
    return false;
}

DTP_WORDS_OF_TABLE(dtp_pass_text, dtp_pass_kind, DTP_PASS_TABLE, DTP_ROW_WORD)

/* ---- where chunks lie -------------------------------------------------------------------------------------------- */

uint32_t dtp_schedule_stage(const struct dtp_schedule *schedule, uint32_t rank, uint32_t chunk)
{
    uint32_t ranks = schedule->shape.ranks;
    switch (rows[schedule->shape.kind].placement) {
    case DTP_CHUNKS_LOOP: return chunk * ranks + rank;
    case DTP_CHUNKS_VEE: return chunk ? 2 * ranks - 1 - rank : rank;
    case DTP_CHUNKS_TWO_WAY: return chunk ? ranks - 1 - rank : rank;
    }
    return 0;
}

struct dtp_stage_place dtp_schedule_place(const struct dtp_schedule *schedule, uint32_t line, uint32_t stage)
{
    uint32_t ranks = schedule->shape.ranks, chunk = stage / ranks, rank = stage % ranks;
    switch (rows[schedule->shape.kind].placement) {
    case DTP_CHUNKS_LOOP: break;
    case DTP_CHUNKS_VEE: return (struct dtp_stage_place){chunk ? ranks - 1 - rank : rank, chunk};
    case DTP_CHUNKS_TWO_WAY: return (struct dtp_stage_place){line ? ranks - 1 - rank : rank, line};
    }
    return (struct dtp_stage_place){rank, chunk};
}

uint32_t dtp_schedule_lines(const struct dtp_schedule *schedule)
{
    return rows[schedule->shape.kind].placement == DTP_CHUNKS_TWO_WAY ? 2 : 1;
}

uint32_t dtp_schedule_line_of_chunk(const struct dtp_schedule *schedule, uint32_t chunk)
{
    return dtp_schedule_lines(schedule) == 2 ? chunk : 0;
}

uint32_t dtp_schedule_line(const struct dtp_schedule *schedule, uint32_t micro_batch)
{
    return dtp_schedule_lines(schedule) == 2 && micro_batch >= schedule->shape.micro_batches / 2;
}

size_t dtp_schedule_pass_count(const struct dtp_schedule *schedule)
{
    return schedule->first[schedule->shape.ranks];
}

static void join_first_stage(struct dtp_schedule *schedule)
{
    uint32_t kept = 0;
    for (uint32_t rank = 0; rank < schedule->shape.ranks; rank++) {
        uint32_t i = schedule->first[rank], end = schedule->first[rank + 1];
        schedule->first[rank] = kept;
        for (; i < end; i++) {
            struct dtp_pass pass = schedule->passes[i];
            bool first = dtp_schedule_stage(schedule, rank, pass.chunk) == 0;
            if (first && pass.kind == DTP_PASS_WEIGHT)
                pass.kind = DTP_PASS_WHOLE_BACKWARD;
            if (!first || pass.kind != DTP_PASS_BACKWARD)
                schedule->passes[kept++] = pass;
        }
    }
    schedule->first[schedule->shape.ranks] = kept;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

uint32_t dtp_schedule_limit(const struct dtp_schedule_shape *shape)
{
    return shape->kind == DTP_SCHEDULE_ZB_1P ? shape->ranks : shape->kind == DTP_SCHEDULE_ZB_2P ? 2 * shape->ranks : 0;
}

enum dtp_status dtp_schedule_create(const struct dtp_schedule_shape *shape, struct dtp_schedule *out,
                                    struct dtp_faults *faults)
{
    *out = (struct dtp_schedule){.shape = *shape};
    enum dtp_status status = dtp_schedule_resolve(&out->shape, faults);
    if (status != DTP_OK) {
        *out = (struct dtp_schedule){0};
        return status;
    }
    const struct dtp_schedule_shape *s = &out->shape;
    uint32_t lines = dtp_schedule_lines(out);
    size_t most_of_rank = (size_t)3 * s->micro_batches * s->chunks / lines;
    out->stages = s->ranks * s->chunks / lines;
    out->first = malloc((s->ranks + 1) * sizeof *out->first);
    out->passes = malloc(s->ranks * most_of_rank * sizeof *out->passes);
    bool searched = dtp_schedule_limit(s) > 0;
    uint8_t *found = searched ? dtp_search_passes(s) : NULL;
    if (!out->first || !out->passes || (searched && !found)) {
        free(found);
        dtp_schedule_destroy(out);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    out->first[0] = 0;
    for (uint32_t rank = 0; rank < s->ranks; rank++) {
        struct dtp_pass_list list = {
            .shape = s, .rank = rank, .found = found, .passes = out->passes + out->first[rank]};
        generators[s->kind](&list);
        out->first[rank + 1] = out->first[rank] + (uint32_t)list.count;
    }
    free(found);
    if (s->whole_first_stage)
        join_first_stage(out);
    return DTP_OK;
}

void dtp_schedule_destroy(struct dtp_schedule *schedule)
{
    free(schedule->first);
    free(schedule->passes);
    *schedule = (struct dtp_schedule){0};
}
