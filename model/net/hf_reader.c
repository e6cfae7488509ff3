#include "net/hf_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the line of a key ------------------------------------------------------------------------------------------ */

/* Index after the string that starts at text[start] == '"'. */
static size_t end_of_string(const char *text, size_t bytes, size_t start)
{
    size_t i = start + 1;
    while (i < bytes && text[i] != '"')
        i += text[i] == '\\' ? 2 : 1;
    return i + 1;
}

/* jansson keeps no places of values, so the text is walked again, which is known to be valid JSON by then: the line
 * (1-based) of `key` in the outermost object, 0 when it is not found (written with escapes). */
static size_t line_of_key(const char *text, size_t bytes, const char *key, size_t length)
{
    size_t line = 1, depth = 0;
    for (size_t i = 0; i < bytes;) {
        char c = text[i];
        if (c == '"') {
            size_t end = end_of_string(text, bytes, i), next = end;
            while (next < bytes && memchr(" \t\r\n", text[next], 4))
                next++;
            bool is_key = depth == 1 && next < bytes && text[next] == ':';
            if (is_key && end - i == length + 2 && !memcmp(text + i + 1, key, length))
                return line;
            i = end;
            continue;
        }
        if (c == '{' || c == '[')
            depth++;
        else if (c == '}' || c == ']')
            depth--;
        else if (c == '\n')
            line++;
        i++;
    }
    return 0;
}

static size_t length_of_first(const char *keys)
{
    return strcspn(keys, "|");
}

static void refuse(struct dtp_hf_reader *reader, const char *key, size_t length, const char *what)
{
    const char *anchor = reader->parent ? reader->parent : key;
    size_t line = line_of_key(reader->text, reader->bytes, anchor, reader->parent ? strlen(anchor) : length);
    reader->bad = true;
    dtp_fault(reader->faults, DTP_BAD_INPUT, reader->name, line, "%s%s%.*s %s", reader->parent ? reader->parent : "",
              reader->parent ? "." : "", (int)length, key, what);
}

void dtp_hf_refuse(struct dtp_hf_reader *reader, const char *keys, const char *format, ...)
{
    char what[DTP_FAULT_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    refuse(reader, keys, length_of_first(keys), what);
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* The spelling that counts: where it stands in `keys` and what it says. */
struct found {
    const char *key;
    size_t length;
    const json_t *value; /* NULL: absent or null under every spelling */
};

static struct found find(struct dtp_hf_reader *reader, const char *keys)
{
    struct found found = {keys, length_of_first(keys), NULL};
    for (const char *key = keys; key; key = strchr(key, '|') ? strchr(key, '|') + 1 : NULL) {
        size_t length = length_of_first(key);
        char copy[64]; /* json_object_getn is newer than the jansson of some distributions */
        snprintf(copy, sizeof copy, "%.*s", (int)length, key);
        const json_t *value = json_object_get(reader->object, copy);
        if (!value || json_is_null(value))
            continue;
        if (!found.value)
            found = (struct found){key, length, value};
        else if (!json_equal(found.value, value)) {
            char what[128];
            snprintf(what, sizeof what, "differs from %.*s, which means the same", (int)found.length, found.key);
            refuse(reader, key, length, what);
        }
    }
    return found;
}

const json_t *dtp_hf_value(struct dtp_hf_reader *reader, const char *keys)
{
    return find(reader, keys).value;
}

/* A value as a message shows it. */
static const char *describe(const json_t *value, char *out, size_t bytes)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: snprintf(out, bytes, "\"%.40s\"", json_string_value(value)); return out;
    case JSON_INTEGER: snprintf(out, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); return out;
    case JSON_REAL: /* 4096.0 is no whole number to Hugging Face either; shown as 4096 the message would deny itself */
        snprintf(out, bytes, "%.9g%s", json_real_value(value),
                 nearbyint(json_real_value(value)) == json_real_value(value) ? ".0" : "");
        return out;
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "?";
}

static void refuse_value(struct dtp_hf_reader *reader, const struct found *found, const char *needed)
{
    char value[64], what[192];
    snprintf(what, sizeof what, "is %s; %s is needed", describe(found->value, value, sizeof value), needed);
    refuse(reader, found->key, found->length, what);
}

uint64_t dtp_hf_integer(struct dtp_hf_reader *reader, const char *keys, uint64_t absent, uint64_t minimum,
                        uint64_t maximum)
{
    struct found found = find(reader, keys);
    if (!found.value)
        return absent;
    json_int_t value = json_integer_value(found.value); /* 0 for other types */
    if (json_is_integer(found.value) && value >= 0 && (uint64_t)value >= minimum && (uint64_t)value <= maximum)
        return (uint64_t)value;
    char needed[96];
    snprintf(needed, sizeof needed, "a whole number from %" PRIu64 " to %" PRIu64, minimum, maximum);
    refuse_value(reader, &found, needed);
    return absent;
}

double dtp_hf_number(struct dtp_hf_reader *reader, const char *keys, double absent, double maximum)
{
    struct found found = find(reader, keys);
    if (!found.value)
        return absent;
    double value = json_number_value(found.value); /* 0 for other types */
    if (json_is_number(found.value) && value > 0 && value <= maximum)
        return value;
    char needed[96];
    snprintf(needed, sizeof needed, "a number above 0, at most %g", maximum);
    refuse_value(reader, &found, needed);
    return absent;
}

bool dtp_hf_switch(struct dtp_hf_reader *reader, const char *keys, bool absent)
{
    struct found found = find(reader, keys);
    if (!found.value)
        return absent;
    if (json_is_boolean(found.value))
        return json_is_true(found.value);
    refuse_value(reader, &found, "true or false");
    return absent;
}

const char *dtp_hf_text(struct dtp_hf_reader *reader, const char *keys, const char *absent)
{
    struct found found = find(reader, keys);
    if (!found.value)
        return absent;
    if (json_is_string(found.value))
        return json_string_value(found.value);
    refuse_value(reader, &found, "a string");
    return absent;
}
