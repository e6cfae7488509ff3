/* Flags as a command line has them, in a text file or a shell script.
 *
 * Of a shell's language as much is read as scripts that start trainings use for their flags: words in quotes, lines
 * that go on behind a backslash, remarks, NAME=value and NAME=(...), and $NAME, ${NAME} and ${NAME:-value} of plain
 * names that were set before. What is computed ($(...), $((...)), positional arguments) is not run: it is refused where
 * a flag's value is made of it. */
#include "import/entries.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define WORD_BYTES 1024
#define MOST_VARIABLES 400

struct variable {
    const char *name, *value; /* value NULL: a list of words, which were read where it stands */
};

struct shell {
    struct dtp_entries *entries;
    struct dtp_faults *faults;
    const char *at, *end;
    size_t line;
    struct variable variables[MOST_VARIABLES];
    size_t variable_count;
    char flag[WORD_BYTES], value[WORD_BYTES]; /* the flag that is read, and its values so far */
    size_t flag_line;
    bool within; /* of NAME=( ... ), where line ends separate nothing */
};

struct word {
    char text[WORD_BYTES];
    size_t length, line;
    bool computed; /* some of it only a shell knows */
    bool list;     /* "${NAME[@]}": words that were read where the list stands */
};

static char here(const struct shell *s)
{
    return s->at < s->end ? *s->at : '\0';
}

static void put(struct word *word, char c)
{
    if (word->length + 1 < sizeof word->text)
        word->text[word->length++] = c;
    word->text[word->length] = '\0';
}

static void put_text(struct word *word, const char *text)
{
    while (*text)
        put(word, *text++);
}

/* ---- variables ----------------------------------------------------------------------------------------------------
 */

static const struct variable *variable_of(const struct shell *s, const char *name)
{
    for (size_t i = s->variable_count; i-- > 0;)
        if (strcmp(s->variables[i].name, name) == 0)
            return &s->variables[i];
    return NULL;
}

static bool is_name(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_')
            return false;
    return length > 0 && !isdigit((unsigned char)text[0]);
}

