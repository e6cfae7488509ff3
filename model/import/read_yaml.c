/* YAML by libyaml, and JSON by jansson, which judges it, and libyaml, which knows lines. */
#include "import/entries.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#define MOST_OPEN_BRACKETS 1000

struct walk {
    struct dtp_entries *entries;
    struct dtp_faults *faults;
    yaml_document_t *document;
    char path[512];
};

static size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static enum dtp_status fault(const struct walk *walk, const yaml_node_t *node, const char *words)
{
    return dtp_fault(walk->faults, DTP_BAD_INPUT, walk->entries->name, line_of(node), "%s", words);
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

/* What YAML 1.1 reads into a word that stands without quotes; PyYAML, which all of these programs use, does. */
static const char *plain_value(const yaml_node_t *node, bool *null)
{
    static const char *const yes[] = {"true", "yes", "on", NULL}, *const no[] = {"false", "no", "off", NULL},
                             *const nothing[] = {"null", "~", "", NULL};
    const char *text = (const char *)node->data.scalar.value;
    *null = false;
    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return strcasecmp(text, "true") == 0 ? "true" : strcasecmp(text, "false") == 0 ? "false" : text;
    *null = is_one_of(text, nothing) || strcmp(text, "None") == 0; /* as Python prints it; "none" is a word */
    return is_one_of(text, yes) ? "true" : is_one_of(text, no) ? "false" : text;
}

/* "scalars" of a list whose items are all plain values. */
static bool is_flat(const struct walk *walk, const yaml_node_t *node)
{
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++)
        if (yaml_document_get_node(walk->document, *i)->type != YAML_SCALAR_NODE)
            return false;
    return true;
}

static enum dtp_status add_list(struct walk *walk, const yaml_node_t *node)
{
    char text[1024] = "";
    size_t used = 0;
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++) {
        bool null;
        const char *value = plain_value(yaml_document_get_node(walk->document, *i), &null);
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? "," : "", value);
    }
    if (used >= sizeof text)
        return dtp_entries_add(walk->entries, walk->path, "(a long list)", line_of(node), walk->faults);
    return dtp_entries_add(walk->entries, walk->path, text, line_of(node), walk->faults);
}

static enum dtp_status walk_node(struct walk *walk, const yaml_node_t *node, int depth);

/* Appends to the path, walks, and takes it off again. */
static enum dtp_status walk_below(struct walk *walk, const char *separator, const char *name, const yaml_node_t *node,
                                  int depth)
{
    size_t length = strlen(walk->path);
    int wrote = snprintf(walk->path + length, sizeof walk->path - length, "%s%s", length ? separator : "", name);
    enum dtp_status status = wrote < 0 || (size_t)wrote >= sizeof walk->path - length
                                 ? fault(walk, node, "lies too deep for a configuration of a training")
                                 : walk_node(walk, node, depth + 1);
    walk->path[length] = '\0';
    return status;
}

/* More than anybody writes, or reads of faults: aliases may go on for ever. */
static bool is_over(const struct walk *walk)
{
    return walk->entries->too_many || walk->faults->count >= DTP_FAULTS_KEPT;
}

static enum dtp_status walk_table(struct walk *walk, const yaml_node_t *node, int depth)
{
    enum dtp_status worst = DTP_OK;
    yaml_node_pair_t *pairs = node->data.mapping.pairs.start;
    for (yaml_node_pair_t *p = pairs; p < node->data.mapping.pairs.top && worst != DTP_ENVIRONMENT && !is_over(walk);
         p++) {
        const yaml_node_t *key = yaml_document_get_node(walk->document, p->key);
        if (key->type != YAML_SCALAR_NODE || !key->data.scalar.length ||
            strlen((const char *)key->data.scalar.value) != key->data.scalar.length)
            worst = dtp_worse(worst, fault(walk, key, "a key that is no plain text"));
        else if (strcmp((const char *)key->data.scalar.value, "<<") == 0)
            worst = dtp_worse(worst, fault(walk, key, "<<: merged tables are not read; write out what they hold"));
        else {
            size_t count = walk->entries->count;
            worst = dtp_worse(worst, walk_below(walk, ".", (const char *)key->data.scalar.value,
                                                yaml_document_get_node(walk->document, p->value), depth));
            bool table = yaml_document_get_node(walk->document, p->value)->type == YAML_MAPPING_NODE;
            /* The line of the key, not of a value that begins below it. */
            if (!table && walk->entries->count == count + 1)
                walk->entries->items[count].line = line_of(key);
        }
    }
    if (pairs == node->data.mapping.pairs.top && walk->path[0])
        worst = dtp_entries_add(walk->entries, walk->path, "", line_of(node), walk->faults);
    return worst;
}

