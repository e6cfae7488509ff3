/* Settings by name, put into a tree by their paths, and the tree as JSON, YAML, TOML or flags. */
#include "import/write.h"

#include "base/number.h"
#include "job/job_values.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dtp_writing {
    const struct dtp_format *format;
    const struct dtp_job *job;
    struct dtp_job_value values[DTP_JOB_VALUES_MAX];
    size_t value_count;
    char text[DTP_STAGE_LAYOUT_BYTES + 64];
    json_t *root;
    struct dtp_faults *faults;
    enum dtp_status status;
};

const struct dtp_job *dtp_written_job(const struct dtp_writing *w)
{
    return w->job;
}

const char *dtp_written_value(struct dtp_writing *w, const char *key)
{
    const struct dtp_job_value *v = w->values;
    while (v < w->values + w->value_count && strcmp(v->key->key, key) != 0)
        v++;
    switch (v->kind) {
    case DTP_VALUE_WHOLE: snprintf(w->text, sizeof w->text, "%" PRIu64, v->whole); break;
    case DTP_VALUE_REAL: snprintf(w->text, sizeof w->text, "%.15g", v->real); break;
    case DTP_VALUE_SWITCH: snprintf(w->text, sizeof w->text, "%s", v->whole ? "true" : "false"); break;
    case DTP_VALUE_WORD: snprintf(w->text, sizeof w->text, "%s", v->word); break;
    }
    return w->text;
}

