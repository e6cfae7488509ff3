#include "machine/catalog_rows.h"

#include "machine/catalog_quantity.h"
#include "net/models.h"
#include "base/nearest.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define KEY_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_+"

/* A file being added, and in it the row being read. */
struct reader {
    const struct dtp_table *table;
    size_t row;
    struct dtp_catalog *catalog;
    struct dtp_faults *faults;
    enum dtp_status status; /* of the file */
    bool row_bad;
    bool check_references;
    /* Of each GPU or machine: quantities this file has given so far (bits of the quantity list). Entries from
     * `known_count` on are new in this file. */
    uint32_t given[DTP_CATALOG_MAX_ENTRIES];
    size_t known_count;
    size_t lines[DTP_CATALOG_MAX_ENTRIES]; /* where this file first names the entry */
};

#define REFUSE_AT(reader, line, ...)                                                                                   \
    ((reader)->row_bad = true, (reader)->status = DTP_BAD_INPUT,                                                       \
     (void)dtp_fault((reader)->faults, DTP_BAD_INPUT, dtp_table_name((reader)->table), line, __VA_ARGS__))
#define REFUSE(reader, ...) REFUSE_AT(reader, dtp_table_line((reader)->table, (reader)->row), __VA_ARGS__)

/* ---- items ------------------------------------------------------------------------------------------------------ */

size_t dtp_catalog_room(size_t count)
{
    size_t room = 1;
    while (room < count)
        room *= 2;
    return room;
}

/* Makes room for one more item, zeroed, behind the `count` of an array. Returns the array, moved or not, or NULL with
 * the old one intact: refused, or out of memory. */
