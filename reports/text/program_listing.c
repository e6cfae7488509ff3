/* The step program for people and programs: what is issued when, and what each operation would take alone. */
#include "record/simulation_report.h"

#include "page/json_value.h"

#include <stdlib.h>
#include <string.h>

#define NAME_COLUMNS 40
#define NARROWEST_NAME 16
#define BESIDE_NAME_COLUMNS 58 /* index, stream, time and demand */

/* What the host issues for one layer, or between layers: the compute stream decides, what is prefetched for the next
 * layer meanwhile belongs to the one it hides behind. */
struct section {
    uint32_t first, count;
    uint16_t layer, micro_step;
    const char *phase;
    uint64_t hash; /* equal where the operations are, whatever the layer and micro-step */
    double alone_s;
};

struct listing {
    const struct dtp_simulated *simulated;
    const struct dtp_op *ops;
    const struct dtp_page *page;
    struct section *sections;
    size_t count;
};

/* ---- sections ---------------------------------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ byte[i]) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t mix_op(uint64_t hash, const struct dtp_op *op, uint16_t layer)
{
    uint32_t relative = op->layer == DTP_NO_LAYER ? DTP_NO_INDEX : (uint32_t)(op->layer - layer);
    const uint32_t whole[] = {op->kind,          op->stream,           relative,
                              op->operand_count, op->dependency_count, op->demand->kernels};
    const double real[] = {op->demand->flops, op->demand->bytes, op->demand->sent_bytes};
    hash = mix(hash, whole, sizeof whole);
    hash = mix(hash, real, sizeof real);
    return mix(hash, op->name, strlen(op->name) + 1);
}

static bool begins_section(const struct section *section, const struct dtp_op *op)
{
    if (!section || op->kind == DTP_OP_MARK || op->micro_step != section->micro_step)
        return true;
    return op->stream == DTP_STREAM_COMPUTE && op->layer != section->layer;
}

static bool find_sections(struct listing *l)
{
    size_t ops = l->simulated->timeline.op_count;
    const char *phase = "";
    struct section *now = NULL;
    l->sections = calloc(ops + 1, sizeof *l->sections);
    if (!l->sections)
        return false;
    for (uint32_t i = 0; i < ops; i++) {
        const struct dtp_op *op = &l->ops[i];
        if (op->kind == DTP_OP_MARK)
            phase = op->name;
        if (begins_section(now, op)) {
            now = &l->sections[l->count++];
            *now = (struct section){.first = i,
                                    .layer = op->layer,
                                    .micro_step = op->micro_step,
                                    .phase = phase,
                                    .hash = UINT64_C(14695981039346656037)};
        }
        now->count++;
        now->alone_s += l->simulated->alone_s[i];
        now->hash = mix_op(now->hash, op, now->layer);
    }
    return true;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void say_demand(const struct dtp_op *op, const struct dtp_page *page, char *out, size_t bytes)
{
    const struct dtp_demand *d = op->demand;
    char number[32];
    out[0] = '\0';
    switch (dtp_op_kind_class(op->kind)) {
    case DTP_CLASS_MATMUL:
        snprintf(out, bytes, "%s GFLOP, %.0f%s%.0f%s%.0f", dtp_page_figure(d->flops / 1e9, number, sizeof number), d->m,
                 dtp_page_times(page), d->n, dtp_page_times(page), d->k);
        break;
    case DTP_CLASS_ATTENTION:
        snprintf(out, bytes, "%s GFLOP", dtp_page_figure(d->flops / 1e9, number, sizeof number));
        break;
    case DTP_CLASS_COLLECTIVE:
    case DTP_CLASS_UPLOAD:
    case DTP_CLASS_DOWNLOAD:
        snprintf(out, bytes, "%s MB sent", dtp_page_figure(d->sent_bytes / 1e6, number, sizeof number));
        break;
    case DTP_CLASS_MEMORY:
    case DTP_CLASS_HOST:
    case DTP_CLASS_STORAGE:
        snprintf(out, bytes, "%s MB moved", dtp_page_figure(d->bytes / 1e6, number, sizeof number));
        break;
    case DTP_CLASS_NONE: break;
    }
}

static void print_op(const struct listing *l, uint32_t index, uint16_t section_layer)
{
    const struct dtp_op *op = &l->ops[index];
    struct dtp_op named = *op;
    char words[160], demand[96], line[400];
    if (op->kind == DTP_OP_MARK || op->kind == DTP_OP_ALLOC || op->kind == DTP_OP_FREE)
        return;
    if (named.layer == section_layer)
        named.layer = DTP_NO_LAYER; /* said above */
    dtp_op_words(&named, words, sizeof words);
    say_demand(op, l->page, demand, sizeof demand);
    int room = dtp_page_columns(l->page) - BESIDE_NAME_COLUMNS;
    int name = room > NAME_COLUMNS ? NAME_COLUMNS : room < NARROWEST_NAME ? NARROWEST_NAME : room;
    int used = snprintf(line, sizeof line, "%5u %-9s %-*s", (unsigned)index, dtp_stream_text(op->stream), name, words);
    if (dtp_op_kind_class(op->kind) != DTP_CLASS_NONE)
        snprintf(line + used, sizeof line - (size_t)used, " %9.1f us  %s", l->simulated->alone_s[index] * 1e6, demand);
    size_t length = strlen(line);
    while (length && line[length - 1] == ' ')
        line[--length] = '\0';
    fprintf(l->page->file, "%s\n", line);
}

