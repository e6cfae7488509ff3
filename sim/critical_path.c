#include "sim/critical_path.h"

#include "sim/op_time.h"

#include <string.h>

struct walk {
    const struct dtp_op *ops;
    struct dtp_path_row *rows;
    uint16_t last_micro_step[DTP_PATH_MAX_ROWS];
    size_t count;
};

static struct dtp_path_row *row_of(struct walk *w, const char *phase, const struct dtp_op *op)
{
    bool of_layers = op->layer != DTP_NO_LAYER;
    size_t i = 0;
    while (i < w->count && !(strcmp(w->rows[i].phase, phase) == 0 && w->rows[i].of_layers == of_layers))
        i++;
    if (i == DTP_PATH_MAX_ROWS)
        i--;
    struct dtp_path_row *row = &w->rows[i];
    if (i == w->count) {
        *row = (struct dtp_path_row){.phase = phase, .of_layers = of_layers, .first_layer = op->layer};
        w->count++;
    }
    if (row->op_count == 0 || w->last_micro_step[i] != op->micro_step)
        row->micro_steps++;
    w->last_micro_step[i] = op->micro_step;
    row->last_layer = op->layer;
    row->op_count++;
    return row;
}

static void add_time(const struct dtp_op *op, double seconds, struct dtp_path_row *row)
{
    enum dtp_op_class class = dtp_op_kind_class(op->kind);
    if (class == DTP_CLASS_COLLECTIVE)
        row->collectives_s += seconds;
    else if (dtp_op_is_kernel(op))
        row->kernels_s += seconds;
    else if (class == DTP_CLASS_NONE)
        row->host_s += seconds;
    else
        row->copies_s += seconds;
    row->seconds += seconds;
}

size_t dtp_critical_path(const struct dtp_program *program, const struct dtp_timeline *timeline,
                         struct dtp_path_row rows[DTP_PATH_MAX_ROWS])
{
    struct walk walk = {.ops = dtp_program_ops(program), .rows = rows};
    const char *phase = "start";
    double now_s = 0;
    uint32_t marked = 0;
    for (size_t i = 0; i < timeline->critical_count; i++) {
        uint32_t at = timeline->critical[i];
        const struct dtp_span *span = &timeline->span[at];
        for (; marked <= at; marked++)
            if (walk.ops[marked].kind == DTP_OP_MARK)
                phase = walk.ops[marked].name;
        if (span->end_s <= now_s) /* an event that held nothing up */
            continue;
        struct dtp_path_row *row = row_of(&walk, phase, &walk.ops[at]);
        double start_s = span->start_s > now_s ? span->start_s : now_s;
        row->host_s += start_s - now_s;
        row->seconds += start_s - now_s;
        add_time(&walk.ops[at], span->end_s - start_s, row);
        now_s = span->end_s;
    }
    return walk.count;
}
