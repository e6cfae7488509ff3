#include "record/run_report.h"

#include "page/grid.h"
#include "page/json_value.h"
#include "page/output_own.h"
#include "program/program_text.h"
#include "record/simulation_report.h"

#include <inttypes.h>
#include <math.h>

static bool is_measured(const struct dtp_roles_report *r)
{
    return r->measured && r->measured->roles && r->measured->role_count == r->set->role_count;
}

static double predicted_busy_s(const struct dtp_timeline *t)
{
    return t->compute_s + t->optimizer_s;
}

static void add_times(struct dtp_grid *grid, double busy_s, double step_s, const struct dtp_unit *unit)
{
    char busy[32], waits[32];
    dtp_grid_cell(grid, "%s", dtp_page_figure(busy_s / unit->divisor, busy, sizeof busy));
    dtp_grid_cell(grid, "%s", dtp_page_figure((step_s - busy_s) / unit->divisor, waits, sizeof waits));
    dtp_grid_cell(grid, "%.0f %%", step_s > 0 ? 100 * busy_s / step_s : 0);
}

static double longest_s(const struct dtp_roles_report *r)
{
    double longest = r->timelines ? r->timelines[0].step_s : 0;
    for (uint32_t i = 0; is_measured(r) && i < r->set->role_count; i++)
        longest = fmax(longest, r->measured->roles[i].step_s);
    return longest;
}

static void put_roles(const struct dtp_roles_report *r, const struct dtp_page *page)
{
    struct dtp_unit time = dtp_unit_time(longest_s(r)), memory = {0x1p20, "MiB"};
    uint64_t largest = 0;
    for (uint32_t i = 0; i < r->set->role_count; i++)
        largest = r->arena_bytes[i] > largest ? r->arena_bytes[i] : largest;
    memory = dtp_unit_memory(largest);
    struct dtp_grid grid;
    dtp_grid_create(&grid, is_measured(r) && r->timelines   ? "lrrrrrrrr"
                           : r->timelines || is_measured(r) ? "lrrrrr"
                                                            : "lrr");
    dtp_grid_row(&grid, DTP_INK_DIM);
    dtp_grid_cell(&grid, "role");
    dtp_grid_cell(&grid, "ranks");
    dtp_grid_cell(&grid, "%s", memory.name);
    for (int side = 0; side < 2; side++)
        if (side ? is_measured(r) : r->timelines != NULL) {
            dtp_grid_cell(&grid, "busy %s", time.name);
            dtp_grid_cell(&grid, "waits");
            dtp_grid_cell(&grid, side ? "measured" : "predicted");
        }
    for (uint32_t i = 0; i < r->set->role_count; i++) {
        char bytes[32];
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", r->set->roles[i].name);
        dtp_grid_cell(&grid, "%" PRIu32, r->set->roles[i].ranks);
        dtp_grid_cell(&grid, "%s", dtp_page_figure((double)r->arena_bytes[i] / memory.divisor, bytes, sizeof bytes));
        if (r->timelines)
            add_times(&grid, predicted_busy_s(&r->timelines[i]), r->timelines[i].step_s, &time);
        if (is_measured(r))
            add_times(&grid, r->measured->roles[i].busy_s, r->measured->roles[i].step_s, &time);
    }
    dtp_grid_end(&grid, page, 2);
}

