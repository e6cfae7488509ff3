#include "record/catalog_report.h"

#include "page/grid.h"
#include "base/table.h"
#include "page/json_value.h"

#include <math.h>
#include <string.h>

/* ---- lists: one table of columns per catalogue ------------------------------------------------------------------ */

/* A cell is a text, or a number with the digits people want to see; programs get it whole. */
struct cell {
    const char *text; /* NULL: the number counts */
    double number;    /* NaN: none */
    int digits;
};

struct column {
    const char *key;      /* of JSON and CSV, with its unit */
    const char *words[2]; /* header for people, two lines */
    char alignment;
    double scale; /* people see number / scale */
    struct cell (*value)(const struct dtp_catalog *catalog, size_t row);
};

static struct cell text(const char *value)
{
    return (struct cell){.text = value};
}

static struct cell number(double value, int digits)
{
    return (struct cell){.number = value, .digits = digits};
}

/* A rate of 0 means the GPU has no such unit. */
static struct cell rate(double value, int digits)
{
    return number(value > 0 ? value : NAN, digits);
}

#define GPU(field) (catalog->gpus[row].field)
#define MACHINE(field) (catalog->machines[row].field)
#define MODEL(field) (catalog->models[row].field)
#define COLUMN(name, expression)                                                                                       \
    static struct cell name(const struct dtp_catalog *catalog, size_t row)                                             \
    {                                                                                                                  \
        return expression;                                                                                             \
    }

COLUMN(gpu_key, text(GPU(key)))
COLUMN(gpu_name, text(GPU(name)))
COLUMN(gpu_memory, number((double)GPU(memory_bytes), 1))
COLUMN(gpu_memory_rate, rate(GPU(memory_bytes_per_s), 0))
COLUMN(gpu_bf16, rate(GPU(peak_flops_per_s)[DTP_BF16], 0))
COLUMN(gpu_fp8, rate(GPU(peak_flops_per_s)[DTP_FP8], 0))
COLUMN(gpu_link, text(dtp_link_text(GPU(link))))
COLUMN(gpu_link_rate, rate(GPU(link_bytes_per_s), 0))
COLUMN(gpu_pcie_rate, rate(GPU(pcie_bytes_per_s), 0))
COLUMN(gpu_power, rate(GPU(power_w), 0))
static struct cell gpu_price(const struct dtp_catalog *catalog, size_t row)
{
    const struct dtp_price *price = dtp_catalog_price(catalog, GPU(key));
    return number(price ? price->typical : NAN, 2);
}

COLUMN(machine_key, text(MACHINE(key)))
COLUMN(machine_name, text(MACHINE(name)))
COLUMN(machine_gpu, text(MACHINE(gpu_key)[0] ? MACHINE(gpu_key) : "any"))
COLUMN(machine_gpus, number(MACHINE(gpus), 0))
COLUMN(machine_nics, number(MACHINE(nics), 0))
COLUMN(machine_network, rate(MACHINE(network_bytes_per_s), 1))
COLUMN(machine_memory, rate((double)MACHINE(host_memory_bytes), 0))
COLUMN(machine_nvme, rate((double)MACHINE(nvme_bytes), 1))

COLUMN(model_name, text(MODEL(name)))
COLUMN(model_params, number((double)dtp_transformer_count(&catalog->models[row]).total, 3))
COLUMN(model_layers, number((double)MODEL(layers), 0))
COLUMN(model_hidden, number((double)MODEL(hidden), 0))
COLUMN(model_heads, number((double)MODEL(heads), 0))
COLUMN(model_kv_heads, number((double)MODEL(kv_heads), 0))
COLUMN(model_ffn, number((double)MODEL(ffn), 0))
COLUMN(model_vocab, number((double)MODEL(vocab), 0))
COLUMN(model_sequence, rate((double)MODEL(max_sequence), 0))