static enum dtp_status set_variable(struct shell *s, const char *name, size_t length, const char *value)
{
    struct variable *v = &s->variables[s->variable_count];
    if (s->variable_count == MOST_VARIABLES)
        return dtp_fault(s->faults, DTP_BAD_INPUT, s->entries->name, s->line, "has more than %d variables",
                         MOST_VARIABLES);
    v->name = dtp_entries_text(s->entries, "%.*s", (int)length, name);
    v->value = value ? dtp_entries_text(s->entries, "%s", value) : NULL;
    s->variable_count++;
    return v->name && (v->value || !value) ? DTP_OK : dtp_fault(s->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* Skips to the bracket that closes the one at s->at. */
static void skip_brackets(struct shell *s, char open, char close)
{
    int depth = 0;
    for (; s->at < s->end; s->at++) {
        s->line += *s->at == '\n';
        depth += *s->at == open;
        depth -= *s->at == close;
        if (depth == 0) {
            s->at++;
            return;
        }
    }
}

/* What stands between the braces of "${...}". */
static void expand_braces(struct shell *s, struct word *out, const char *text, size_t length)
{
    char name[128], standard[WORD_BYTES] = "";
    size_t plain = 0;
    while (plain < length && (isalnum((unsigned char)text[plain]) || text[plain] == '_'))
        plain++;
    snprintf(name, sizeof name, "%.*s", (int)plain, text);
    const struct variable *variable = variable_of(s, name);
    const char *value = variable ? variable->value : NULL, *rest = text + plain;
    bool whole = plain == length, has_standard = length - plain >= 2 && (strncmp(rest, ":-", 2) == 0);
    bool all = length - plain == 3 && (strncmp(rest, "[@]", 3) == 0 || strncmp(rest, "[*]", 3) == 0);
    if (all || (variable && !value)) {
        out->list = true;
        return;
    }
    if (has_standard)
        snprintf(standard, sizeof standard, "%.*s", (int)(length - plain - 2), rest + 2);
    bool known = is_name(name, strlen(name)) && (whole || has_standard) && !strchr(standard, '$');
    out->computed |= !known || (!value && !has_standard);
    if (known && (value || has_standard))
        put_text(out, value ? value : standard);
}

/* At a '$'. A name that nobody set may be a list's, or the environment's. */
static void expand(struct shell *s, struct word *out)
{
    s->at++;
    const char *begin = s->at;
    if (here(s) == '(') {
        skip_brackets(s, '(', ')');
        out->computed = true;
    } else if (here(s) == '{') {
        skip_brackets(s, '{', '}');
        size_t length = (size_t)(s->at - begin);
        expand_braces(s, out, begin + 1, length >= 2 ? length - 2 : 0);
    } else {
        while (isalnum((unsigned char)here(s)) || here(s) == '_')
            s->at++;
        expand_braces(s, out, begin, (size_t)(s->at - begin));
    }
}

/* ---- words --------------------------------------------------------------------------------------------------------
 */

static void read_quoted(struct shell *s, struct word *out)
{
    char quote = *s->at++;
    while (s->at < s->end && *s->at != quote) {
        if (quote == '"' && *s->at == '$') {
            expand(s, out);
            continue;
        }
        if (quote == '"' && *s->at == '\\' && s->at + 1 < s->end)
            s->at++;
        s->line += *s->at == '\n';
        put(out, *s->at == '\n' ? ' ' : *s->at);
        s->at++;
    }
    s->at += s->at < s->end;
}

static bool ends_word(char c)
{
    return !c || strchr(" \t\r\n()&|;<>", c);
}

static void read_word(struct shell *s, struct word *out)
{
    *out = (struct word){.line = s->line};
    while (!ends_word(here(s))) {
        char c = here(s);
        if (c == '"' || c == '\'') {
            read_quoted(s, out);
        } else if (c == '$') {
            expand(s, out);
        } else if (c == '`') {
            s->at++;
            out->computed = true;
        } else if (c == '\\' && s->at + 1 < s->end) {
            s->at++;
            if (*s->at != '\n')
                put(out, *s->at);
            s->line += *s->at == '\n';
            s->at++;
        } else {
            put(out, c);
            s->at++;
        }
    }
}

/* ---- flags --------------------------------------------------------------------------------------------------------
 */

static enum dtp_status end_flag(struct shell *s)
{
    if (!s->flag[0])
        return DTP_OK;
    char path[WORD_BYTES];
    snprintf(path, sizeof path, "%s", s->flag);
    s->flag[0] = '\0';
    for (char *c = path; *c; c++)
        *c = *c == '-' ? '_' : *c;
    return dtp_entries_add(s->entries, path, s->value[0] ? s->value : "true", s->flag_line, s->faults);
}

/* "--flag", "--flag=value". */
static enum dtp_status begin_flag(struct shell *s, const struct word *word)
{
    enum dtp_status status = end_flag(s);
    const char *name = word->text + 2;
    size_t length = strcspn(name, "=");
    snprintf(s->flag, sizeof s->flag, "%.*s", (int)length, name);
    snprintf(s->value, sizeof s->value, "%s", name[length] ? name + length + 1 : "");
    s->flag_line = word->line;
    return status;
}

static enum dtp_status add_value(struct shell *s, const struct word *word)
{
    size_t used = strlen(s->value);
    snprintf(s->value + used, sizeof s->value - used, "%s%s", used ? "," : "", word->computed ? "$" : word->text);
    return DTP_OK;
}

static enum dtp_status read_words(struct shell *s);

/* Words up to `end`, where line ends separate nothing: of a list, or of a text of flags in quotes. */
static enum dtp_status read_list(struct shell *s, const char *name, size_t length, const char *end)
{
    const char *outer = s->end;
    bool within = s->within;
    enum dtp_status status = set_variable(s, name, length, NULL);
    s->end = end;
    s->within = true;
    if (status == DTP_OK)
        status = read_words(s);
    s->end = outer;
    s->within = within;
    s->at = end + (end < outer);
    return status;
}

/* The quote or bracket that ends what begins at `text`, or the end of all. */
static const char *find_close(const struct shell *s, const char *text, char close)
{
    bool double_quoted = false;
    for (; text < s->end; text++) {
        if (*text == '\\' && text + 1 < s->end)
            text++;
        else if (*text == close && !(double_quoted && close == ')'))
            return text;
        else if (*text == '"')
            double_quoted = !double_quoted;
    }
    return s->end;
}

static bool holds_flags(const char *text, const char *end)
{
    for (; end - text > 2; text++)
        if (text[0] == '-' && text[1] == '-' && isalpha((unsigned char)text[2]) && (strchr(" \t\n\"'", text[-1])))
            return true;
    return false;
}

/* At NAME=(...) or NAME="... --flag ...": reads the flags in it. False where there is no such thing. */
static bool take_list(struct shell *s, enum dtp_status *status)
{
    size_t length = 0;
    while (s->at + length < s->end && (isalnum((unsigned char)s->at[length]) || s->at[length] == '_'))
        length++;
    const char *name = s->at, *open = name + length + 1;
    if (open >= s->end || !is_name(name, length) || name[length] != '=' || !strchr("(\"'", *open) || !*open)
        return false;
    const char *close = find_close(s, open + 1, *open == '(' ? ')' : *open);
    if (*open != '(' && !holds_flags(open + 1, close))
        return false;
    *status = end_flag(s);
    s->at = open + 1;
    *status = dtp_worse(*status, read_list(s, name, length, close));
    return true;
}

static enum dtp_status take_word(struct shell *s, const struct word *word)
{
    size_t length = strcspn(word->text, "=");
    if (word->list)
        return DTP_OK;
    if (strncmp(word->text, "--", 2) == 0 && word->text[2] && !strchr(word->text, ' '))
        return begin_flag(s, word);
    if (word->length > 3 && strcmp(word->text + word->length - 3, ".py") == 0) /* the program, not a value */
        return end_flag(s);
    if (s->flag[0])
        return add_value(s, word);
    if (word->text[length] == '=' && is_name(word->text, length) && !word->computed)
        return set_variable(s, word->text, length, word->text + length + 1);
    return DTP_OK;
}

/* What stands between words. */
static enum dtp_status skip_between(struct shell *s)
{
    char c = here(s);
    if (c == '#') {
        while (s->at < s->end && *s->at != '\n')
            s->at++;
        return DTP_OK;
    }
    if (c == '\\') {
        s->at += 2;
        s->line++;
        return DTP_OK;
    }
    s->line += c == '\n';
    s->at++;
    return c == ' ' || c == '\t' || c == '\r' || (c == '\n' && s->within) ? DTP_OK : end_flag(s);
}

static enum dtp_status read_words(struct shell *s)
{
    enum dtp_status status = DTP_OK;
    while (s->at < s->end && status == DTP_OK) {
        bool goes_on = s->end - s->at > 1 && s->at[0] == '\\' && s->at[1] == '\n';
        if (here(s) == '#' || goes_on || ends_word(here(s))) {
            status = skip_between(s);
        } else if (!take_list(s, &status)) {
            struct word word;
            read_word(s, &word);
            status = take_word(s, &word);
        }
    }
    return dtp_worse(status, end_flag(s));
}

enum dtp_status dtp_entries_read_flags(struct dtp_entries *entries, const char *text, size_t bytes,
                                       struct dtp_faults *faults)
{
    struct shell shell = {.entries = entries, .faults = faults, .at = text, .end = text + bytes, .line = 1};
    if (memchr(text, '\0', bytes))
        return dtp_fault(faults, DTP_BAD_INPUT, entries->name, 0, "holds a NUL byte");
    return read_words(&shell);
}
