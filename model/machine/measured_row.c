#include "machine/measured_row.h"

#include "base/number.h"
#include "base/table.h"
#include "base/word_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- words ------------------------------------------------------------------------------------------------------- */

static const char *const measurement_texts[] = {DTP_MEASUREMENT_TABLE(DTP_ROW_WORD)};
static const unsigned needed[] = {
#define AS_NEEDS(suffix, text, needs) needs,
    DTP_MEASUREMENT_TABLE(AS_NEEDS)
#undef AS_NEEDS
};
static const char *const columns[] = {
#define AS_COLUMN(field, column) column,
    DTP_MEASURED_NUMBER_TABLE(AS_COLUMN)
#undef AS_COLUMN
};
static const char *const about_words[] = {DTP_MEASURED_ABOUT_TABLE(DTP_ROW_WORD)};
static const char *const matmul_words[] = {DTP_MEASURED_MATMUL_TABLE(DTP_ROW_WORD)};
static const char *const attention_words[] = {DTP_MEASURED_ATTENTION_TABLE(DTP_ROW_WORD)};
static const char *const pass_words[] = {DTP_MEASURED_PASS_TABLE(DTP_ROW_WORD)};
static const char *const step_words[] = {"gap_live", "gap_graph", "launch", "launch_pytorch", DTP_MEASURED_PACE};
static const char *const copy_words[] = {"upload", "download", "both"};
static const char *const host_adam_words[] = {DTP_MEASURED_HOST_ADAM};
static const char *const count_words[] = {DTP_MEASURED_ROWS, "gpus", "gpus_per_node"};

enum { SHAPE_COUNT = DTP_MEASURED_nodes + 1 };
#define SLOWDOWN "_slowdown"

DTP_TEXT_AND_PARSE_OF_ARRAY(measurement, measurement_texts, 0)
DTP_WORDS_OF_ARRAY(dtp_measured_matmul_text, dtp_measured_matmul, matmul_words)
DTP_WORDS_OF_ARRAY(dtp_measured_attention_text, dtp_measured_attention, attention_words)
DTP_WORDS_OF_ARRAY(dtp_measured_pass_text, dtp_measured_pass, pass_words)

enum dtp_measured_attention dtp_measured_attention_of(bool atomic, bool backward)
{
    return !backward ? DTP_MEASURED_ATTENTION_FORWARD
           : atomic  ? DTP_MEASURED_ATTENTION_BACKWARD_ATOMIC
                     : DTP_MEASURED_ATTENTION_BACKWARD;
}

bool dtp_measured_attention_is_backward(const struct dtp_measured_row *row)
{
    return strcmp(row->what, attention_words[DTP_MEASURED_ATTENTION_FORWARD]) != 0;
}

#define AMONG(word, words) (dtp_word_index(word, words, 0, DTP_WORD_COUNT(words)) < DTP_WORD_COUNT(words))

static bool is_kernel(const char *word)
{
    enum dtp_op_kind kind;
    return AMONG(word, pass_words) || (dtp_op_kind_parse(word, &kind) && dtp_op_kind_class(kind) == DTP_CLASS_MEMORY);
}

static const struct {
    enum dtp_collective collective;
    const char *word;
} carried_words[] = {{DTP_COLLECTIVE_COUNT, ""},
#define AS_CARRIED(suffix, collective, text) {collective, text},
                     DTP_CARRIED_TABLE(AS_CARRIED)
#undef AS_CARRIED
};

const char *dtp_measured_collective_text(enum dtp_collective collective, enum dtp_carried carried)
{
    return carried_words[carried].collective == collective ? carried_words[carried].word
                                                           : dtp_collective_text(collective);
}

bool dtp_measured_collective_parse(const char *text, size_t length, enum dtp_collective *out, enum dtp_carried *carried)
{
    for (int c = 0; c < DTP_CARRIED_COUNT; c++)
        for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
            *out = (enum dtp_collective)i, *carried = (enum dtp_carried)c;
            const char *name = dtp_measured_collective_text(*out, *carried);
            if (strlen(name) == length && strncmp(name, text, length) == 0)
                return true;
        }
    return false;
}

/* NAME, or NAME and `suffix`. */
static bool is_collective(const char *word, const char *suffix)
{
    const size_t length = strlen(word), end = strlen(suffix);
    const bool has = length > end && strcmp(word + length - end, suffix) == 0;
    enum dtp_collective collective;
    enum dtp_carried carried;
    return dtp_measured_collective_parse(word, has ? length - end : length, &collective, &carried);
}

