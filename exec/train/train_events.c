#include "train/train_events.h"

#include "program/program_text.h"
#include "runs/run_files.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void dtp_event_say(FILE *file, json_t *event)
{
    char *line = event ? json_dumps(event, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    if (line && fprintf(file, "%s\n", line) > 0)
        fflush(file);
    free(line);
    json_decref(event);
}

static json_t *owner_bytes(const struct dtp_binding *b)
{
    uint64_t bytes[DTP_OWNER_COUNT] = {0};
    json_t *object = json_object();
    dtp_binding_peak(b, bytes);
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        json_object_set_new(object, dtp_owner_key((enum dtp_owner)i), json_integer((json_int_t)bytes[i]));
    return object;
}

/* JSON has no NaN: null says that there is no such number. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static uint64_t parameter_count(const struct dtp_binding *b)
{
    uint64_t count = 0;
    for (uint64_t module = 0; module < b->map.module_count; module++) {
        struct dtp_parameter_module layout;
        dtp_program_module(b->job.program, module, &layout);
        count += layout.used_elements;
    }
    return count;
}

void dtp_event_start(FILE *file, const struct dtp_binding *b, const struct dtp_run_start *start)
{
    if (!file)
        return;
    const struct dtp_device *device = b->job.device;
    const struct dtp_communicator *communicator = b->job.world ? b->job.world->communicator : NULL;
    char program[DTP_PROGRAM_DIGEST_BYTES], data[256];
    snprintf(data, sizeof data, "%s%s", dtp_token_source_words(start->source),
             b->job.balanced_experts ? "; to experts in turns" : "");
    snprintf(program, sizeof program, DTP_PROGRAM_DIGEST_FORMAT, start->digest);
    dtp_event_say(
        file, json_pack("{s:s,s:s,s:s,s:s,s:s,s:b,s:I,s:I,s:I,s:I,s:o,s:s,s:o,s:I,s:I,s:I,s:I,s:I}", "event", "start",
                        "program", program, "device", device->name, "libraries", device->libraries, "collectives",
                        communicator ? communicator->ways : "", "gpu", (int)device->asynchronous, "parameters",
                        (json_int_t)parameter_count(b), "operations", (json_int_t)b->op_count, "device_arena_bytes",
                        (json_int_t)b->job.arena->device_bytes, "host_arena_bytes",
                        (json_int_t)b->job.arena->host_bytes, "owner_bytes", owner_bytes(b), "data", data, "entropy",
                        number(dtp_token_source_entropy(start->source)), "first_step", (json_int_t)start->first_step,
                        "steps", (json_int_t)start->steps, "ranks_a_gpu", (json_int_t)start->ranks_a_gpu,
                        "checkpoint_copy_bytes", (json_int_t)start->checkpoint_copy_bytes, "snapshot_copy_bytes",
                        (json_int_t)start->snapshot_copy_bytes));
}

void dtp_event_step(FILE *file, const struct dtp_step_record *r, uint64_t tokens, enum dtp_run_mode mode)
{
    static const char *const modes[] = {"plain", "measured", "isolated"};
    if (!file)
        return;
    dtp_event_say(file,
                  json_pack("{s:s,s:I,s:o,s:o,s:o,s:o,s:o,s:I,s:b,s:s}", "event", "step", "step", (json_int_t)r->step,
                            "loss", number(r->loss), "gradient_norm", number(r->gradient_norm), "learning_rate",
                            number(r->learning_rate), "step_s", number(r->seconds), "loop_s", number(r->loop_s),
                            "tokens", (json_int_t)tokens, "skipped", (int)r->skipped, "mode", modes[mode]));
}

void dtp_event_memory(FILE *file, const struct dtp_device_memory *memory)
{
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:I,s:I}", "event", "memory", "used_bytes",
                                      (json_int_t)(memory->total_bytes - memory->free_bytes), "total_bytes",
                                      (json_int_t)memory->total_bytes));
}

void dtp_event_checkpoint(FILE *file, uint64_t step, const char *directory, double stall_s, bool beside)
{
    json_t *name = json_string(directory); /* NULL where the name is no UTF-8 */
    if (file)
        dtp_event_say(file,
                      json_pack("{s:s,s:I,s:o,s:o,s:b}", "event", "checkpoint", "step", (json_int_t)step, "directory",
                                name ? name : json_null(), "stall_s", number(stall_s), "beside", (int)beside));
    else
        json_decref(name);
}

void dtp_event_snapshot(FILE *file, uint64_t step, double stall_s)
{
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:I,s:o}", "event", "snapshot", "step", (json_int_t)step, "stall_s",
                                      number(stall_s)));
}

void dtp_event_generation(FILE *file, const struct dtp_generation *g)
{
    bool follows = g->number > 0;
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:I,s:I,s:s,s:i,s:o,s:o}", "event", "generation", "number",
                                      (json_int_t)g->number, "ranks", (json_int_t)g->ranks, "why", g->why, "how",
                                      (int)g->how, "noticed_s", number(follows ? g->noticed_s : (double)NAN), "ended_s",
                                      number(follows ? g->ended_s : (double)NAN)));
}