void dtp_roles_text(const struct dtp_roles_report *r, const struct dtp_page *page)
{
    uint64_t digest = 0;
    char figure[32];
    dtp_program_set_digest(r->set, &digest, NULL);
    fprintf(page->file, "program  " DTP_PROGRAM_DIGEST_FORMAT ": %s, %" PRIu32 " role%s on %" PRIu32 " rank%s\n",
            digest, r->name, r->set->role_count, r->set->role_count > 1 ? "s" : "", dtp_program_set_ranks(r->set),
            dtp_program_set_ranks(r->set) > 1 ? "s" : "");
    fprintf(page->file, "cluster  %" PRIu32 " %s %s%s%s\n", r->cluster->gpus, dtp_page_times(page),
            r->cluster->gpu.name, r->measured ? "; run on " : "", r->measured ? r->measured->device : "");
    dtp_page_heading(page, "ROLES", "what each rank does in a step; it waits for the other roles and for transfers");
    put_roles(r, page);
    if (r->measured && dtp_run_shares(r->measured))
        dtp_run_say_sharing(r->measured, page);
    else if (!r->timelines)
        dtp_page_wrap(page, 0, 2,
                      "  no time is predicted: these cores were not measured; dtplan probe --device host does it");
    if (r->timelines) {
        struct dtp_unit unit = dtp_unit_time(r->timelines[0].step_s);
        fprintf(page->file, "\nSTEP TIME  predicted %s %s",
                dtp_page_figure(r->timelines[0].step_s / unit.divisor, figure, sizeof figure), unit.name);
    }
    if (r->measured && r->measured->timed_steps > 0) {
        struct dtp_unit unit = dtp_unit_time(r->measured->step_s);
        fprintf(page->file, "%s measured %s %s, the median of %" PRIu64 " steps", r->timelines ? "," : "\nSTEP TIME ",
                dtp_page_figure(r->measured->step_s / unit.divisor, figure, sizeof figure), unit.name,
                r->measured->timed_steps);
    }
    if (r->timelines || (r->measured && r->measured->timed_steps > 0))
        fputc('\n', page->file);
    if (r->measured)
        fprintf(page->file, "LOSS       from %.4f to %.4f in %" PRIu64 " steps of %" PRIu64 " tokens\n",
                r->measured->first_loss, r->measured->last_loss, r->measured->last_step - r->measured->first_step,
                r->measured->tokens_per_step);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void put_timeline(const struct dtp_program_role *role, const struct dtp_timeline *timeline, FILE *file)
{
    const struct dtp_op *ops = dtp_program_ops(role->program);
    for (uint32_t i = 0; i < timeline->op_count; i++) {
        const struct dtp_op *op = &ops[i];
        fprintf(file, "%" PRIu32 ",%s,%s,%s,\"%s\",", i, dtp_stream_text(op->stream), dtp_op_kind_text(op->kind),
                dtp_op_class_text(dtp_op_kind_class(op->kind)), op->name);
        if (op->layer != DTP_NO_LAYER)
            fprintf(file, "%d", op->layer);
        fprintf(file, ",%d,%.9f,%.9f,%.9f,\"%s\"\n", op->micro_step, timeline->begin_s + timeline->issue_s[i],
                timeline->begin_s + timeline->span[i].start_s, timeline->begin_s + timeline->span[i].end_s, role->name);
    }
}

void dtp_roles_write_timeline(const struct dtp_roles_report *r, FILE *file)
{
    fputs(DTP_TIMELINE_BEGINS "layer,micro_step,issued_s,start_s,end_s,role\n", file);
    for (uint32_t i = 0; i < r->set->role_count; i++)
        put_timeline(&r->set->roles[i], &r->timelines[i], file);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *times(double busy_s, double step_s)
{
    return json_pack("{s:o,s:o,s:o}", "busy_s", dtp_json_real(busy_s), "waits_s", dtp_json_real(step_s - busy_s),
                     "step_s", dtp_json_real(step_s));
}

static json_t *role(const struct dtp_roles_report *r, uint32_t i)
{
    json_t *object = json_pack("{s:s,s:I,s:I,s:I}", "name", r->set->roles[i].name, "first_rank",
                               (json_int_t)r->set->roles[i].first_rank, "ranks", (json_int_t)r->set->roles[i].ranks,
                               "arena_bytes", (json_int_t)r->arena_bytes[i]);
    if (r->timelines)
        json_object_set_new(object, "predicted", times(predicted_busy_s(&r->timelines[i]), r->timelines[i].step_s));
    if (is_measured(r))
        json_object_set_new(object, "measured", times(r->measured->roles[i].busy_s, r->measured->roles[i].step_s));
    return object;
}

enum dtp_status dtp_roles_json(const struct dtp_roles_report *r, FILE *file, struct dtp_faults *faults)
{
    char digest[DTP_PROGRAM_DIGEST_BYTES];
    uint64_t sum = 0;
    dtp_program_set_digest(r->set, &sum, NULL);
    snprintf(digest, sizeof digest, DTP_PROGRAM_DIGEST_FORMAT, sum);
    json_t *list = json_array(),
           *root = json_pack("{s:s,s:s,s:o}", "schema", "dtplan.roles/1", "program", digest, "roles", list);
    for (uint32_t i = 0; root && i < r->set->role_count; i++)
        json_array_append_new(list, role(r, i));
    if (root && r->timelines)
        json_object_set_new(root, "predicted_step_s", dtp_json_real(r->timelines[0].step_s));
    if (root && r->measured) {
        json_object_set_new(root, "measured_step_s",
                            r->measured->timed_steps ? dtp_json_real(r->measured->step_s) : json_null());
        json_object_set_new(root, "first_loss", dtp_json_real(r->measured->first_loss));
        json_object_set_new(root, "last_loss", dtp_json_real(r->measured->last_loss));
    }
    bool written = root && json_dumpf(root, file, JSON_INDENT(2)) == 0 && fputc('\n', file) != EOF;
    json_decref(root);
    return written ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "the JSON could not be written");
}
