#include "runs/run_table.h"

#include "base/number.h"
#include "runs/run_framework.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GIB 1073741824.0
#define LAST_RANK "allocated-last-rank"

/* Settings first, by the order of their tables; then what no table lists. */
static const struct dtp_run_column columns[] = {
#define COLUMN(field, column, needed, words) {column, needed, false, words},
    DTP_RUN_TEXT_TABLE(COLUMN) DTP_RUN_COUNT_TABLE(COLUMN)
#undef COLUMN
#define COLUMN(field, column, words) {column, false, false, words},
        DTP_RUN_PART_TABLE(COLUMN)
#undef COLUMN
            {"inter_gbit_per_s_per_node", false, false,
             "network of a node in Gbit/s, one direction; default the machine's"},
    {"status", false, true,
     "how the run ended: empty or ran; oom; any other word for another end, such as timeout. Rows that did not run "
     "need no figure"},
    {"tokens_per_s_per_gpu", false, true, "throughput"},
    {"step_time_s", false, true, "time of an optimizer step"},
    {"peak_mem_gib", false, true, "memory per GPU, in GiB, of the kind in mem_kind"},
    {"mem_kind", false, true,
     "allocated, reserved, nvidia-smi, device or after_init; " LAST_RANK
     " where the last rank alone says what it allocated; empty: not stated, and scored apart"},
    {"peak_allocated_bytes", false, true, "memory per GPU: allocated, exact"},
    {"peak_reserved_bytes", false, true, "memory per GPU: reserved, exact"},
    {"device_used_bytes", false, true, "memory per GPU: of the device, exact"},
    {"after_init_allocated_bytes", false, true, "memory per GPU: allocated once the model is built, exact"},
    {"stale_allocated_bytes", false, true,
     "of these figures, what earlier runs of the process had left allocated: none of this run's"},
};

const struct dtp_run_column *dtp_run_table_columns(size_t *count)
{
    *count = sizeof columns / sizeof *columns;
    return columns;
}

static const struct {
    const char *word, *column;
} memory_kinds[] = {
#define MEMORY_KIND(suffix, word, column) {word, column},
    DTP_RUN_MEMORY_TABLE(MEMORY_KIND)
#undef MEMORY_KIND
};

const char *dtp_run_memory_word(enum dtp_run_memory kind)
{
    return memory_kinds[kind].word;
}

/* ---- columns --------------------------------------------------------------------------------------------------- */

static void find_columns(const struct dtp_table *table, const struct dtp_run_column *wanted, size_t count, long *out,
                         struct dtp_faults *faults, enum dtp_status *status)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = dtp_table_column(table, wanted[i].name);
        if (out[i] < 0 && wanted[i].needed)
            *status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 1,
                                "no column '%s'; a run table needs it (dtplan help backtest lists the columns)",
                                wanted[i].name);
    }
}

enum dtp_status dtp_run_columns_find(const struct dtp_table *table, struct dtp_run_columns *out,
                                     struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    find_columns(table, columns, DTP_RUN_TEXT_COUNT, out->text, faults, &status);
    find_columns(table, columns + DTP_RUN_TEXT_COUNT, DTP_RUN_COUNT_COUNT, out->count, faults, &status);
    find_columns(table, columns + DTP_RUN_TEXT_COUNT + DTP_RUN_COUNT_COUNT, DTP_RUN_PART_COUNT, out->part, faults,
                 &status);
    out->network = dtp_table_column(table, "inter_gbit_per_s_per_node");
    out->status = dtp_table_column(table, "status");
    out->tokens_per_s_per_gpu = dtp_table_column(table, "tokens_per_s_per_gpu");
    out->step_time = dtp_table_column(table, "step_time_s");
    out->peak_mem = dtp_table_column(table, "peak_mem_gib");
    out->mem_kind = dtp_table_column(table, "mem_kind");
    out->rank_memory = dtp_table_column(table, "peak_allocated_bytes_ranks");
    out->stale = dtp_table_column(table, "stale_allocated_bytes");
    out->rank_coordinates = dtp_table_column(table, "coordinates_ranks_pp_dp_cp_tp");
    bool measured = out->status >= 0 || out->tokens_per_s_per_gpu >= 0 || out->step_time >= 0 ||
                    (out->peak_mem >= 0 && out->mem_kind >= 0);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        out->memory[kind] = memory_kinds[kind].column ? dtp_table_column(table, memory_kinds[kind].column) : -1;
        measured = measured || out->memory[kind] >= 0;
    }
    if (!measured)
        status = dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 1,
                           "no measured column; a run table has tokens_per_s_per_gpu, step_time_s, peak_mem_gib with "
                           "mem_kind, peak_allocated_bytes, or status");
    return status;
}

