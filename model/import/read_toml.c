/* TOML 1.0 (toml.io/en/v1.0.0), as far as a configuration needs it: tables, arrays of tables, dotted and quoted keys,
 * strings of all four kinds, arrays and inline tables over several lines. Numbers and dates are kept as they stand, but
 * for the '_' within numbers. Debian has libraries of it for C++ only. */
#include "import/entries.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define VALUE_BYTES 1024 /* of a value; no setting that is read is longer */
#define PATH_BYTES 512

struct reader {
    struct dtp_entries *entries;
    struct dtp_faults *faults;
    const char *at, *end;
    size_t line;
    char table[PATH_BYTES]; /* of the last header */
};

__attribute__((format(printf, 2, 3))) static enum dtp_status fault(struct reader *r, const char *format, ...)
{
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    return dtp_fault(r->faults, DTP_BAD_INPUT, r->entries->name, r->line, "no TOML: %s", words);
}

static bool looks_at(const struct reader *r, const char *text)
{
    size_t length = strlen(text);
    return (size_t)(r->end - r->at) >= length && strncmp(r->at, text, length) == 0;
}

static char here(const struct reader *r)
{
    return r->at < r->end ? *r->at : '\0';
}

static void step(struct reader *r)
{
    r->line += *r->at == '\n';
    r->at++;
}

static void skip_blanks(struct reader *r)
{
    while (here(r) == ' ' || here(r) == '\t')
        r->at++;
}

static void skip_comment(struct reader *r)
{
    if (here(r) == '#')
        while (r->at < r->end && *r->at != '\n')
            r->at++;
}

/* Blanks, line ends and comments. */
static void skip_lines(struct reader *r)
{
    for (;;) {
        skip_comment(r);
        if (!here(r) || !strchr(" \t\r\n", here(r)))
            return;
        step(r);
    }
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

struct text {
    char bytes[VALUE_BYTES];
    size_t length;
    bool cut; /* did not fit */
};

static void put(struct text *text, char byte)
{
    if (text->length + 1 < sizeof text->bytes)
        text->bytes[text->length++] = byte;
    else
        text->cut = true;
    text->bytes[text->length] = '\0';
}

static void put_character(struct text *text, uint32_t c)
{
    if (c < 0x80) {
        put(text, (char)c);
        return;
    }
    if (c >= 0x10000)
        put(text, (char)(0xF0 | (c >> 18)));
    if (c >= 0x800)
        put(text, (char)((c >= 0x10000 ? 0x80 : 0xE0) | ((c >> 12) & (c >= 0x10000 ? 0x3F : 0x0F))));
    put(text, (char)((c >= 0x800 ? 0x80 : 0xC0) | ((c >> 6) & (c >= 0x800 ? 0x3F : 0x1F))));
    put(text, (char)(0x80 | (c & 0x3F)));
}

static enum dtp_status read_unicode(struct reader *r, struct text *out, int digits)
{
    uint32_t c = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        char d = here(r);
        if (!isxdigit((unsigned char)d))
            return fault(r, "\\u and \\U take %d hexadecimal digits", digits);
        c = 16 * c + (uint32_t)(isdigit((unsigned char)d) ? d - '0' : tolower((unsigned char)d) - 'a' + 10);
    }
    if (c == 0 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        return fault(r, "U+%04" PRIX32 " is no character of a text", c);
    put_character(out, c);
    return DTP_OK;
}

/* Behind a backslash. One at the end of a line takes all blanks and line ends behind it away. */
static enum dtp_status read_escape(struct reader *r, struct text *out, bool many_lines)
{
    static const char from[] = "btnfr\"\\e", to[] = "\b\t\n\f\r\"\\\x1b";
    char c = here(r);
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        put(out, to[found - from]);
        r->at++;
        return DTP_OK;
    }
    if (c == 'u' || c == 'U') {
        r->at++;
        return read_unicode(r, out, c == 'u' ? 4 : 8);
    }
    if (many_lines && c && strchr(" \t\r\n", c)) {
        while (here(r) && strchr(" \t\r\n", here(r)))
            step(r);
        return DTP_OK;
    }
    return fault(r, "\\ stands before what is no escape");
}