static void print_section(const struct listing *l, const struct section *section)
{
    char of[32] = "";
    if (section->layer != DTP_NO_LAYER)
        snprintf(of, sizeof of, "layer %u, ", (unsigned)section->layer);
    dtp_page_ink(l->page, DTP_INK_BOLD);
    fprintf(l->page->file, "  %s, %smicro-step %u: %.3f ms alone\n", section->phase[0] ? section->phase : "step", of,
            (unsigned)section->micro_step, section->alone_s * 1e3);
    dtp_page_ink(l->page, DTP_INK_PLAIN);
    for (uint32_t i = 0; i < section->count; i++)
        print_op(l, section->first + i, section->layer);
}

/* How many sections from `at` on repeat the one before, each of the next layer. */
static size_t repeated_layers(const struct listing *l, size_t at)
{
    const struct section *model = &l->sections[at - 1];
    size_t count = 0;
    while (at + count < l->count) {
        const struct section *s = &l->sections[at + count];
        if (s->hash != model->hash || s->layer == DTP_NO_LAYER || model->layer == DTP_NO_LAYER ||
            s->micro_step != model->micro_step || strcmp(s->phase, model->phase) != 0)
            break;
        count++;
    }
    return count;
}

static size_t micro_step_end(const struct listing *l, size_t at)
{
    size_t end = at;
    while (end < l->count && l->sections[end].micro_step == l->sections[at].micro_step &&
           (strcmp(l->sections[end].phase, "step") == 0) == (strcmp(l->sections[at].phase, "step") == 0))
        end++;
    return end;
}

/* How many micro-steps from `at` on repeat the one in [model, at). */
static size_t repeated_micro_steps(const struct listing *l, size_t model, size_t at)
{
    size_t length = at - model, count = 0;
    for (; at + length <= l->count; at += length, count++) {
        if (micro_step_end(l, at) != at + length)
            break;
        for (size_t i = 0; i < length; i++)
            if (l->sections[at + i].hash != l->sections[model + i].hash ||
                l->sections[at + i].layer != l->sections[model + i].layer)
                return count;
    }
    return count;
}

static void print_micro_step(const struct listing *l, size_t at, size_t end)
{
    while (at < end) {
        print_section(l, &l->sections[at++]);
        size_t repeated = repeated_layers(l, at);
        if (repeated) {
            const struct section *last = &l->sections[at + repeated - 1];
            fprintf(l->page->file, "  %s, layers %u to %u: as layer %u, %.3f ms each\n", last->phase,
                    (unsigned)l->sections[at].layer, (unsigned)last->layer, (unsigned)l->sections[at - 1].layer,
                    l->sections[at - 1].alone_s * 1e3);
        }
        at += repeated;
    }
}

enum dtp_status dtp_program_listing(const struct dtp_simulated *simulated, const struct dtp_page *page,
                                    struct dtp_faults *faults)
{
    struct listing l = {.simulated = simulated, .ops = dtp_program_ops(simulated->program), .page = page};
    char number[32];
    if (!find_sections(&l))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_page_heading(page, "PROGRAM", "%s operations in the order of issue, with what each takes alone",
                     dtp_page_grouped(simulated->timeline.op_count, number, sizeof number));
    for (size_t at = 0; at < l.count;) {
        size_t end = micro_step_end(&l, at), repeated = repeated_micro_steps(&l, at, end);
        print_micro_step(&l, at, end);
        if (repeated)
            fprintf(page->file, "  micro-steps %u to %u: as micro-step %u\n", (unsigned)l.sections[end].micro_step,
                    (unsigned)l.sections[end + (repeated - 1) * (end - at)].micro_step,
                    (unsigned)l.sections[at].micro_step);
        at = end + repeated * (end - at);
    }
    free(l.sections);
    return DTP_OK;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *op_object(const struct dtp_simulated *s, uint32_t index)
{
    const struct dtp_op *op = &dtp_program_ops(s->program)[index];
    const dtp_op_id *after = dtp_program_dependencies(s->program, op);
    json_t *object = json_object(), *waits = json_array();
    json_object_set_new(object, "op", dtp_json_whole(index));
    json_object_set_new(object, "stream", json_string(dtp_stream_text(op->stream)));
    json_object_set_new(object, "kind", json_string(dtp_op_kind_text(op->kind)));
    json_object_set_new(object, "name", dtp_json_text(op->name));
    json_object_set_new(object, "layer", op->layer == DTP_NO_LAYER ? json_null() : dtp_json_whole(op->layer));
    json_object_set_new(object, "micro_step", dtp_json_whole(op->micro_step));
    json_object_set_new(object, "alone_s", dtp_json_real(s->alone_s[index]));
    json_object_set_new(object, "flops", dtp_json_real(op->demand->flops));
    json_object_set_new(object, "memory_bytes", dtp_json_real(op->demand->bytes));
    json_object_set_new(object, "sent_bytes", dtp_json_real(op->demand->sent_bytes));
    for (uint32_t i = 0; i < op->dependency_count; i++)
        json_array_append_new(waits, dtp_json_whole(after[i].index));
    json_object_set_new(object, "after", waits);
    return object;
}

enum dtp_status dtp_program_json(const struct dtp_simulated *s, FILE *file, struct dtp_faults *faults)
{
    json_t *object = json_object(), *ops = json_array();
    for (uint32_t i = 0; i < s->timeline.op_count; i++)
        json_array_append_new(ops, op_object(s, i));
    json_object_set_new(object, "schema", json_string("dtplan.program/1"));
    json_object_set_new(object, "ops", ops);
    return dtp_json_dump(object, file, faults);
}