/* ---- what was run ---------------------------------------------------------------------------------------------- */

static void read_count(const struct dtp_table *table, size_t row, long column, const char *name, uint64_t least,
                       uint64_t *out, struct dtp_faults *faults, enum dtp_status *status)
{
    const char *text = dtp_table_text(table, row, column);
    *out = 0;
    if (*text && !dtp_number_parse_integer(text, false, least, 1000000000000000u, out)) {
        *out = 0;
        *status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s '%.40s' is no whole number from %" PRIu64 " up", name,
                            text, least);
    }
}

/* A rate, a time or a size: positive and finite, or empty (0). */
static void read_positive(const struct dtp_table *table, size_t row, long column, const char *name, double *out,
                          struct dtp_faults *faults, enum dtp_status *status)
{
    const char *text = dtp_table_text(table, row, column);
    *out = 0;
    if (*text && (!dtp_number_parse(text, out) || *out <= 0)) {
        *out = 0;
        *status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s '%.40s' is no positive number", name, text);
    }
}

enum dtp_status dtp_run_read(const struct dtp_table *table, size_t row, const struct dtp_run_columns *where,
                             struct dtp_run *out, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    size_t i = 0;
    *out = (struct dtp_run){.line = dtp_table_line(table, row)};
#define READ_TEXT(field, column, needed, words) out->field = dtp_table_text(table, row, where->text[i++]);
    DTP_RUN_TEXT_TABLE(READ_TEXT)
#undef READ_TEXT
    i = 0;
#define READ_COUNT(field, column, needed, words)                                                                       \
    read_count(table, row, where->count[i++], column, 1, &out->field, faults, &status);
    DTP_RUN_COUNT_TABLE(READ_COUNT)
#undef READ_COUNT
    i = 0;
#define READ_PART(field, column, words)                                                                                \
    read_count(table, row, where->part[i++], column, 0, &out->field, faults, &status);
    DTP_RUN_PART_TABLE(READ_PART)
#undef READ_PART
    read_positive(table, row, where->network, "inter_gbit_per_s_per_node", &out->node_network_gbit_per_s, faults,
                  &status);
    return status;
}

/* ---- what was measured ----------------------------------------------------------------------------------------- */

/* Frameworks that log of one rank have the last one do it: Megatron-LM's has TensorBoard's writer
 * (training/global_vars.py), and with pp that is of the pipeline's last ranks, which under 1f1b and its interleaved
 * form, all that Megatron-LM has, is where the head is. Where there is one stage it is any rank. */
static enum dtp_status read_last_rank(const struct dtp_table *table, size_t row, const struct dtp_run_columns *where,
                                      double bytes, struct dtp_run_measured *out, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    uint64_t stages = 1;
    read_count(table, row, where->count[DTP_RUN_COUNT_pp], "pp", 1, &stages, faults, &status);
    if (stages > DTP_PREDICTED_STAGES)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "mem_kind '" LAST_RANK "' with pp %" PRIu64 ": memory is predicted of up to %d stages", stages,
                         DTP_PREDICTED_STAGES);
    if (stages > 1)
        out->stage_bytes[stages - 1] = out->least_stage_bytes[stages - 1] = bytes;
    else
        out->memory_bytes[DTP_RUN_ALLOCATED] = bytes;
    return status;
}

static enum dtp_status read_rounded_memory(const struct dtp_table *table, size_t row,
                                           const struct dtp_run_columns *where, struct dtp_run_measured *out,
                                           struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    double gib = 0;
    read_positive(table, row, where->peak_mem, "peak_mem_gib", &gib, faults, &status);
    if (gib <= 0)
        return status;
    const char *word = dtp_table_text(table, row, where->mem_kind);
    const char *framework = dtp_table_text(table, row, where->text[DTP_RUN_TEXT_framework]);
    word = *word ? word : dtp_run_memory_word(dtp_run_unstated_memory(framework));
    if (strcmp(word, LAST_RANK) == 0)
        return read_last_rank(table, row, where, gib * GIB, out, faults);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        if (strcmp(word, memory_kinds[kind].word) == 0) {
            if (out->memory_bytes[kind] <= 0)
                out->memory_bytes[kind] = gib * GIB;
            return status;
        }
    }
    return dtp_fault(
        faults, DTP_BAD_INPUT, NULL, 0,
        "mem_kind '%.40s' is unknown; known: allocated, reserved, nvidia-smi, device, after_init, " LAST_RANK, word);
}