static void *grow(struct reader *reader, void *array, size_t count, size_t most, size_t item_bytes)
{
    if (count >= most) {
        REFUSE(reader, "more than %zu entries in one catalogue", most);
        return NULL;
    }
    bool room = count > 0 && dtp_catalog_room(count) > count;
    void *larger = room ? array : realloc(array, dtp_catalog_room(count + 1) * item_bytes);
    if (larger)
        memset((char *)larger + count * item_bytes, 0, item_bytes);
    else
        reader->status = dtp_fault(reader->faults, DTP_ENVIRONMENT, dtp_table_name(reader->table), 0, "out of memory");
    return larger;
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

static const char *field(const struct reader *reader, const char *column)
{
    return dtp_table_text(reader->table, reader->row, dtp_table_column(reader->table, column));
}

/* Copies a field that must be there and be fit to print. */
static void read_text(struct reader *reader, const char *column, char *out, size_t bytes)
{
    const char *text = field(reader, column);
    size_t length = strlen(text);
    if (!length || length >= bytes) {
        REFUSE(reader, "%s has %zu bytes; 1 to %zu are meant", column, length, bytes - 1);
        return;
    }
    if (dtp_printable_length(text) < length) {
        REFUSE(reader, "byte %zu of %s is a control character or not UTF-8", dtp_printable_length(text) + 1, column);
        return;
    }
    memcpy(out, text, length + 1);
}

/* Keys are typed on command lines: no spaces, nothing a shell would take for its own. */
static bool read_key(struct reader *reader, const char *column, char *out, size_t bytes)
{
    const char *text = field(reader, column);
    size_t length = strlen(text);
    if (!length || length >= bytes)
        REFUSE(reader, "%s has %zu bytes; 1 to %zu are meant", column, length, bytes - 1);
    else if (*text == '-' || strspn(text, KEY_CHARACTERS) != length)
        REFUSE(reader, "%s is '%.40s'; letters, digits, '.', '-', '_' and '+' are meant", column, text);
    else {
        memcpy(out, text, length + 1);
        return true;
    }
    return false;
}

static void read_kind(struct reader *reader, char *out, size_t bytes)
{
    static const char *const kinds[] = {"datasheet", "measured", "assumed"};
    const char *text = field(reader, "kind");
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (!strcmp(text, kinds[i]))
            memcpy(out, kinds[i], strlen(kinds[i]) + 1 < bytes ? strlen(kinds[i]) + 1 : bytes);
    if (!*out)
        REFUSE(reader, "kind is '%.40s'; datasheet, measured or assumed is meant", text);
}

/* ---- GPUs and machines ------------------------------------------------------------------------------------------ */

/* What the two long tables differ in. */
struct long_table {
    const char *key_column, *words;
    const struct dtp_quantity_list *list;
    bool of_gpus;
};

static const struct long_table gpu_table = {"gpu_key", "GPU", &dtp_gpu_quantity_list, true};
static const struct long_table machine_table = {"machine_key", "machine", &dtp_machine_quantity_list, false};

static size_t entry_count(const struct dtp_catalog *catalog, const struct long_table *kind)
{
    return kind->of_gpus ? catalog->gpu_count : catalog->machine_count;
}

static void *entry_at(const struct dtp_catalog *catalog, const struct long_table *kind, size_t index)
{
    return kind->of_gpus ? (void *)&catalog->gpus[index] : (void *)&catalog->machines[index];
}

/* Borrowed; until the entry changes. */
static char *entry_key(const struct dtp_catalog *catalog, const struct long_table *kind, size_t index)
{
    return kind->of_gpus ? catalog->gpus[index].key : catalog->machines[index].key;
}

/* Index of the entry with that key, or the count. */
static size_t find_entry(const struct dtp_catalog *catalog, const struct long_table *kind, const char *key,
                         size_t guess)
{
    size_t count = entry_count(catalog, kind);
    if (guess < count && !strcmp(entry_key(catalog, kind, guess), key))
        return guess; /* the rows of an entry usually stand together */
    for (size_t i = 0; i < count; i++)
        if (dtp_names_equal(entry_key(catalog, kind, i), key))
            return i;
    return count;
}

static bool append_entry(struct reader *reader, const struct long_table *kind, const char *key)
{
    struct dtp_catalog *catalog = reader->catalog;
    size_t count = entry_count(catalog, kind), most = DTP_CATALOG_MAX_ENTRIES;
    void *larger = kind->of_gpus ? grow(reader, catalog->gpus, count, most, sizeof *catalog->gpus)
                                 : grow(reader, catalog->machines, count, most, sizeof *catalog->machines);
    if (!larger)
        return false;
    if (kind->of_gpus) {
        catalog->gpus = larger;
        catalog->gpu_count++;
    } else {
        catalog->machines = larger;
        catalog->machine_count++;
    }
    memcpy(entry_key(catalog, kind, count), key, strlen(key) + 1);
    return true;
}

/* Finds the entry, or makes it when it is new; false when that is refused. */
static bool demand_entry(struct reader *reader, const struct long_table *kind, const char *key, size_t *index)
{
    const struct long_table *other = kind->of_gpus ? &machine_table : &gpu_table;
    *index = find_entry(reader->catalog, kind, key, *index);
    if (*index < entry_count(reader->catalog, kind))
        return true;
    if (find_entry(reader->catalog, other, key, 0) < entry_count(reader->catalog, other)) {
        REFUSE(reader, "'%s' is already the key of a %s", key, other->words);
        return false;
    }
    return append_entry(reader, kind, key);
}

static void refuse_quantity(struct reader *reader, const struct long_table *kind, const char *quantity)
{
    char nearest_text[256];
    struct dtp_nearest nearest;
    dtp_nearest_begin(&nearest, quantity);
    for (size_t i = 0; i < kind->list->count; i++)
        dtp_nearest_offer(&nearest, kind->list->quantities[i].quantity);
    dtp_nearest_text(&nearest, nearest_text, sizeof nearest_text);
    REFUSE(reader, "unknown quantity '%.40s' of a %s%s%s", quantity, kind->words, *nearest_text ? "; " : "",
           nearest_text);
}

static void check_gpu_reference(struct reader *reader, const char *key)
{
    if (reader->check_references && !dtp_catalog_gpu(reader->catalog, key, dtp_table_name(reader->table),
                                                     dtp_table_line(reader->table, reader->row), reader->faults)) {
        reader->row_bad = true;
        reader->status = DTP_BAD_INPUT;
    }
}

/* Keeps a machine's gpu_key as the catalogue spells it, so that it can be compared with strcmp later. */
static void resolve_gpu_reference(struct reader *reader, struct dtp_machine *machine)
{
    check_gpu_reference(reader, machine->gpu_key);
    const struct dtp_gpu *gpu = dtp_catalog_gpu(reader->catalog, machine->gpu_key, NULL, 0, NULL);
    if (gpu)
        memcpy(machine->gpu_key, gpu->key, sizeof machine->gpu_key);
}

static void keep_provenance(struct reader *reader, const struct dtp_provenance *figure, bool may_exist)
{
    struct dtp_catalog *catalog = reader->catalog;
    size_t at = may_exist ? 0 : catalog->provenance_count;
    while (at < catalog->provenance_count && (strcmp(catalog->provenance[at].key, figure->key) ||
                                              strcmp(catalog->provenance[at].quantity, figure->quantity)))
        at++;
    if (at == catalog->provenance_count) {
        void *larger = grow(reader, catalog->provenance, at, SIZE_MAX, sizeof *catalog->provenance);
        if (!larger)
            return;
        catalog->provenance = larger;
        catalog->provenance_count++;
    }
    catalog->provenance[at] = *figure;
}

static void store_figure(struct reader *reader, const struct long_table *kind, size_t index, int quantity,
                         struct dtp_provenance *figure)
{
    const struct dtp_quantity_field *target = &kind->list->fields[quantity];
    char expected[96];
    const char *meant = dtp_quantity_store(target, figure->text, entry_at(reader->catalog, kind, index), &figure->value,
                                           expected, sizeof expected);
    if (meant) {
        REFUSE(reader, "%s of %s is '%.40s'; %s is meant", figure->quantity, figure->key, figure->text, meant);
        return;
    }
    if (target->type == DTP_QUANTITY_GPU_KEY)
        resolve_gpu_reference(reader, &reader->catalog->machines[index]);
    keep_provenance(reader, figure, index < reader->known_count);
}

/* The columns that do not need the entry. Returns the index of the quantity, -1 when it is unknown. */
static int read_figure(struct reader *reader, const struct long_table *kind, struct dtp_provenance *figure)
{
    const char *quantity = field(reader, "quantity"), *unit = field(reader, "unit");
    int index = dtp_quantity_index(kind->list, quantity);
    if (index < 0)
        refuse_quantity(reader, kind, quantity);
    else if (strcmp(unit, kind->list->quantities[index].unit))
        REFUSE(reader, "the unit of %s is '%.40s'; '%s' is meant", quantity, unit, kind->list->quantities[index].unit);
    else {
        memcpy(figure->quantity, quantity, strlen(quantity) + 1);
        memcpy(figure->unit, unit, strlen(unit) + 1);
    }
    read_text(reader, "value", figure->text, sizeof figure->text);
    read_kind(reader, figure->kind, sizeof figure->kind);
    read_text(reader, "source", figure->source, sizeof figure->source);
    return index;
}

static void read_long_row(struct reader *reader, const struct long_table *kind, size_t *index)
{
    struct dtp_provenance figure = {0};
    bool key_good = read_key(reader, kind->key_column, figure.key, sizeof figure.key);
    int quantity = read_figure(reader, kind, &figure);
    /* A row with a bad figure still names its entry and its quantity: else more would seem to be missing. */
    if (!key_good || !demand_entry(reader, kind, figure.key, index))
        return;
    if (!reader->lines[*index])
        reader->lines[*index] = dtp_table_line(reader->table, reader->row);
    memcpy(figure.key, entry_key(reader->catalog, kind, *index), sizeof figure.key);
    if (quantity < 0)
        return;
    if (reader->given[*index] >> quantity & 1)
        REFUSE(reader, "%s of %s is given twice in this file", kind->list->quantities[quantity].quantity, figure.key);
    reader->given[*index] |= 1u << quantity;
    if (!reader->row_bad)
        store_figure(reader, kind, *index, quantity, &figure);
}

static void check_gpu(struct reader *reader, size_t index)
{
    const struct dtp_gpu *gpu = &reader->catalog->gpus[index];
    if ((gpu->link == DTP_LINK_NONE) != (gpu->link_bytes_per_s == 0))
        REFUSE_AT(reader, reader->lines[index], "GPU '%s': link is %s, but link_bytes_per_s is %g", gpu->key,
                  dtp_link_text(gpu->link), gpu->link_bytes_per_s);
}

static void check_machine(struct reader *reader, size_t index)
{
    const struct dtp_machine *machine = &reader->catalog->machines[index];
    size_t line = reader->lines[index];
    if ((machine->network_bytes_per_s > 0) != (machine->nics > 0))
        REFUSE_AT(reader, line, "machine '%s': network_bytes_per_s and nics belong together", machine->key);
    if ((machine->nvme_bytes > 0) != (machine->nvme_read_bytes_per_s > 0) ||
        (machine->nvme_bytes > 0) != (machine->nvme_write_bytes_per_s > 0))
        REFUSE_AT(reader, line,
                  "machine '%s': nvme_bytes, nvme_read_bytes_per_s and nvme_write_bytes_per_s belong together",
                  machine->key);
    if (machine->gpu_peer_bytes_per_s > 0 && machine->link == DTP_LINK_NONE)
        REFUSE_AT(reader, line, "machine '%s': gpu_peer_bytes_per_s needs a link", machine->key);
}

/* A new entry needs every mandatory quantity. */
static void check_given(struct reader *reader, const struct long_table *kind, size_t index)
{
    for (size_t q = 0; q < kind->list->count; q++)
        if (kind->list->quantities[q].mandatory && !(reader->given[index] >> q & 1))
            REFUSE_AT(reader, reader->lines[index], "%s '%s' has no %s", kind->words,
                      entry_key(reader->catalog, kind, index), kind->list->quantities[q].quantity);
}

static void read_long_table(struct reader *reader, const struct long_table *kind)
{
    size_t index = 0;
    reader->known_count = entry_count(reader->catalog, kind);
    for (; reader->row < dtp_table_row_count(reader->table) && reader->status != DTP_ENVIRONMENT; reader->row++) {
        reader->row_bad = false;
        read_long_row(reader, kind, &index);
    }
    for (size_t i = reader->known_count; i < entry_count(reader->catalog, kind); i++)
        check_given(reader, kind, i);
    bool sound = reader->status == DTP_OK; /* of entries with a bad figure not everything is known */
    for (size_t i = 0; sound && i < entry_count(reader->catalog, kind); i++)
        if (reader->lines[i])
            (kind->of_gpus ? check_gpu : check_machine)(reader, i);
}

static void read_gpus(struct reader *reader)
{
    read_long_table(reader, &gpu_table);
}

static void read_machines(struct reader *reader)
{
    read_long_table(reader, &machine_table);
}

/* ---- prices ----------------------------------------------------------------------------------------------------- */

static double read_price(struct reader *reader, const char *column)
{
    const char *text = field(reader, column);
    double value = 0;
    if (!*text || text[strspn(text, "0123456789.")] || !dtp_number_parse(text, &value) || value < 1e-3 || value > 1e4)
        REFUSE(reader, "%s is '%.40s'; US dollars from 0.001 to 10000 are meant", column, text);
    return value;
}

static void read_date(struct reader *reader, char *out)
{
    const char *text = field(reader, "date");
    uint64_t month;
    bool digits =
        strlen(text) == 7 && strspn(text, "0123456789") == 4 && text[4] == '-' && strspn(text + 5, "0123456789") == 2;
    if (digits && dtp_number_parse_integer(text + 5, false, 1, 12, &month))
        memcpy(out, text, 8);
    else
        REFUSE(reader, "date is '%.40s'; year and month as in 2025-01 are meant", text);
}

static void read_price_row(struct reader *reader)
{
    struct dtp_catalog *catalog = reader->catalog;
    struct dtp_price price = {0};
    if (read_key(reader, "gpu_key", price.gpu_key, sizeof price.gpu_key))
        check_gpu_reference(reader, price.gpu_key);
    price.low = read_price(reader, "low_usd_per_gpu_hour");
    price.typical = read_price(reader, "typical_usd_per_gpu_hour");
    price.high = read_price(reader, "high_usd_per_gpu_hour");
    if (!reader->row_bad && (price.low > price.typical || price.typical > price.high))
        REFUSE(reader, "the prices of %s are not in order: low %g, typical %g, high %g", price.gpu_key, price.low,
               price.typical, price.high);
    read_date(reader, price.date);
    read_kind(reader, price.kind, sizeof price.kind);
    read_text(reader, "source", price.source, sizeof price.source);
    if (reader->row_bad)
        return;
    const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, price.gpu_key, NULL, 0, NULL);
    if (gpu)
        memcpy(price.gpu_key, gpu->key, sizeof price.gpu_key);
    size_t at = 0;
    while (at < catalog->price_count && strcmp(catalog->prices[at].gpu_key, price.gpu_key))
        at++;
    if (at == catalog->price_count) {
        void *larger = grow(reader, catalog->prices, at, DTP_CATALOG_MAX_ENTRIES, sizeof price);
        if (!larger)
            return;
        catalog->prices = larger;
        catalog->price_count++;
    }
    catalog->prices[at] = price;
}