void dtp_refuse_writing(struct dtp_writing *w, const char *format, ...)
{
    char words[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    w->status = dtp_fault(w->faults, DTP_BAD_INPUT, NULL, 0, "%s: %s", w->format->title, words);
}

/* ---- the tree -----------------------------------------------------------------------------------------------------
 */

/* A number or a switch as such, for JSON; the others are texts in all languages. */
static json_t *scalar(const char *theirs)
{
    char *end;
    long long whole = strtoll(theirs, &end, 10);
    if (strcmp(theirs, "true") == 0 || strcmp(theirs, "false") == 0)
        return json_boolean(theirs[0] == 't');
    if (*theirs && !*end && strlen(theirs) < 18)
        return json_integer(whole);
    double real = strtod(theirs, &end);
    bool number = isdigit((unsigned char)theirs[0]) && !*end && strspn(theirs, "0123456789.e+-") == strlen(theirs);
    return number ? json_real(real) : json_string(theirs);
}

static json_t *list_of(const char *theirs)
{
    json_t *list = json_array();
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", theirs);
    for (char *item; (item = strtok_r(rest, ",", &rest)) != NULL;)
        json_array_append_new(list, scalar(item));
    return list;
}

void dtp_say_path(struct dtp_writing *w, const char *path, const char *theirs, bool list)
{
    char text[512], *rest = text;
    json_t *at = w->root;
    snprintf(text, sizeof text, "%s", path);
    char *part = w->format->syntaxes & 1u << DTP_SYNTAX_FLAGS ? rest : strtok_r(rest, ".", &rest);
    for (char *next; w->format->syntaxes != 1u << DTP_SYNTAX_FLAGS && (next = strtok_r(rest, ".", &rest)) != NULL;
         part = next) {
        json_t *below = json_object_get(at, part);
        if (!below) {
            below = json_object();
            json_object_set_new(at, part, below);
        }
        at = below;
    }
    if (json_object_set_new(at, part, list ? list_of(theirs) : scalar(theirs)) != 0)
        w->status = dtp_fault(w->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

void dtp_say(struct dtp_writing *w, const char *name, const char *ours)
{
    char theirs[512];
    for (size_t i = 0; i < w->format->row_count; i++) {
        const struct dtp_row *row = &w->format->rows[i];
        if (row->name && strcmp(row->name, name) == 0 && dtp_row_theirs(row, ours, theirs, sizeof theirs)) {
            dtp_say_path(w, row->path, theirs,
                         strncmp(row->words, "a list of ", 10) == 0 ||
                             strcmp(row->words, "layers that stay as they are") == 0);
            return;
        }
    }
}

void dtp_say_count(struct dtp_writing *w, const char *name, uint64_t ours)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, ours);
    dtp_say(w, name, text);
}

void dtp_say_key(struct dtp_writing *w, const char *key)
{
    char text[DTP_STAGE_LAYOUT_BYTES + 64];
    snprintf(text, sizeof text, "%s", dtp_written_value(w, key));
    dtp_say(w, key, text);
}

/* ---- languages ----------------------------------------------------------------------------------------------------
 */

static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

/* With a point, without which YAML reads "1e-05" as a text. */
static void write_real(FILE *out, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.15g", value);
    size_t digits = strcspn(text, "e");
    fprintf(out, "%.*s%s%s", (int)digits, text, memchr(text, '.', digits) ? "" : ".0", text + digits);
}

static void write_scalar(FILE *out, const json_t *value)
{
    if (json_is_boolean(value))
        fputs(json_is_true(value) ? "true" : "false", out);
    else if (json_is_integer(value))
        fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        write_real(out, json_real_value(value));
    else if (json_is_array(value)) {
        fputc('[', out);
        for (size_t i = 0; i < json_array_size(value); i++) {
            fputs(i ? ", " : "", out);
            write_scalar(out, json_array_get(value, i));
        }
        fputc(']', out);
    } else {
        write_text(out, json_string_value(value));
    }
}

static void write_yaml(FILE *out, json_t *table, int depth)
{
    const char *key;
    json_t *value;
    json_object_foreach(table, key, value)
    {
        fprintf(out, "%*s%s:", 2 * depth, "", key);
        if (json_is_object(value)) {
            fputc('\n', out);
            write_yaml(out, value, depth + 1);
        } else {
            fputc(' ', out);
            write_scalar(out, value);
            fputc('\n', out);
        }
    }
}

/* Plain settings of a table before the tables in it. */
static void write_toml(FILE *out, json_t *table, const char *path)
{
    const char *key;
    json_t *value;
    bool first = true;
    json_object_foreach(table, key, value)
    {
        if (json_is_object(value))
            continue;
        if (first && *path)
            fprintf(out, "\n[%s]\n", path);
        first = false;
        fprintf(out, "%s = ", key);
        write_scalar(out, value);
        fputc('\n', out);
    }
    json_object_foreach(table, key, value)
    {
        char below[512];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", key);
        if (json_is_object(value))
            write_toml(out, value, below);
    }
}

static void write_words(FILE *out, json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        fprintf(out, " %s", json_string_value(json_array_get(list, i)));
}

/* As words of a shell, a line each; a switch that is off is not there. */
static void write_flags(FILE *out, json_t *table)
{
    const char *key;
    json_t *value;
    json_object_foreach(table, key, value)
    {
        if (json_is_false(value))
            continue;
        fputs("--", out);
        for (const char *c = key; *c; c++)
            fputc(*c == '_' ? '-' : *c, out);
        if (json_is_string(value) && strpbrk(json_string_value(value), "*|()[]+ "))
            fprintf(out, " '%s'", json_string_value(value));
        else if (json_is_string(value))
            fprintf(out, " %s", json_string_value(value));
        else if (json_is_array(value))
            write_words(out, value);
        else if (json_is_real(value))
            fprintf(out, " %.15g", json_real_value(value));
        else if (json_is_integer(value))
            fprintf(out, " %" JSON_INTEGER_FORMAT, json_integer_value(value));
        fputc('\n', out);
    }
}

static void write_tree(const struct dtp_format *format, json_t *root, FILE *out)
{
    if (format->syntaxes & 1u << DTP_SYNTAX_TOML)
        write_toml(out, root, "");
    else if (format->syntaxes & 1u << DTP_SYNTAX_FLAGS)
        write_flags(out, root);
    else if (format->writes_yaml)
        write_yaml(out, root, 0);
    else {
        json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        fputc('\n', out);
    }
}

/* ---- a format -----------------------------------------------------------------------------------------------------
 */

const struct dtp_format *dtp_format_of(const char *name)
{
    size_t count;
    const struct dtp_format *const *formats = dtp_formats(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(formats[i]->name, name) == 0)
            return formats[i];
    return NULL;
}

enum dtp_status dtp_format_write(const struct dtp_format *format, const struct dtp_job *job, const char *const more[2],
                                 char **text, struct dtp_faults *faults)
{
    size_t bytes;
    struct dtp_writing *w = calloc(1, sizeof *w);
    *text = NULL;
    if (!w)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    w->format = format;
    w->job = job;
    w->faults = faults;
    w->root = json_object();
    w->value_count = dtp_job_values(job, w->values);
    FILE *out = open_memstream(text, &bytes);
    if (!w->root || !out)
        w->status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    else {
        format->write(w);
        if (more && more[0])
            dtp_say_path(w, more[0], more[1], false);
        write_tree(format, w->root, out);
    }
    if (out && fclose(out) != 0 && w->status == DTP_OK)
        w->status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = w->status;
    json_decref(w->root);
    free(w);
    return status;
}