static bool knows(enum dtp_measurement measurement, const char *what)
{
    switch (measurement) {
    case DTP_MEASUREMENT_ABOUT: return AMONG(what, about_words);
    case DTP_MEASUREMENT_MATMUL:
    case DTP_MEASUREMENT_GROUPED_MATMUL: return AMONG(what, matmul_words);
    case DTP_MEASUREMENT_ATTENTION: return AMONG(what, attention_words);
    case DTP_MEASUREMENT_KERNEL: return is_kernel(what);
    case DTP_MEASUREMENT_STEP: return AMONG(what, step_words);
    case DTP_MEASUREMENT_COLLECTIVE: return is_collective(what, "");
    case DTP_MEASUREMENT_COPY: return AMONG(what, copy_words);
    case DTP_MEASUREMENT_HOST_ADAM: return AMONG(what, host_adam_words);
    case DTP_MEASUREMENT_CONTENTION: return is_collective(what, SLOWDOWN);
    case DTP_MEASUREMENT_COUNT: break;
    }
    return false;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct dtp_measured_row dtp_measured_row_of(enum dtp_measurement measurement, const char *what)
{
    struct dtp_measured_row row = {.measurement = measurement, .dtype = DTP_DTYPE_COUNT};
    snprintf(row.what, sizeof row.what, "%s", what);
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++)
        row.number[i] = (double)NAN;
    return row;
}

struct dtp_measured_row dtp_measured_row_of_matmul(enum dtp_measured_matmul pass, enum dtp_dtype dtype, double m,
                                                   double n, double k)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_MATMUL, matmul_words[pass]);
    row.dtype = dtype;
    row.number[DTP_MEASURED_m] = m;
    row.number[DTP_MEASURED_n] = n;
    row.number[DTP_MEASURED_k] = k;
    return row;
}

struct dtp_measured_row dtp_measured_row_of_grouped(enum dtp_measured_matmul pass, enum dtp_dtype dtype, double groups,
                                                    double m, double n, double k)
{
    struct dtp_measured_row row = dtp_measured_row_of_matmul(pass, dtype, m, n, k);
    row.measurement = DTP_MEASUREMENT_GROUPED_MATMUL;
    row.number[DTP_MEASURED_groups] = groups;
    return row;
}

double dtp_measured_matmul_flops(const struct dtp_measured_row *row)
{
    const double *x = row->number;
    const double groups = row->measurement == DTP_MEASUREMENT_GROUPED_MATMUL ? x[DTP_MEASURED_groups] : 1;
    return 2 * groups * x[DTP_MEASURED_m] * x[DTP_MEASURED_n] * x[DTP_MEASURED_k];
}

bool dtp_measured_row_same(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    bool same = a->measurement == b->measurement && a->dtype == b->dtype && strcmp(a->what, b->what) == 0;
    for (int i = 0; i < SHAPE_COUNT && same; i++)
        same = a->number[i] == b->number[i] || (isnan(a->number[i]) && isnan(b->number[i]));
    return same;
}

/* Beyond these a cell is a slip, and products of dimensions would lose their meaning. */
#define MOST_SIZE 1e16
#define LEAST_S 1e-10
#define MOST_S 1e5
#define MOST_VALUE 1e3

static bool in_range(int column, double number)
{
    if ((column >= DTP_MEASURED_ranks && column <= DTP_MEASURED_nodes) || column == DTP_MEASURED_groups)
        return number <= DTP_MEASURED_MOST_COUNT && number == floor(number);
    if (column < DTP_MEASURED_ranks || column == DTP_MEASURED_samples)
        return number <= MOST_SIZE;
    return column == DTP_MEASURED_value ? number <= MOST_VALUE : number >= LEAST_S && number <= MOST_S;
}

static bool is_typed(const struct dtp_measured_row *row)
{
    return dtp_measurement_is_matmul(row->measurement) || row->measurement == DTP_MEASUREMENT_ATTENTION;
}

/* What ranks of a host do beside each other on its cores. */
static bool shares_cores(const struct dtp_measured_row *row)
{
    return is_typed(row) || row->measurement == DTP_MEASUREMENT_KERNEL;
}

static bool may_be_typed(const struct dtp_measured_row *row)
{
    return is_typed(row) || row->measurement == DTP_MEASUREMENT_KERNEL ||
           row->measurement == DTP_MEASUREMENT_COLLECTIVE;
}

void dtp_measured_row_of_host(struct dtp_measured_row *row, enum dtp_dtype dtype, uint32_t ranks)
{
    bool moved = row->measurement == DTP_MEASUREMENT_COLLECTIVE &&
                 strcmp(row->what, dtp_collective_text(DTP_REDUCE_SCATTER)) != 0 &&
                 strcmp(row->what, dtp_collective_text(DTP_ALL_REDUCE)) != 0; /* and not added up */
    if (may_be_typed(row) && !is_typed(row) && !moved)
        row->dtype = dtype;
    if (shares_cores(row))
        row->number[DTP_MEASURED_ranks] = ranks;
    if (row->measurement == DTP_MEASUREMENT_COLLECTIVE)
        row->number[DTP_MEASURED_nodes] = 1;
}