static enum dtp_status read_string(struct reader *r, struct text *out)
{
    char quote = here(r), three[] = {quote, quote, quote, '\0'}, one[] = {quote, '\0'};
    bool many = looks_at(r, three), literal = quote == '\'';
    const char *close = many ? three : one;
    r->at += strlen(close);
    if (many && here(r) == '\r')
        r->at++;
    if (many && here(r) == '\n')
        step(r);
    while (!looks_at(r, close)) {
        if (r->at == r->end || (!many && here(r) == '\n'))
            return fault(r, "a string does not end");
        if (!literal && here(r) == '\\') {
            r->at++;
            enum dtp_status status = read_escape(r, out, many);
            if (status != DTP_OK)
                return status;
        } else {
            put(out, here(r));
            step(r);
        }
    }
    while (many && r->end - r->at > 3 && r->at[3] == quote) { /* quotes right before the closing ones are text */
        put(out, quote);
        r->at++;
    }
    r->at += strlen(close);
    return DTP_OK;
}

/* ---- keys ---------------------------------------------------------------------------------------------------------
 */

static bool is_bare(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

/* Appends a dotted key to the path. */
static enum dtp_status read_key(struct reader *r, char *path, size_t bytes)
{
    for (;;) {
        struct text part = {.length = 0};
        skip_blanks(r);
        if (here(r) == '"' || here(r) == '\'') {
            enum dtp_status status = read_string(r, &part);
            if (status != DTP_OK)
                return status;
        } else {
            while (is_bare(here(r)))
                put(&part, *r->at++);
            if (!part.length)
                return fault(r, "a key is missing");
        }
        size_t used = strlen(path);
        int wrote = snprintf(path + used, bytes - used, "%s%s", used ? "." : "", part.bytes);
        if (part.cut || wrote < 0 || (size_t)wrote >= bytes - used)
            return fault(r, "a key is too long");
        skip_blanks(r);
        if (here(r) != '.')
            return DTP_OK;
        r->at++;
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------
 */

static enum dtp_status read_pair(struct reader *r, const char *table, int depth);
static enum dtp_status read_value(struct reader *r, const char *path, struct text *plain, int depth);

static enum dtp_status read_inline_table(struct reader *r, const char *path, int depth)
{
    size_t before = r->entries->count, line = r->line;
    r->at++;
    skip_lines(r);
    while (here(r) != '}') {
        enum dtp_status status = read_pair(r, path, depth);
        if (status != DTP_OK)
            return status;
        skip_lines(r);
        if (here(r) == ',')
            r->at++;
        else if (here(r) != '}')
            return fault(r, "a comma or } is missing in a table between braces");
        skip_lines(r);
    }
    r->at++;
    return r->entries->count > before ? DTP_OK : dtp_entries_add(r->entries, path, "", line, r->faults);
}

/* Tables of a list become entries of their own; plain values are put into `plain`, with commas between. */
static enum dtp_status read_list(struct reader *r, const char *path, struct text *plain, int depth)
{
    char item_path[PATH_BYTES];
    bool first = true;
    if ((size_t)snprintf(item_path, sizeof item_path, "%s[]", path) >= sizeof item_path)
        return fault(r, "a key is too long");
    r->at++;
    skip_lines(r);
    while (here(r) != ']') {
        struct text item = {.length = 0};
        size_t before = r->entries->count;
        enum dtp_status status = read_value(r, item_path, &item, depth + 1);
        if (status != DTP_OK)
            return status;
        bool table = r->entries->count > before;
        for (size_t i = 0; !table && i < item.length + !first; i++)
            put(plain, !first && i == 0 ? ',' : item.bytes[i - !first]);
        plain->cut |= item.cut;
        first &= table;
        skip_lines(r);
        if (here(r) == ',')
            r->at++;
        else if (here(r) != ']')
            return fault(r, "a comma or ] is missing in a list");
        skip_lines(r);
    }
    r->at++;
    return DTP_OK;
}

/* A number, a date or a word, as it stands. */
static enum dtp_status read_word(struct reader *r, struct text *out)
{
    while (here(r) && (isalnum((unsigned char)here(r)) || strchr("+-_.:", here(r)))) {
        if (here(r) != '_')
            put(out, here(r));
        r->at++;
    }
    bool word = out->length && isalpha((unsigned char)out->bytes[0]);
    static const char *const known[] = {"true", "false", "inf", "nan"};
    for (size_t i = 0; word && i < sizeof known / sizeof *known; i++)
        word = strcmp(out->bytes, known[i]) != 0;
    if (!out->length || word)
        return fault(r, "'%.32s' is no value; texts stand in quotes", out->bytes);
    return DTP_OK;
}

/* The value of `path`: put into `plain`, or, of a table, entries of its own, with `plain` empty. */
static enum dtp_status read_value(struct reader *r, const char *path, struct text *plain, int depth)
{
    if (depth > DTP_ENTRIES_MOST_DEPTH)
        return fault(r, "lies too deep for a configuration of a training");
    skip_blanks(r);
    switch (here(r)) {
    case '"':
    case '\'': return read_string(r, plain);
    case '[': return read_list(r, path, plain, depth);
    case '{': return read_inline_table(r, path, depth + 1);
    default: return read_word(r, plain);
    }
}

static enum dtp_status read_pair(struct reader *r, const char *table, int depth)
{
    char path[PATH_BYTES];
    struct text value = {.length = 0};
    size_t line = r->line, before = r->entries->count;
    snprintf(path, sizeof path, "%s", table);
    enum dtp_status status = read_key(r, path, sizeof path);
    if (status != DTP_OK)
        return status;
    if (here(r) != '=')
        return fault(r, "'=' is missing behind a key");
    r->at++;
    skip_blanks(r);
    bool braces = here(r) == '{';
    status = read_value(r, path, &value, depth);
    bool tables = r->entries->count > before && !value.length; /* a list of them, or one */
    if (status != DTP_OK || braces || tables)
        return status;
    return dtp_entries_add(r->entries, path, value.cut ? "(a long value)" : value.bytes, line, r->faults);
}

static enum dtp_status read_header(struct reader *r)
{
    bool many = looks_at(r, "[[");
    r->at += many ? 2 : 1;
    r->table[0] = '\0';
    enum dtp_status status = read_key(r, r->table, sizeof r->table - 2);
    if (status != DTP_OK)
        return status;
    if (!looks_at(r, many ? "]]" : "]"))
        return fault(r, "] is missing behind a table's name");
    r->at += many ? 2 : 1;
    if (many)
        strcat(r->table, "[]");
    return DTP_OK;
}

/* Only a remark may stand behind a setting. */
static enum dtp_status end_line(struct reader *r)
{
    skip_blanks(r);
    skip_comment(r);
    if (here(r) == '\r')
        r->at++;
    return r->at == r->end || *r->at == '\n' ? DTP_OK : fault(r, "something stands behind a setting on its line");
}

enum dtp_status dtp_entries_read_toml(struct dtp_entries *entries, const char *text, size_t bytes,
                                      struct dtp_faults *faults)
{
    struct reader r = {.entries = entries, .faults = faults, .at = text, .end = text + bytes, .line = 1};
    enum dtp_status status = DTP_OK;
    if (looks_at(&r, "\xef\xbb\xbf"))
        r.at += 3;
    if (memchr(text, '\0', bytes))
        return fault(&r, "holds a NUL byte");
    for (skip_lines(&r); r.at < r.end && status == DTP_OK; skip_lines(&r)) {
        status = here(&r) == '[' ? read_header(&r) : read_pair(&r, r.table, 0);
        if (status == DTP_OK)
            status = end_line(&r);
    }
    return status;
}