#define MOST_RANKS_MEASURED 1024 /* of a row, among which one that is named twice is found */

/* Ranks of the row's layout by pp, dp, cp and tp; what is no number counts as 1, and is refused elsewhere. */
static void read_layout(const struct dtp_table *table, size_t row, const struct dtp_run_columns *where,
                        unsigned long size[4])
{
    const long axes[4] = {where->count[DTP_RUN_COUNT_pp], -1, where->count[DTP_RUN_COUNT_cp],
                          where->count[DTP_RUN_COUNT_tp]};
    unsigned long divided = 1, gpus = strtoul(dtp_table_text(table, row, where->count[DTP_RUN_COUNT_gpus]), NULL, 10);
    for (int i = 0; i < 4; i++) {
        unsigned long ranks = strtoul(dtp_table_text(table, row, axes[i]), NULL, 10);
        size[i] = ranks ? ranks : 1;
        divided = divided < UINT32_MAX / size[i] ? divided * size[i] : UINT32_MAX;
    }
    size[1] = gpus > divided ? gpus / divided : 1;
}

/* "PP/DP/CP/TP" to a number of its own; the place behind it, NULL: it is no rank of that layout. */
static const char *read_rank(const char *at, const unsigned long size[4], unsigned long *stage, uint64_t *number)
{
    *number = 0;
    for (int i = 0; i < 4; i++) {
        char *behind = (char *)at;
        unsigned long coordinate = *at >= '0' && *at <= '9' ? strtoul(at, &behind, 10) : size[i];
        if (coordinate >= size[i] || (i < 3 ? *behind != '/' : *behind && *behind != ';'))
            return NULL;
        *stage = i ? *stage : coordinate;
        *number = *number * size[i] + coordinate;
        at = behind + (*behind != '\0');
    }
    return at;
}

/* "BYTES;BYTES;..." of the ranks, and beside it "PP/DP/CP/TP;..." where each of them stands. */
static enum dtp_status read_stages(const struct dtp_table *table, size_t row, const struct dtp_run_columns *where,
                                   struct dtp_run_measured *out, struct dtp_faults *faults)
{
    const char *bytes = dtp_table_text(table, row, where->rank_memory);
    const char *place = dtp_table_text(table, row, where->rank_coordinates);
    unsigned long size[4], stage = 0;
    uint64_t number, before[MOST_RANKS_MEASURED];
    size_t count = 0;
    memset(out->stage_bytes, 0, sizeof out->stage_bytes);
    memset(out->least_stage_bytes, 0, sizeof out->least_stage_bytes);
    read_layout(table, row, where, size);
    bool stated = *bytes && *place;
    while (stated && (*bytes || *place)) {
        char *behind;
        if (!*place)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "peak_allocated_bytes_ranks has more ranks than the %zu that "
                             "coordinates_ranks_pp_dp_cp_tp names: as many are needed",
                             count);
        double value = strtod(bytes, &behind);
        const char *next = read_rank(place, size, &stage, &number);
        if (behind == bytes || !(value > 0) || !isfinite(value) || (*behind && *behind != ';'))
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "peak_allocated_bytes_ranks: '%.40s' begins with no bytes of a rank: as many are needed "
                             "as coordinates_ranks_pp_dp_cp_tp names, with ';' between",
                             bytes);
        if (!next || stage >= DTP_PREDICTED_STAGES)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "coordinates_ranks_pp_dp_cp_tp: '%.40s' begins with no rank of pp %lu, dp %lu, cp %lu, tp "
                             "%lu: each is PP/DP/CP/TP from 0/0/0/0 on, with ';' between, on up to %d stages",
                             place, size[0], size[1], size[2], size[3], DTP_PREDICTED_STAGES);
        for (size_t i = 0; i < count; i++)
            if (before[i] == number)
                return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                                 "coordinates_ranks_pp_dp_cp_tp: names a rank twice, at '%.40s'", place);
        if (count == MOST_RANKS_MEASURED)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "coordinates_ranks_pp_dp_cp_tp: names more than %d ranks; leave some out, as those of a "
                             "stage are alike",
                             MOST_RANKS_MEASURED);
        before[count++] = number;
        double *most = &out->stage_bytes[stage], *least = &out->least_stage_bytes[stage];
        *most = value > *most ? value : *most;
        *least = *least > 0 && *least < value ? *least : value;
        bytes = behind + (*behind == ';');
        place = next;
    }
    return DTP_OK;
}