/* ---- models and aliases ----------------------------------------------------------------------------------------- */

static void read_model_row(struct reader *reader)
{
    struct dtp_catalog *catalog = reader->catalog;
    struct dtp_transformer model;
    if (dtp_transformer_from_row(reader->table, reader->row, &model, reader->faults) != DTP_OK) {
        reader->status = DTP_BAD_INPUT;
        return;
    }
    size_t at = 0;
    while (at < catalog->model_count && !dtp_names_equal(catalog->models[at].name, model.name))
        at++;
    if (at == catalog->model_count) {
        void *larger = grow(reader, catalog->models, at, DTP_CATALOG_MAX_ENTRIES, sizeof model);
        if (!larger)
            return;
        catalog->models = larger;
        catalog->model_count++;
    }
    catalog->models[at] = model;
}

static bool is_key(const struct dtp_catalog *catalog, const char *name)
{
    for (size_t i = 0; i < catalog->gpu_count; i++)
        if (dtp_names_equal(catalog->gpus[i].key, name))
            return true;
    for (size_t i = 0; i < catalog->machine_count; i++)
        if (dtp_names_equal(catalog->machines[i].key, name))
            return true;
    for (size_t i = 0; i < catalog->model_count; i++)
        if (dtp_names_equal(catalog->models[i].name, name))
            return true;
    return false;
}