static enum dtp_status walk_node(struct walk *walk, const yaml_node_t *node, int depth)
{
    if (depth > DTP_ENTRIES_MOST_DEPTH)
        return fault(walk, node, "lies too deep for a configuration of a training");
    if (node->type == YAML_MAPPING_NODE)
        return walk_table(walk, node, depth);
    if (node->type == YAML_SEQUENCE_NODE && !is_flat(walk, node)) {
        enum dtp_status worst = DTP_OK;
        yaml_node_item_t *i = node->data.sequence.items.start;
        for (; i < node->data.sequence.items.top && worst == DTP_OK; i++)
            worst = walk_below(walk, "", "[]", yaml_document_get_node(walk->document, *i), depth);
        return worst;
    }
    if (node->type == YAML_SEQUENCE_NODE)
        return add_list(walk, node);
    bool null;
    const char *value = plain_value(node, &null);
    if (strlen((const char *)node->data.scalar.value) != node->data.scalar.length)
        return fault(walk, node, "holds a NUL byte");
    size_t count = walk->entries->count;
    enum dtp_status status = dtp_entries_add(walk->entries, walk->path, value, line_of(node), walk->faults);
    if (status == DTP_OK)
        walk->entries->items[count].null = null;
    return status;
}

static enum dtp_status walk_document(struct dtp_entries *entries, yaml_document_t *document, struct dtp_faults *faults)
{
    struct walk walk = {.entries = entries, .faults = faults, .document = document};
    const yaml_node_t *root = yaml_document_get_root_node(document);
    if (!root)
        return dtp_fault(faults, DTP_BAD_INPUT, entries->name, 0, "is empty");
    if (root->type != YAML_MAPPING_NODE)
        return fault(&walk, root, "is no table of keys and values");
    return walk_node(&walk, root, 0);
}

/* The first line with so many open brackets that no configuration has them, or 0. libyaml looks at all open ones for
 * each token, so that a file of nothing else would take hours. Brackets in quotes and comments count too. */
static size_t line_of_depth(const char *text, size_t bytes)
{
    size_t line = 1, depth = 0;
    for (size_t i = 0; i < bytes; i++) {
        line += text[i] == '\n';
        if (text[i] == '[' || text[i] == '{')
            depth++;
        else if ((text[i] == ']' || text[i] == '}') && depth > 0)
            depth--;
        if (depth > MOST_OPEN_BRACKETS)
            return line;
    }
    return 0;
}

enum dtp_status dtp_entries_read_yaml(struct dtp_entries *entries, const char *text, size_t bytes,
                                      struct dtp_faults *faults)
{
    yaml_parser_t parser;
    yaml_document_t document;
    size_t deep = line_of_depth(text, bytes);
    if (deep)
        return dtp_fault(faults, DTP_BAD_INPUT, entries->name, deep, "lies too deep for a configuration of a training");
    if (!yaml_parser_initialize(&parser))
        return dtp_fault(faults, DTP_ENVIRONMENT, entries->name, 0, "out of memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    enum dtp_status status;
    if (yaml_parser_load(&parser, &document)) {
        status = walk_document(entries, &document, faults);
        yaml_document_delete(&document);
    } else if (parser.error == YAML_MEMORY_ERROR) {
        status = dtp_fault(faults, DTP_ENVIRONMENT, entries->name, 0, "out of memory");
    } else {
        status = dtp_fault(faults, DTP_BAD_INPUT, entries->name, parser.problem_mark.line + 1, "no YAML: %s",
                           parser.problem ? parser.problem : "it cannot be read");
    }
    yaml_parser_delete(&parser);
    return status;
}

enum dtp_status dtp_entries_read_json(struct dtp_entries *entries, const char *text, size_t bytes,
                                      struct dtp_faults *faults)
{
    json_error_t error;
    size_t mark =
        bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* a byte order mark, which libyaml skips itself */
    json_t *root = json_loadb(text + mark, bytes - mark, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return dtp_fault(faults, DTP_BAD_INPUT, entries->name, error.line > 0 ? (size_t)error.line : 0, "no JSON: %s",
                         error.text);
    json_decref(root);
    return dtp_entries_read_yaml(entries, text, bytes, faults);
}