static void take_off(double *bytes, double stale_bytes)
{
    *bytes = *bytes > stale_bytes ? *bytes - stale_bytes : 0;
}

/* Tensors of earlier runs in the same process were counted with this one's: allocated, and in segments of their own. */
static enum dtp_status take_off_stale(const struct dtp_table *table, size_t row, const struct dtp_run_columns *where,
                                      struct dtp_run_measured *out, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    double stale_bytes = 0;
    read_positive(table, row, where->stale, "stale_allocated_bytes", &stale_bytes, faults, &status);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++)
        take_off(&out->memory_bytes[kind], stale_bytes);
    for (int stage = 0; stage < DTP_PREDICTED_STAGES; stage++) {
        take_off(&out->stage_bytes[stage], stale_bytes);
        take_off(&out->least_stage_bytes[stage], stale_bytes);
    }
    return status;
}

static enum dtp_run_end end_of(const char *status)
{
    static const struct {
        const char *word;
        enum dtp_run_end end;
    } words[] = {{"", DTP_RUN_RAN},     {"ok", DTP_RUN_RAN},           {"ran", DTP_RUN_RAN},
                 {"done", DTP_RUN_RAN}, {"success", DTP_RUN_RAN},      {"completed", DTP_RUN_RAN},
                 {"oom", DTP_RUN_OOM},  {"out of memory", DTP_RUN_OOM}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(status, words[i].word) == 0)
            return words[i].end;
    return DTP_RUN_FAILED;
}

/* Exact figures of one run: tensors lie in segments, and those of the built model are among the step's. */
static enum dtp_status check_sizes(const struct dtp_run_measured *out, struct dtp_faults *faults)
{
    static const enum dtp_run_memory pairs[][2] = {{DTP_RUN_ALLOCATED, DTP_RUN_RESERVED},
                                                   {DTP_RUN_AFTER_INIT, DTP_RUN_ALLOCATED},
                                                   {DTP_RUN_AFTER_INIT, DTP_RUN_RESERVED}};
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        double less = out->memory_bytes[pairs[i][0]], more = out->memory_bytes[pairs[i][1]];
        if (more > 0 && less > more)
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s %.0f is more than %s %.0f, which holds them too",
                               memory_kinds[pairs[i][0]].column, less, memory_kinds[pairs[i][1]].column, more);
    }
    return status;
}

enum dtp_status dtp_run_read_measured(const struct dtp_table *table, size_t row, const struct dtp_run_columns *where,
                                      struct dtp_run_measured *out, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    out->status = dtp_table_text(table, row, where->status);
    const char *notes = dtp_table_text(table, row, where->text[DTP_RUN_TEXT_notes]);
    out->end = where->status < 0 && strstr(notes, "OUT OF MEMORY") ? DTP_RUN_OOM : end_of(out->status);
    read_positive(table, row, where->tokens_per_s_per_gpu, "tokens_per_s_per_gpu", &out->tokens_per_s_per_gpu, faults,
                  &status);
    read_positive(table, row, where->step_time, "step_time_s", &out->step_s, faults, &status);
    if (out->end == DTP_RUN_OOM && (out->tokens_per_s_per_gpu > 0 || out->step_s > 0))
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "status '%.20s' says that it did not run, and a speed was measured; empty one of them",
                           out->status);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        out->memory_bytes[kind] = 0;
        if (memory_kinds[kind].column && where->memory[kind] >= 0)
            read_positive(table, row, where->memory[kind], memory_kinds[kind].column, &out->memory_bytes[kind], faults,
                          &status);
    }
    status = dtp_worse(status, check_sizes(out, faults));
    enum dtp_status stages = read_stages(table, row, where, out, faults);
    enum dtp_status rounded = read_rounded_memory(table, row, where, out, faults);
    enum dtp_status stale = take_off_stale(table, row, where, out, faults);
    status = status > stages ? status : stages;
    status = status > stale ? status : stale;
    return status > rounded ? status : rounded;
}