static const struct column gpu_columns[] = {
    {"gpu_key", {"--gpu", ""}, 'l', 1, gpu_key},
    {"memory_bytes", {"memory", "GiB"}, 'r', 0x1p30, gpu_memory},
    {"memory_bytes_per_s", {"memory", "GB/s"}, 'r', 1e9, gpu_memory_rate},
    {"bf16_flops_per_s", {"bf16", "TFLOP/s"}, 'r', 1e12, gpu_bf16},
    {"fp8_flops_per_s", {"fp8", "TFLOP/s"}, 'r', 1e12, gpu_fp8},
    {"link", {"link", ""}, 'l', 1, gpu_link},
    {"link_bytes_per_s", {"link", "GB/s"}, 'r', 1e9, gpu_link_rate},
    {"pcie_bytes_per_s", {"PCIe", "GB/s"}, 'r', 1e9, gpu_pcie_rate},
    {"power_w", {"power", "W"}, 'r', 1, gpu_power},
    {"usd_per_gpu_hour", {"price", "$/h"}, 'r', 1, gpu_price},
    {"name", {"name", ""}, 'l', 1, gpu_name},
};
static const struct column machine_columns[] = {
    {"machine_key", {"--machine", ""}, 'l', 1, machine_key},
    {"gpu_key", {"GPU", ""}, 'l', 1, machine_gpu},
    {"gpus_count", {"GPUs", ""}, 'r', 1, machine_gpus},
    {"nics_count", {"NICs", ""}, 'r', 1, machine_nics},
    {"network_bytes_per_s", {"network", "GB/s"}, 'r', 1e9, machine_network},
    {"host_memory_bytes", {"host", "GiB"}, 'r', 0x1p30, machine_memory},
    {"nvme_bytes", {"NVMe", "TB"}, 'r', 1e12, machine_nvme},
    {"name", {"name", ""}, 'l', 1, machine_name},
};
static const struct column model_columns[] = {
    {"name", {"--model", ""}, 'l', 1, model_name},
    {"params_count", {"parameters", "10^9"}, 'r', 1e9, model_params},
    {"layers_count", {"layers", ""}, 'r', 1, model_layers},
    {"hidden", {"hidden", ""}, 'r', 1, model_hidden},
    {"heads_count", {"heads", ""}, 'r', 1, model_heads},
    {"kv_heads_count", {"kv heads", ""}, 'r', 1, model_kv_heads},
    {"ffn", {"ffn", ""}, 'r', 1, model_ffn},
    {"vocab_count", {"vocab", ""}, 'r', 1, model_vocab},
    {"max_sequence_tokens", {"longest", "sequence"}, 'r', 1, model_sequence},
};

struct view {
    const struct column *columns;
    size_t column_count, row_count;
    const char *notes;
};

static struct view view_of(const struct dtp_catalog *catalog, enum dtp_catalog_table table)
{
    switch (table) {
    case DTP_CATALOG_GPUS:
        return (struct view){gpu_columns, sizeof gpu_columns / sizeof *gpu_columns, catalog->gpu_count,
                             "Peaks are dense, link and PCIe rates are of one direction; '-' means there is none. Each "
                             "figure's source: dtplan catalog gpus NAME."};
    case DTP_CATALOG_MACHINES:
        return (struct view){machine_columns, sizeof machine_columns / sizeof *machine_columns, catalog->machine_count,
                             "The network is the whole node's, one direction. Each figure's source: dtplan catalog "
                             "machines NAME."};
    case DTP_CATALOG_MODELS: break;
    }
    return (struct view){model_columns, sizeof model_columns / sizeof *model_columns, catalog->model_count,
                         "A Hugging Face config.json is a model too: --model path/to/config.json."};
}

static void list_text(const struct dtp_catalog *catalog, const struct view *view, const struct dtp_page *page)
{
    struct dtp_grid grid;
    char alignment[DTP_GRID_MAX_COLUMNS + 1] = "";
    for (size_t i = 0; i < view->column_count; i++)
        alignment[i] = view->columns[i].alignment;
    dtp_grid_create(&grid, alignment);
    for (int line = 0; line < 2; line++) {
        dtp_grid_row(&grid, DTP_INK_BOLD);
        for (size_t i = 0; i < view->column_count; i++)
            dtp_grid_cell(&grid, "%s", view->columns[i].words[line]);
    }
    for (size_t row = 0; row < view->row_count; row++) {
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        for (size_t i = 0; i < view->column_count; i++) {
            struct cell cell = view->columns[i].value(catalog, row);
            if (cell.text)
                dtp_grid_cell(&grid, "%s", cell.text);
            else if (isnan(cell.number))
                dtp_grid_cell(&grid, "-");
            else
                dtp_grid_cell(&grid, "%.*f", cell.digits, cell.number / view->columns[i].scale);
        }
    }
    dtp_grid_end(&grid, page, 0);
    fputc('\n', page->file);
    dtp_page_wrap(page, 0, 0, view->notes);
}

static void list_csv(const struct dtp_catalog *catalog, const struct view *view, FILE *file)
{
    for (size_t i = 0; i < view->column_count; i++)
        fprintf(file, "%s%s", i ? "," : "", view->columns[i].key);
    fputc('\n', file);
    for (size_t row = 0; row < view->row_count; row++) {
        for (size_t i = 0; i < view->column_count; i++) {
            struct cell cell = view->columns[i].value(catalog, row);
            if (i)
                fputc(',', file);
            if (cell.text)
                dtp_table_write_field(file, cell.text);
            else if (!isnan(cell.number))
                fprintf(file, "%.15g", cell.number);
        }
        fputc('\n', file);
    }
}

