#include "record/catalog_report.h"

#include "base/append.h"
#include "base/table.h"
#include "page/json_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MATMUL_FRACTION "matmul_fraction"

/* One row, of constants.def or of the catalogue's GPUs. */
struct constant {
    char name[64], where[64];
    double value;
    const char *unit, *kind, *what, *source, *data;
    char runs[320];
    double otherwise;
    const char *otherwise_source;
    struct dtp_constant_effect effect;
};

static size_t base_name_at(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Names of the sources, with "; " between. */
static void write_sources(unsigned runs, char *out, size_t bytes)
{
    *out = '\0';
    for (int i = 0; i < DTP_RUN_SOURCE_COUNT; i++)
        if (runs >> i & 1)
            dtp_append_part(out, bytes, "; ", "%s", dtp_run_source_text((enum dtp_run_source)i));
}

static void of_model(enum dtp_constant which, const struct dtp_constant_effects *effects, struct constant *out)
{
    const struct dtp_calibration_row *row = &dtp_calibration_rows[which];
    *out = (struct constant){.value = row->value,
                             .unit = row->unit,
                             .kind = dtp_constant_kind_text(row->kind),
                             .what = row->what,
                             .source = row->source,
                             .data = row->data,
                             .effect = effects->constants[which]};
    snprintf(out->name, sizeof out->name, "%s", row->name);
    snprintf(out->where, sizeof out->where, DTP_CONSTANTS_FILE ":%d", row->line);
    write_sources(row->runs, out->runs, sizeof out->runs);
    out->otherwise = dtp_constant_otherwise(which, &out->otherwise_source);
}

static const char *quantity_words(void)
{
    size_t count;
    const struct dtp_quantity *quantities = dtp_catalog_gpu_quantities(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(quantities[i].quantity, MATMUL_FRACTION) == 0)
            return quantities[i].words;
    return "";
}

static void of_gpu(const struct dtp_catalog *catalog, size_t gpu, const struct dtp_constant_effects *effects,
                   struct constant *out)
{
    const char *key = catalog->gpus[gpu].key;
    const struct dtp_provenance *of = dtp_catalog_provenance(catalog, key, MATMUL_FRACTION);
    *out = (struct constant){.value = catalog->gpus[gpu].matmul_fraction,
                             .unit = "1",
                             .kind = of ? of->kind : "",
                             .what = quantity_words(),
                             .source = of ? of->source : "",
                             .data = "",
                             .otherwise = NAN,
                             .where = "gpus.csv",
                             .effect = effects->matmul_fractions[gpu]};
    snprintf(out->name, sizeof out->name, MATMUL_FRACTION ":%s", key);
}

static size_t constant_count(const struct dtp_catalog *catalog)
{
    return DTP_CONSTANT_COUNT + catalog->gpu_count;
}

static void constant_at(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects, size_t at,
                        struct constant *out)
{
    if (at < DTP_CONSTANT_COUNT)
        of_model((enum dtp_constant)at, effects, out);
    else
        of_gpu(catalog, at - DTP_CONSTANT_COUNT, effects, out);
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

#define NAME_COLUMNS 36
#define INDENT 4

static void print_constant(const struct constant *c, const struct dtp_page *page)
{
    char value[48];
    snprintf(value, sizeof value, "%.4g%s%s", c->value, strcmp(c->unit, "1") == 0 ? "" : " ",
             strcmp(c->unit, "1") == 0 ? "" : c->unit);
    fprintf(page->file, "%-*s %14s  %-9s %6zu %6zu\n", NAME_COLUMNS, c->name, value, c->kind, c->effect.step_runs,
            c->effect.memory_runs);
    dtp_page_ink(page, DTP_INK_DIM);
    dtp_page_say(page, INDENT, INDENT, "%s; %s%s%s%s", c->what, c->source, *c->data ? " [" : "", c->data,
                 *c->data ? "]" : "");
    dtp_page_ink(page, DTP_INK_PLAIN);
}

/* What a reader asks first: how much of this is a fit, and what nobody has tested. */
static void print_summary(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects,
                          const struct dtp_page *page)
{
    static const char *const kinds[] = {"fitted", "measured", "published", "library", "recalled", "assumed"};
    size_t of_kind[sizeof kinds / sizeof *kinds] = {0}, step = 0, memory = 0, none = 0, count = constant_count(catalog);
    char line[400] = "";
    for (size_t i = 0; i < count; i++) {
        struct constant c;
        constant_at(catalog, effects, i, &c);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            of_kind[k] += strcmp(c.kind, kinds[k]) == 0;
        *(c.effect.step_runs ? &step : c.effect.memory_runs ? &memory : &none) += 1;
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        dtp_append_part(line, sizeof line, ", ", "%zu %s", of_kind[k], kinds[k]);
    fputc('\n', page->file);
    dtp_page_say(
        page, 0, 0,
        "%zu constants: %s. %zu move a step time, %zu memory alone, %zu no run that was measured: those are untested.",
        count, line, step, memory, none);
    dtp_page_wrap(page, 0, 0,
                  "fitted: so that whole runs come out; measured: off profiles, single operations or the driver; "
                  "published: by others; library: in its source; recalled: by others, from memory. In brackets the "
                  "data that are kept. Other figures of GPUs and machines: dtplan catalog gpus|machines NAME. What "
                  "each fit is worth: dtplan backtest --leave-one-out.");
}

static void print_text(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects,
                       const struct dtp_constants_counted *counted, const struct dtp_page *page)
{
    char tables[300] = "";
    dtp_page_print(page, DTP_INK_BOLD, "CONSTANTS OF THE MODEL\n");
    for (size_t i = 0; i < counted->table_count; i++)
        dtp_append_part(tables, sizeof tables, ", ", "%s", counted->tables[i] + base_name_at(counted->tables[i]));
    dtp_page_say(page, 0, 0,
                 "Moved: runs, of %zu, whose step time or memory is predicted to differ by more than %.1f %% where the "
                 "constant is made %.0f %% larger, by %s; of %s",
                 effects->runs, 100 * DTP_CONSTANT_MOVES, 100 * (DTP_CONSTANT_TIMES - 1),
                 strcmp(counted->fidelity, "closed") == 0 ? "the closed form" : "simulation", tables);
    dtp_page_ink(page, DTP_INK_BOLD);
    fprintf(page->file, "\n%-*s %14s  %-9s %6s %6s\n", NAME_COLUMNS, "", "", "", "moved:", "");
    fprintf(page->file, "%-*s %14s  %-9s %6s %6s\n", NAME_COLUMNS, "constant", "value", "kind", "step", "memory");
    dtp_page_ink(page, DTP_INK_PLAIN);
    for (size_t i = 0; i < constant_count(catalog); i++) {
        struct constant c;
        constant_at(catalog, effects, i, &c);
        print_constant(&c, page);
    }
    print_summary(catalog, effects, page);
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static void write_number(double value, FILE *file)
{
    if (isfinite(value))
        fprintf(file, ",%.15g", value);
    else
        fputc(',', file);
}

static void write_csv(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects, FILE *file)
{
    fputs("name,value,unit,kind,what,where,source,data,run_sources,otherwise,otherwise_source,step_moved_runs,memory_"
          "moved_runs,runs\n",
          file);
    for (size_t i = 0; i < constant_count(catalog); i++) {
        struct constant c;
        constant_at(catalog, effects, i, &c);
        const char *const texts[] = {c.unit, c.kind, c.what, c.where, c.source, c.data, c.runs};
        dtp_table_write_field(file, c.name);
        write_number(c.value, file);
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            fputc(',', file);
            dtp_table_write_field(file, texts[k]);
        }
        write_number(c.otherwise, file);
        fputc(',', file);
        dtp_table_write_field(file, c.otherwise_source ? c.otherwise_source : "");
        fprintf(file, ",%zu,%zu,%zu\n", c.effect.step_runs, c.effect.memory_runs, effects->runs);
    }
}

static json_t *sources_array(unsigned runs)
{
    json_t *array = json_array();
    for (int i = 0; i < DTP_RUN_SOURCE_COUNT; i++)
        if (runs >> i & 1)
            json_array_append_new(array, json_string(dtp_run_source_text((enum dtp_run_source)i)));
    return array;
}

static json_t *constant_object(const struct constant *c, unsigned runs)
{
    json_t *object = json_object();
    json_object_set_new(object, "name", dtp_json_text(c->name));
    json_object_set_new(object, "value", dtp_json_real(c->value));
    json_object_set_new(object, "unit", dtp_json_text(c->unit));
    json_object_set_new(object, "kind", dtp_json_text(c->kind));
    json_object_set_new(object, "what", dtp_json_text(c->what));
    json_object_set_new(object, "where", dtp_json_text(c->where));
    json_object_set_new(object, "source", dtp_json_text(c->source));
    json_object_set_new(object, "data", dtp_json_text(c->data));
    json_object_set_new(object, "run_sources", sources_array(runs));
    json_object_set_new(object, "otherwise", dtp_json_real(c->otherwise));
    json_object_set_new(object, "otherwise_source", dtp_json_text(c->otherwise_source));
    json_object_set_new(object, "step_moved_count", dtp_json_whole(c->effect.step_runs));
    json_object_set_new(object, "memory_moved_count", dtp_json_whole(c->effect.memory_runs));
    return object;
}

static enum dtp_status write_json(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects,
                                  const struct dtp_constants_counted *counted, FILE *file, struct dtp_faults *faults)
{
    json_t *root = json_object(), *tables = json_array(), *constants = json_array();
    for (size_t i = 0; i < counted->table_count; i++)
        json_array_append_new(tables, dtp_json_text(counted->tables[i] + base_name_at(counted->tables[i])));
    for (size_t i = 0; i < constant_count(catalog); i++) {
        struct constant c;
        constant_at(catalog, effects, i, &c);
        json_array_append_new(constants,
                              constant_object(&c, i < DTP_CONSTANT_COUNT ? dtp_calibration_rows[i].runs : 0));
    }
    json_object_set_new(root, "schema", json_string("dtplan.catalog_constants/1"));
    json_object_set_new(root, "fidelity", json_string(counted->fidelity));
    json_object_set_new(root, "tables", tables);
    json_object_set_new(root, "runs_count", dtp_json_whole(effects->runs));
    json_object_set_new(root, "times", dtp_json_real(DTP_CONSTANT_TIMES));
    json_object_set_new(root, "moved_fraction", dtp_json_real(DTP_CONSTANT_MOVES));
    json_object_set_new(root, "constants", constants);
    return dtp_json_dump(root, file, faults);
}

enum dtp_status dtp_report_constants(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects,
                                     const struct dtp_constants_counted *counted, enum dtp_catalog_form form,
                                     const struct dtp_page *page, struct dtp_faults *faults)
{
    if (form == DTP_CATALOG_JSON)
        return write_json(catalog, effects, counted, page->file, faults);
    if (form == DTP_CATALOG_CSV)
        write_csv(catalog, effects, page->file);
    else
        print_text(catalog, effects, counted, page);
    return DTP_OK;
}
