#include "job/axes.h"

#include "base/append.h"
#include "base/nearest.h"
#include "base/number.h"
#include "job/scenario_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(DTP_KEY_COUNT <= sizeof((struct dtp_axes *)0)->axes / sizeof(struct dtp_axis), "one axis a key");

/* A list as it grows. The room is that of the whole text, counted first. */
struct list {
    struct dtp_axes *axes;
    enum dtp_key key;
    const char *where;
    struct dtp_faults *faults;
    const char **values;
    size_t count, room;
};

static enum dtp_status refuse(const struct list *list, const char *text, const char *why)
{
    return dtp_fault_about(list->faults, DTP_BAD_INPUT, list->where, 0, dtp_key_name(list->key), "'%.64s' %s", text,
                           why);
}

static enum dtp_status out_of_memory(const struct list *list)
{
    return dtp_fault(list->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

struct range {
    double first, last, step; /* step: added, or multiplied by */
    bool factor;
    size_t count;
};

/* The 'x' or '+' of "1024x2"; a '+' after an 'e' belongs to the number. */
static char *find_step(char *text)
{
    for (char *c = text + strlen(text); c > text; c--)
        if (*c == 'x' || (*c == '+' && c[-1] != 'e' && c[-1] != 'E'))
            return c;
    return NULL;
}

static const char *count_range(struct range *r)
{
    const double most = DTP_AXES_MAX_VALUES, slack = 1e-9; /* of a step: 0.1 is no binary fraction */
    if (r->last < r->first)
        return "goes down; write the smaller end first";
    if (r->factor ? !(r->step > 1) || !(r->first > 0) : !(r->step > 0))
        return r->factor ? "needs a first end above 0 and a factor above 1, as in 8..1024x2"
                         : "needs a step above 0, as in 8..64+8";
    double steps = r->factor ? log(r->last / r->first) / log(r->step) : (r->last - r->first) / r->step;
    if (!(steps < most))
        return "has more than 100000 values; take a larger step";
    r->count = (size_t)floor(steps + slack) + 1;
    return NULL;
}

/* NULL: a range; else why it is none. `text` is "A..B", "A..B+S" or "A..BxF" and is cut into pieces. */
static const char *read_range(enum dtp_key key, char *text, struct range *out)
{
    char *dots = strstr(text, ".."), *second = dots + 2, *step = find_step(second);
    *out = (struct range){.step = 1};
    *dots = '\0';
    if (step) {
        out->factor = *step == 'x';
        *step++ = '\0';
    }
    if (!dtp_key_parse_number(key, text, &out->first) || !dtp_key_parse_number(key, second, &out->last))
        return "is no range of numbers; write A..B, A..B+S or A..BxF";
    bool read =
        !step || (out->factor ? dtp_number_parse(step, &out->step) : dtp_key_parse_number(key, step, &out->step));
    return read ? count_range(out) : "has a step that is no number; write A..B+S or A..BxF";
}

static double range_value(const struct range *range, size_t index)
{
    double i = (double)index;
    return range->factor ? range->first * pow(range->step, i) : range->first + range->step * i;
}

/* Whole numbers in full: they are read as such. What a product of factors misses a whole number by is rounding. */
static void write_number(double value, char *out, size_t bytes)
{
    double whole = round(value);
    if (fabs(value - whole) <= 1e-9 * fmax(1, fabs(value)) && fabs(whole) < 0x1p53)
        snprintf(out, bytes, "%.0f", whole);
    else
        snprintf(out, bytes, "%.12g", value);
}

static bool is_range(enum dtp_key key, const char *item)
{
    double number;
    return strstr(item, "..") && dtp_key_parse_number(key, "1", &number);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

/* Entry `index` of the catalogue's list behind a key, or NULL after the last and for keys without one. */
static const char *catalog_name(const struct dtp_catalog *catalog, enum dtp_key key, size_t index)
{
    if (key == DTP_KEY_gpu)
        return index < catalog->gpu_count ? catalog->gpus[index].key : NULL;
    if (key == DTP_KEY_machine)
        return index < catalog->machine_count ? catalog->machines[index].key : NULL;
    return key == DTP_KEY_model && index < catalog->model_count ? catalog->models[index].name : NULL;
}

/* Choice `index` of "none|full|every-N": words in small letters, and not the word all itself. */
static bool choice(const char *choices, size_t index, char *out, size_t bytes)
{
    while (choices && *choices) {
        size_t length = strcspn(choices, "|");
        bool word = true;
        for (size_t i = 0; i < length; i++)
            word = word && !(choices[i] >= 'A' && choices[i] <= 'Z');
        word = word && length < bytes && !(length == 3 && !memcmp(choices, "all", 3));
        if (word && index == 0) {
            snprintf(out, bytes, "%.*s", (int)length, choices);
            return true;
        }
        index -= word;
        choices += length + (choices[length] == '|');
    }
    return false;
}

static bool value_of_all(const struct list *list, size_t index, char *out, size_t bytes)
{
    size_t key_count;
    const char *name = catalog_name(list->axes->catalog, list->key, index);
    if (name)
        snprintf(out, bytes, "%s", name);
    else if (list->key == DTP_KEY_gpu || list->key == DTP_KEY_machine || list->key == DTP_KEY_model)
        return false;
    return name || choice(dtp_scenario_keys(&key_count)[list->key].value, index, out, bytes);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

static enum dtp_status make_room(struct list *list, size_t more)
{
    size_t needed = list->count + more;
    if (needed > DTP_AXES_MAX_VALUES)
        return refuse(list, dtp_key_name(list->key), "has more than 100000 values; take fewer");
    if (needed <= list->room)
        return DTP_OK;
    size_t room = needed > 2 * list->room ? needed : 2 * list->room;
    const char **values = dtp_host_arena_take(&list->axes->memory, room, sizeof *values);
    if (!values)
        return out_of_memory(list);
    if (list->count)
        memcpy(values, list->values, list->count * sizeof *values);
    list->values = values;
    list->room = room;
    return DTP_OK;
}

static enum dtp_status add_value(struct list *list, const char *text)
{
    struct dtp_draft scratch = dtp_draft_default();
    char why[256], words[300];
    if (!dtp_key_apply(list->key, text, &scratch, why, sizeof why)) {
        snprintf(words, sizeof words, "is not %s", why);
        return refuse(list, text, words);
    }
    enum dtp_status status = make_room(list, 1);
    char *copy = status == DTP_OK ? dtp_host_arena_take(&list->axes->memory, strlen(text) + 1, 1) : NULL;
    if (status == DTP_OK && !copy)
        status = out_of_memory(list);
    if (status == DTP_OK)
        list->values[list->count++] = strcpy(copy, text);
    return status;
}

static enum dtp_status add_range(struct list *list, const char *item)
{
    char pieces[256], text[64];
    struct range range;
    if (strlen(item) >= sizeof pieces)
        return refuse(list, item, "is too long for a range");
    const char *why = read_range(list->key, strcpy(pieces, item), &range);
    if (why)
        return refuse(list, item, why);
    enum dtp_status status = make_room(list, range.count);
    for (size_t i = 0; i < range.count && status == DTP_OK; i++) {
        write_number(range_value(&range, i), text, sizeof text);
        status = add_value(list, text);
    }
    return status;
}

static enum dtp_status add_all(struct list *list)
{
    char text[DTP_NAME_BYTES];
    enum dtp_status status = DTP_OK;
    size_t before = list->count;
    for (size_t i = 0; status == DTP_OK && value_of_all(list, i, text, sizeof text); i++)
        status = add_value(list, text);
    if (status == DTP_OK && list->count == before)
        status = refuse(list, "all", "is no value of this key; it has no list of choices");
    return status;
}

static enum dtp_status add_item(struct list *list, const char *item)
{
    if (dtp_names_equal(item, "all") || (list->key == DTP_KEY_gpu && dtp_names_equal(item, "any")))
        return add_all(list);
    return is_range(list->key, item) ? add_range(list, item) : add_value(list, item);
}

/* A path or a name may hold a comma only where it is the whole text; values of other keys never do. */
static enum dtp_status add_items(struct list *list, const char *text)
{
    enum dtp_status worst = DTP_OK;
    for (const char *start = text;; start++) {
        size_t length = strcspn(start, ",");
        if (!length && *text)
            return refuse(list, text, "has an empty item; write values with one comma between them");
        char *item = strndup(start, length);
        enum dtp_status status = item ? add_item(list, item) : out_of_memory(list);
        free(item);
        worst = dtp_worse(worst, status);
        start += length;
        if (!*start || worst == DTP_ENVIRONMENT)
            return worst;
    }
}

/* ---- checks of a whole axis -------------------------------------------------------------------------------------- */

static int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static enum dtp_status refuse_twice(struct list *list)
{
    const char **sorted = malloc((list->count + 1) * sizeof *sorted);
    enum dtp_status status = sorted ? DTP_OK : out_of_memory(list);
    if (sorted && list->count)
        memcpy(sorted, list->values, list->count * sizeof *sorted);
    if (sorted)
        qsort(sorted, list->count, sizeof *sorted, compare_texts);
    for (size_t i = 1; i < list->count && status == DTP_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            status = refuse(list, sorted[i], "is there twice");
    free(sorted);
    return status;
}

/* A name that the catalogue does not have is one fault now, not one in every row. */
static enum dtp_status check_names(const struct list *list)
{
    struct dtp_scenario *scenario = NULL;
    if (list->key != DTP_KEY_gpu && list->key != DTP_KEY_machine && list->key != DTP_KEY_model)
        return DTP_OK;
    enum dtp_status worst = dtp_scenario_create(&scenario, list->faults);
    for (size_t i = 0; i < list->count && scenario; i++) {
        enum dtp_status status =
            dtp_scenario_set(scenario, dtp_key_name(list->key), list->values[i], list->where, 0, list->faults);
        if (status == DTP_OK)
            status = dtp_scenario_check_names(scenario, list->axes->catalog, list->faults);
        worst = dtp_worse(worst, status);
    }
    dtp_scenario_destroy(scenario);
    return worst;
}

enum dtp_status dtp_axes_add(struct dtp_axes *axes, const struct dtp_catalog *catalog, const char *key,
                             const char *text, const char *where, struct dtp_faults *faults)
{
    struct list list = {.axes = axes, .key = dtp_key_find(key), .where = where, .faults = faults};
    axes->catalog = catalog;
    if (list.key == DTP_KEY_COUNT)
        return dtp_fault(faults, DTP_BAD_INPUT, where, 0, "unknown key '%.64s'; dtplan plan --help lists them", key);
    bool one_text = list.key == DTP_KEY_name;
    enum dtp_status status = one_text ? add_value(&list, text) : add_items(&list, text);
    if (status == DTP_OK)
        status = refuse_twice(&list);
    if (status == DTP_OK)
        status = check_names(&list);
    if (status != DTP_OK)
        return status;
    size_t at = 0;
    while (at < axes->count && strcmp(axes->axes[at].key, dtp_key_name(list.key)) != 0)
        at++;
    axes->count += at == axes->count;
    axes->axes[at] = (struct dtp_axis){dtp_key_name(list.key), where, list.count, list.values};
    return DTP_OK;
}

void dtp_axes_release(struct dtp_axes *axes)
{
    dtp_host_arena_release(&axes->memory);
    axes->count = 0;
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_axes_count(const struct dtp_axes *axes, uint64_t *out, struct dtp_faults *faults)
{
    double product = 1;
    char counts[256] = "";
    *out = 1;
    for (size_t i = 0; i < axes->count; i++) {
        product *= (double)axes->axes[i].count;
        *out *= product <= DTP_AXES_MAX_COMBINATIONS ? axes->axes[i].count : 1;
        if (axes->axes[i].count > 1)
            dtp_append_part(counts, sizeof counts, " x ", "%zu %.32s", axes->axes[i].count, axes->axes[i].key);
    }
    if (product <= DTP_AXES_MAX_COMBINATIONS)
        return DTP_OK;
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                     "%s are %.3g combinations, at most %u are computed; take fewer values, of what you know one: "
                     "--precision bf16-mixed",
                     counts, product, DTP_AXES_MAX_COMBINATIONS);
}

/* How many combinations pass before an axis moves on. */
static uint64_t stride(const struct dtp_axes *axes, size_t axis)
{
    uint64_t product = 1;
    for (size_t i = axis + 1; i < axes->count; i++)
        product *= axes->axes[i].count;
    return product;
}

size_t dtp_axes_value(const struct dtp_axes *axes, size_t axis, uint64_t combination)
{
    return (size_t)(combination / stride(axes, axis) % axes->axes[axis].count);
}

/* The slowest axis that moved on from the combination before: all behind it begin anew. */
static size_t first_changed(const struct dtp_axes *axes, uint64_t combination)
{
    size_t axis = axes->count;
    while (axis > 0 && combination % axes->axes[axis - 1].count == 0)
        combination /= axes->axes[--axis].count;
    return axis > 0 ? axis - 1 : 0;
}

enum dtp_status dtp_axes_apply(const struct dtp_axes *axes, uint64_t combination, bool changed_only,
                               struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    bool all = !changed_only || combination == 0;
    for (size_t i = all ? 0 : first_changed(axes, combination); i < axes->count; i++) {
        const struct dtp_axis *axis = &axes->axes[i];
        size_t value = dtp_axes_value(axes, i, combination);
        if (!all && axis->count == 1)
            continue;
        worst = dtp_worse(worst, dtp_scenario_set(scenario, axis->key, axis->values[value], axis->where, 0, faults));
    }
    return worst;
}