static json_t *text_value(const char *value)
{
    json_t *string = json_string(value);
    return string ? string : json_null(); /* not UTF-8 */
}

static json_t *cell_value(const struct cell *cell)
{
    if (cell->text)
        return text_value(cell->text);
    if (!isfinite(cell->number))
        return json_null();
    if (cell->number == floor(cell->number) && fabs(cell->number) < 9e15)
        return json_integer((json_int_t)cell->number);
    return json_real(cell->number);
}

static enum dtp_status list_json(const struct dtp_catalog *catalog, const struct view *view, FILE *file,
                                 struct dtp_faults *faults)
{
    json_t *rows = json_array();
    for (size_t row = 0; row < view->row_count; row++) {
        json_t *object = json_object();
        for (size_t i = 0; i < view->column_count; i++) {
            struct cell cell = view->columns[i].value(catalog, row);
            json_object_set_new(object, view->columns[i].key, cell_value(&cell));
        }
        json_array_append_new(rows, object);
    }
    return dtp_json_dump_exact(rows, file, faults);
}

enum dtp_status dtp_report_catalog(const struct dtp_catalog *catalog, enum dtp_catalog_table table,
                                   enum dtp_catalog_form form, const struct dtp_page *page, struct dtp_faults *faults)
{
    struct view view = view_of(catalog, table);
    if (form == DTP_CATALOG_JSON)
        return list_json(catalog, &view, page->file, faults);
    if (form == DTP_CATALOG_CSV)
        list_csv(catalog, &view, page->file);
    else
        list_text(catalog, &view, page);
    return DTP_OK;
}

/* ---- entries: every figure with its source ---------------------------------------------------------------------- */

/* Key of the named entry, or NULL after a fault. Models have dimensions instead of figures: *model. */
static const char *find_entry(const struct dtp_catalog *catalog, enum dtp_catalog_table table, const char *name,
                              const struct dtp_transformer **model, struct dtp_faults *faults)
{
    *model = NULL;
    if (table == DTP_CATALOG_GPUS) {
        const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, name, NULL, 0, faults);
        return gpu ? gpu->key : NULL;
    }
    if (table == DTP_CATALOG_MACHINES) {
        const struct dtp_machine *machine = dtp_catalog_machine(catalog, name, NULL, 0, faults);
        return machine ? machine->key : NULL;
    }
    *model = dtp_catalog_model(catalog, name, NULL, 0, faults);
    return *model ? (*model)->name : NULL;
}

/* One figure, from the provenance table, from the prices or computed from a model's shape. */
struct figure {
    const char *key, *quantity, *text, *unit, *kind, *source;
};

struct sink {
    enum dtp_catalog_form form;
    struct dtp_grid grid;
    json_t *rows;
    FILE *file;
};

static void put_figure(struct sink *sink, const struct figure *f)
{
    const char *const fields[] = {f->key, f->quantity, f->text, f->unit, f->kind, f->source};
    static const char *const names[] = {"key", "quantity", "value", "unit", "kind", "source"};
    const size_t count = sizeof fields / sizeof *fields;
    json_t *object = NULL;
    if (sink->form == DTP_CATALOG_JSON)
        json_array_append_new(sink->rows, object = json_object());
    else if (sink->form == DTP_CATALOG_TEXT)
        dtp_grid_row(&sink->grid, DTP_INK_PLAIN);
    for (size_t i = 0; i < count; i++) {
        if (sink->form == DTP_CATALOG_JSON) {
            json_object_set_new(object, names[i], text_value(fields[i]));
        } else if (sink->form == DTP_CATALOG_CSV) {
            dtp_table_write_field(sink->file, fields[i]);
            fputc(i + 1 < count ? ',' : '\n', sink->file);
        } else if (i > 0) {
            dtp_grid_cell(&sink->grid, "%s", fields[i]);
        }
    }
}

static void put_number(struct sink *sink, const char *key, const char *quantity, double value, const char *unit,
                       const char *kind, const char *source)
{
    char written[32];
    snprintf(written, sizeof written, "%.15g", value);
    put_figure(sink, &(struct figure){key, quantity, written, unit, kind, source});
}

#define PLAIN_DIMENSIONS 10 /* of all models */