static enum dtp_status check_number(const struct dtp_measured_row *row, int column, const char *file, size_t line,
                                    struct dtp_faults *faults)
{
    unsigned bit = 1u << column, needs = needed[row->measurement];
    bool optional = (needs && column >= DTP_MEASURED_low_s && column <= DTP_MEASURED_samples) ||
                    (column == DTP_MEASURED_ranks && shares_cores(row));
    double number = row->number[column];
    const char *name = columns[column];
    if (isnan(number))
        return needs & bit ? dtp_fault(faults, DTP_BAD_INPUT, file, line, "%s: is missing in a row of %s", name,
                                       measurement_texts[row->measurement])
                           : DTP_OK;
    if (!(needs & bit) && !optional)
        return dtp_fault(faults, DTP_BAD_INPUT, file, line, "%s: a row of %s has none", name,
                         measurement_texts[row->measurement]);
    if (!isfinite(number) || number < 0 || (number == 0 && column != DTP_MEASURED_value))
        return dtp_fault(faults, DTP_BAD_INPUT, file, line, "%s: %g is no amount that can be measured", name, number);
    if (number > 0 && !in_range(column, number))
        return dtp_fault(faults, DTP_BAD_INPUT, file, line, "%s: %g is nothing that a machine does", name, number);
    return DTP_OK;
}

enum dtp_status dtp_measured_row_set_text(struct dtp_measured_row *row, const char *text, const char *file, size_t line,
                                          struct dtp_faults *faults)
{
    if (strlen(text) >= sizeof row->text || text[dtp_printable_length(text)])
        return dtp_fault(faults, DTP_BAD_INPUT, file, line, "value: a text of at most %zu printable bytes",
                         sizeof row->text - 1);
    memcpy(row->text, text, strlen(text) + 1);
    return DTP_OK;
}

enum dtp_status dtp_measured_row_check(const struct dtp_measured_row *row, const char *file, size_t line,
                                       struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    uint64_t number;
    bool typed = is_typed(row), told = row->dtype != DTP_DTYPE_COUNT;
    if (!knows(row->measurement, row->what))
        worst = dtp_fault(faults, DTP_BAD_INPUT, file, line, "what: '%s' is nothing that is measured of %s", row->what,
                          measurement_texts[row->measurement]);
    if ((typed && !told) || (told && !may_be_typed(row)))
        worst = dtp_fault(faults, DTP_BAD_INPUT, file, line, "dtype: a row of %s has %s",
                          measurement_texts[row->measurement], typed ? "one" : "none");
    if (row->measurement == DTP_MEASUREMENT_ABOUT && !row->text[0])
        worst = dtp_fault(faults, DTP_BAD_INPUT, file, line, "value: is missing in a row of about");
    if (row->measurement == DTP_MEASUREMENT_ABOUT && AMONG(row->what, count_words) &&
        !dtp_number_parse_integer(row->text, false, 1, DTP_MEASURED_MOST_COUNT, &number))
        worst = dtp_fault(faults, DTP_BAD_INPUT, file, line, "%s: '%s' is not a whole number from 1 to %d", row->what,
                          row->text, DTP_MEASURED_MOST_COUNT);
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++) {
        enum dtp_status status = check_number(row, i, file, line, faults);
        worst = status > worst ? status : worst;
    }
    return worst;
}

enum dtp_measured_matmul dtp_measured_matmul_of(const char *what)
{
    int matmul = 0;
    while (matmul < DTP_MEASURED_MATMUL_COUNT && strcmp(what, matmul_words[matmul]) != 0)
        matmul++;
    return (enum dtp_measured_matmul)matmul;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void write_header(FILE *file)
{
    fputs("measurement,what,dtype", file);
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++)
        fprintf(file, ",%s", columns[i]);
    fputc('\n', file);
}

static void write_row(FILE *file, const struct dtp_measured_row *row)
{
    fprintf(file, "%s,%s,%s", measurement_texts[row->measurement], row->what,
            row->dtype == DTP_DTYPE_COUNT ? "" : dtp_dtype_text(row->dtype));
    for (int i = 0; i < DTP_MEASURED_COLUMN_COUNT; i++) {
        bool exact = i < SHAPE_COUNT || i == DTP_MEASURED_samples; /* whole numbers */
        fputc(',', file);
        if (i == DTP_MEASURED_value && row->measurement == DTP_MEASUREMENT_ABOUT)
            dtp_table_write_field(file, row->text);
        else if (isfinite(row->number[i]))
            fprintf(file, exact ? "%.17g" : "%.6g", row->number[i]);
    }
    fputc('\n', file);
}

static bool says_count(const struct dtp_measured_row *row)
{
    return row->measurement == DTP_MEASUREMENT_ABOUT && strcmp(row->what, DTP_MEASURED_ROWS) == 0;
}

void dtp_measured_write(FILE *file, const struct dtp_measured_row *rows, size_t count)
{
    struct dtp_measured_row all = dtp_measured_row_of(DTP_MEASUREMENT_ABOUT, DTP_MEASURED_ROWS);
    size_t written = 1;
    for (size_t i = 0; i < count; i++)
        written += !says_count(&rows[i]);
    snprintf(all.text, sizeof all.text, "%zu", written);
    write_header(file);
    write_row(file, &all);
    for (int about = 1; about >= 0; about--)
        for (size_t i = 0; i < count; i++)
            if ((rows[i].measurement == DTP_MEASUREMENT_ABOUT) == about && !says_count(&rows[i]))
                write_row(file, &rows[i]);
}