static void read_alias_row(struct reader *reader)
{
    struct dtp_catalog *catalog = reader->catalog;
    char alias[sizeof catalog->aliases->alias], key[sizeof catalog->aliases->key];
    bool good = read_key(reader, "alias", alias, sizeof alias);
    if (!read_key(reader, "key", key, sizeof key) || !good)
        return;
    if (reader->check_references && !is_key(catalog, key))
        REFUSE(reader, "alias '%s' stands for '%s', which is no key of a GPU, machine or model", alias, key);
    if (is_key(catalog, alias))
        REFUSE(reader, "alias '%s' is already a key", alias);
    if (reader->row_bad)
        return;
    size_t at = 0;
    while (at < catalog->alias_count && !dtp_names_equal(catalog->aliases[at].alias, alias))
        at++;
    if (at == catalog->alias_count) {
        void *larger = grow(reader, catalog->aliases, at, DTP_CATALOG_MAX_ENTRIES, sizeof *catalog->aliases);
        if (!larger)
            return;
        catalog->aliases = larger;
        catalog->alias_count++;
    }
    memcpy(catalog->aliases[at].alias, alias, sizeof alias);
    memcpy(catalog->aliases[at].key, key, sizeof key);
}

/* ---- kinds of table --------------------------------------------------------------------------------------------- */