static void put_model(struct sink *sink, const struct dtp_transformer *m)
{
    const struct dtp_parameter_count count = dtp_transformer_count(m);
    const struct {
        const char *quantity;
        uint64_t value;
        const char *unit;
    } dimensions[] =
        {
            {"layers", m->layers, "1"},
            {"hidden", m->hidden, "1"},
            {"heads", m->heads, "1"},
            {"kv_heads", m->kv_heads, "1"},
            {"head_dim", m->head_dim, "1"},
            {"ffn", m->ffn, "1"},
            {"vocab", m->vocab, "tokens"},
            {"positions", m->positions, "tokens"},
            {"max_sequence", m->max_sequence, "tokens"},
            {"sliding_window", m->sliding_window, "tokens"},
            {"experts", m->experts, "1"},
            {"experts_per_token", m->experts_per_token, "1"},
            {"expert_ffn", m->expert_ffn, "1"},
            {"shared_expert_ffn", m->shared_expert_ffn, "1"},
            {"dense_layers", m->dense_layers, "1"},
            {"q_latent", m->q_latent, "1"},
            {"kv_latent", m->kv_latent, "1"},
            {"rope_head_dim", m->rope_head_dim, "1"},
            {"value_head_dim", m->value_head_dim, "1"},
        },
      parts[] = {
          {"embedding", count.embedding, "parameters"},
          {"position", count.position, "parameters"},
          {"block", count.block, "parameters"},
          {"expert_block", count.expert_block, "parameters"},
          {"final_norm", count.final_norm, "parameters"},
          {"active", count.active, "parameters"},
          {"head", count.head, "parameters"},
          {"total", count.total, "parameters"},
      };
    const char *table = m->experts ? "models_experts.csv" : "models.csv";
    for (size_t i = 0; i < sizeof dimensions / sizeof *dimensions; i++)
        if (i < PLAIN_DIMENSIONS || dimensions[i].value) /* what few models have is said of those alone */
            put_number(sink, m->name, dimensions[i].quantity, (double)dimensions[i].value, dimensions[i].unit,
                       "published", table);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        put_number(sink, m->name, parts[i].quantity, (double)parts[i].value, parts[i].unit, "derived",
                   "counted from the shape");
}

static void put_entry(struct sink *sink, const struct dtp_catalog *catalog, const char *key)
{
    for (size_t i = 0; i < catalog->provenance_count; i++) {
        const struct dtp_provenance *p = &catalog->provenance[i];
        if (strcmp(p->key, key) == 0)
            put_figure(sink, &(struct figure){p->key, p->quantity, p->text, p->unit, p->kind, p->source});
    }
    const struct dtp_price *price = dtp_catalog_price(catalog, key);
    if (!price)
        return;
    put_number(sink, key, "price_low", price->low, "usd_per_gpu_hour", price->kind, price->source);
    put_number(sink, key, "price_typical", price->typical, "usd_per_gpu_hour", price->kind, price->source);
    put_number(sink, key, "price_high", price->high, "usd_per_gpu_hour", price->kind, price->source);
}

/* For people, one table an entry under its name. */
static void print_entry(struct sink *sink, const char *key, bool first, const struct dtp_page *page)
{
    fputs(first ? "" : "\n", page->file);
    dtp_page_print(page, DTP_INK_BOLD, "%s\n", key);
    dtp_grid_print(&sink->grid, page, 2);
    dtp_grid_destroy(&sink->grid);
}

enum dtp_status dtp_report_catalog_entries(const struct dtp_catalog *catalog, enum dtp_catalog_table table,
                                           enum dtp_catalog_form form, const char *const *names, size_t count,
                                           const struct dtp_page *page, struct dtp_faults *faults)
{
    struct sink sink = {.form = form, .file = page->file, .rows = form == DTP_CATALOG_JSON ? json_array() : NULL};
    enum dtp_status status = DTP_OK;
    bool first = true;
    if (form == DTP_CATALOG_CSV)
        fputs("key,quantity,value,unit,kind,source\n", page->file);
    for (size_t i = 0; i < count; i++) {
        const struct dtp_transformer *model;
        const char *key = find_entry(catalog, table, names[i], &model, faults);
        if (!key) {
            status = DTP_BAD_INPUT;
            continue;
        }
        if (form == DTP_CATALOG_TEXT)
            dtp_grid_create(&sink.grid, "lrlll");
        if (model)
            put_model(&sink, model);
        else
            put_entry(&sink, catalog, key);
        if (form == DTP_CATALOG_TEXT)
            print_entry(&sink, key, first, page);
        first = false;
    }
    if (form == DTP_CATALOG_JSON) {
        enum dtp_status dumped = dtp_json_dump_exact(sink.rows, page->file, faults);
        status = dtp_worse(status, dumped);
    }
    return status;
}