void dtp_event_begin(FILE *file, uint32_t ranks, const char *from)
{
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:I,s:s}", "event", "begin", "ranks", (json_int_t)ranks, "from", from));
}

void dtp_event_roles(FILE *file, const struct dtp_role_times *roles, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(
            list, json_pack("{s:o,s:o}", "busy_s", number(roles[i].busy_s), "step_s", number(roles[i].step_s)));
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:o}", "event", "roles", "roles", list));
    else
        json_decref(list);
}

static json_t *sent_bytes(const uint64_t *bytes)
{
    json_t *sent = json_object();
    for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
        if (bytes[c] > 0)
            json_object_set_new(sent, dtp_collective_text((enum dtp_collective)c), json_integer((json_int_t)bytes[c]));
    return sent;
}

void dtp_event_ranks(FILE *file, const struct dtp_rank_account *ranks, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(
            list, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "role", (json_int_t)ranks[i].role, "device_arena_bytes",
                            (json_int_t)ranks[i].device_arena_bytes, "used_bytes", (json_int_t)ranks[i].used_bytes,
                            "steps", (json_int_t)ranks[i].steps, "host_to_device_bytes",
                            (json_int_t)ranks[i].host_to_device_bytes, "device_to_host_bytes",
                            (json_int_t)ranks[i].device_to_host_bytes, "sent_bytes", sent_bytes(ranks[i].sent_bytes)));
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:o}", "event", "ranks", "ranks", list));
    else
        json_decref(list);
}

void dtp_event_experts(FILE *file, const struct dtp_expert_rows *rows)
{
    json_t *layers = json_array();
    for (uint32_t layer = 0; layer < rows->layers; layer++) {
        json_t *list = json_array();
        for (uint32_t e = 0; e < rows->experts; e++)
            json_array_append_new(list, json_integer((json_int_t)rows->rows[(size_t)layer * rows->experts + e]));
        json_array_append_new(layers, list);
    }
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:o}", "event", "experts", "rows", layers));
    else
        json_decref(layers);
}

void dtp_event_end(FILE *file, uint64_t step, const struct dtp_communicator *communicator,
                   const struct dtp_copied_bytes *copied, bool interrupted)
{
    if (!file)
        return;
    json_t *sent = json_object();
    for (int c = 0; c < DTP_COLLECTIVE_COUNT && communicator; c++)
        if (communicator->calls[c] > 0)
            json_object_set_new(sent, dtp_collective_text((enum dtp_collective)c),
                                json_integer((json_int_t)communicator->sent_bytes[c]));
    dtp_event_say(file,
                  json_pack("{s:s,s:I,s:o,s:I,s:I,s:b}", "event", "end", "step", (json_int_t)step, "sent_bytes", sent,
                            "host_to_device_bytes", (json_int_t)copied->host_to_device, "device_to_host_bytes",
                            (json_int_t)copied->device_to_host, "interrupted", (int)interrupted));
}

void dtp_event_fault(FILE *file, const char *words)
{
    if (file)
        dtp_event_say(file, json_pack("{s:s,s:s}", "event", "fault", "words", words));
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void put_seconds(FILE *file, double seconds, char after)
{
    if (isfinite(seconds))
        fprintf(file, "%.9f", seconds);
    fputc(after, file);
}

static enum dtp_status close_times(FILE *file, const char *path, struct dtp_faults *faults)
{
    bool written = file && !ferror(file);
    if (file)
        written = fclose(file) == 0 && written;
    return written ? DTP_OK
                   : dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "times could not be written: %s", strerror(errno));
}

enum dtp_status dtp_role_spans_write(const char *path, const struct dtp_role_spans *roles, uint32_t role_count,
                                     struct dtp_faults *faults)
{
    FILE *file = fopen(path, "w");
    if (file)
        fputs(DTP_ROLE_TIMES_BEGINS, file);
    for (uint32_t r = 0; file && r < role_count; r++)
        for (size_t i = 0; i < roles[r].op_count; i++) {
            fprintf(file, "%" PRIu32 ",%zu,", r, i);
            put_seconds(file, roles[r].alone_s[i], ',');
            put_seconds(file, roles[r].start_s[i], ',');
            put_seconds(file, roles[r].end_s[i], '\n');
        }
    return close_times(file, path, faults);
}

enum dtp_status dtp_op_times_write(const char *path, const struct dtp_binding *binding,
                                   const struct dtp_op_times *times, struct dtp_faults *faults)
{
    FILE *file = fopen(path, "w");
    if (file)
        fputs(DTP_OP_TIMES_BEGINS, file);
    for (size_t i = 0; file && i < binding->op_count; i++) {
        if (binding->ops[i].kind == DTP_BOUND_NOTHING)
            continue;
        fprintf(file, "%zu,", i);
        put_seconds(file, times->alone_s[i], ',');
        put_seconds(file, times->start_s[i], ',');
        put_seconds(file, times->end_s[i], '\n');
    }
    return close_times(file, path, faults);
}