#define MAX_COLUMNS 64
static const struct table_kind {
    const char *words;
    const char *telling[2]; /* columns that only this kind has together */
    const char *columns[MAX_COLUMNS + 1];
    bool all_needed;
    void (*read_whole)(struct reader *reader);
    void (*read_row)(struct reader *reader);
} kinds[] = {
    {"GPUs",
     {"gpu_key", "quantity"},
     {"gpu_key", "quantity", "value", "unit", "kind", "source"},
     true,
     read_gpus,
     NULL},
    {"machines",
     {"machine_key", "quantity"},
     {"machine_key", "quantity", "value", "unit", "kind", "source"},
     true,
     read_machines,
     NULL},
    {"prices",
     {"gpu_key", "typical_usd_per_gpu_hour"},
     {"gpu_key", "low_usd_per_gpu_hour", "typical_usd_per_gpu_hour", "high_usd_per_gpu_hour", "date", "kind", "source"},
     true,
     NULL,
     read_price_row},
    /* clang-format off */
    {"models",
     {"key", "layers"},
     {"key", "layers", "hidden", "heads", "ffn", "vocab", "norm", "activation", "position", "source", "name",
      "kv_heads", "head_dim", "positions", "max_sequence", "norm_bias", "qkv_bias", "attention_output_bias",
      "mlp_bias", "tied_head", "head_bias", "embedding_norm", "qk_norm", "final_norm", "parameters",
      "sliding_window", "parallel_block", "sliding_window_pattern", "norm_place", "qk_norm_wide",
      "norm_unit_offset", "norm_eps", "embedding_scale", "attention_softcap", "final_softcap", "qk_layer_norm",
      "qk_norm_bias", "qk_norm_weight", "norm_without_weight", "experts", "experts_per_token", "expert_ffn",
      "shared_expert_ffn", "shared_expert_gate", "dense_layers", "expert_layer_step", "router", "router_norm",
      "router_scale", "router_on_input", "expert_bias",
      "router_bias", "expert_groups", "groups_per_token", "chunked_attention", "attention_sinks",
      "q_latent", "kv_latent",
      "rope_head_dim", "value_head_dim"},
     false,
     NULL,
     read_model_row},
    /* clang-format on */
    {"aliases", {"alias", "key"}, {"alias", "key"}, true, NULL, read_alias_row},
};

static const struct table_kind *kind_of(const struct dtp_table *table)
{
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (dtp_table_column(table, kinds[i].telling[0]) >= 0 && dtp_table_column(table, kinds[i].telling[1]) >= 0)
            return &kinds[i];
    return NULL;
}

static void check_unknown_column(struct reader *reader, const struct table_kind *kind, const char *column)
{
    char nearest_text[256];
    struct dtp_nearest nearest;
    dtp_nearest_begin(&nearest, column);
    for (size_t i = 0; kind->columns[i]; i++) {
        if (!strcmp(kind->columns[i], column))
            return;
        dtp_nearest_offer(&nearest, kind->columns[i]);
    }
    dtp_nearest_text(&nearest, nearest_text, sizeof nearest_text);
    REFUSE_AT(reader, 0, "unknown column '%.40s' in a table of %s%s%s", column, kind->words, *nearest_text ? "; " : "",
              nearest_text);
}

static void check_columns(struct reader *reader, const struct table_kind *kind)
{
    for (size_t i = 0; i < dtp_table_column_count(reader->table); i++)
        check_unknown_column(reader, kind, dtp_table_column_name(reader->table, i));
    for (size_t i = 0; kind->all_needed && kind->columns[i]; i++)
        if (dtp_table_column(reader->table, kind->columns[i]) < 0)
            REFUSE_AT(reader, 0, "a table of %s needs a column '%s'", kind->words, kind->columns[i]);
}

enum dtp_status dtp_catalog_add_table(const struct dtp_table *table, bool check_references, struct dtp_catalog *catalog,
                                      struct dtp_faults *faults)
{
    struct reader reader = {.table = table, .catalog = catalog, .faults = faults, .check_references = check_references};
    const struct table_kind *kind = kind_of(table);
    if (!kind)
        return dtp_fault(
            faults, DTP_BAD_INPUT, dtp_table_name(table), 0,
            "the header is that of no catalogue; GPUs have gpu_key,quantity,value,unit,kind,source, machines "
            "machine_key,quantity,..., prices gpu_key,typical_usd_per_gpu_hour,..., models "
            "key,layers,hidden,..., aliases alias,key");
    if (dtp_table_row_count(table) > DTP_CATALOG_MAX_ROWS)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0, "%zu rows; a catalogue has at most %d",
                         dtp_table_row_count(table), DTP_CATALOG_MAX_ROWS);
    check_columns(&reader, kind);
    if (reader.status != DTP_OK)
        return reader.status;
    if (kind->read_whole)
        kind->read_whole(&reader);
    else
        for (; reader.row < dtp_table_row_count(table) && reader.status != DTP_ENVIRONMENT; reader.row++) {
            reader.row_bad = false;
            kind->read_row(&reader);
        }
    return reader.status;
}
