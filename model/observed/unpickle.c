#include "observed/unpickle.h"

#include "base/grow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A list or dictionary may be changed only in the place of the stack where it was made, and only until it is fetched by
 * its name: then nothing that is inside it can get it inside. */
struct slot {
    json_t *value; /* NULL: a mark */
    uint32_t depth;
    bool made_here;
    size_t name; /* 1 + its place in the memo; 0: none */
};

struct named {
    json_t *value; /* owned */
    uint32_t depth;
    size_t made_at; /* slot where it was made */
};

struct machine {
    const char *path;
    const unsigned char *bytes;
    size_t count, at, opcode_at;
    struct slot *stack;
    size_t height, room;
    struct named *memo;
    size_t memo_count, memo_room;
    struct dtp_faults *faults;
    enum dtp_status status;
};

static void refuse(struct machine *m, const char *why)
{
    if (m->status == DTP_OK)
        m->status = dtp_fault(m->faults, DTP_BAD_INPUT, m->path, 0, "pickle, byte %zu: %s", m->opcode_at, why);
}

static void no_memory(struct machine *m)
{
    if (m->status == DTP_OK)
        m->status = dtp_fault(m->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* A whole number of so many bytes, the least first. */
static uint64_t take_number(struct machine *m, size_t bytes)
{
    uint64_t value = 0;
    if (m->count - m->at < bytes) {
        refuse(m, "it ends within an argument; was the file copied whole?");
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)m->bytes[m->at + i] << (8 * i);
    m->at += bytes;
    return value;
}

static const char *take_text(struct machine *m, uint64_t bytes)
{
    if (m->status != DTP_OK)
        return NULL;
    if (m->count - m->at < bytes) {
        refuse(m, "it ends within a text; was the file copied whole?");
        return NULL;
    }
    m->at += (size_t)bytes;
    return (const char *)m->bytes + m->at - bytes;
}

/* ---- stack and memo ---------------------------------------------------------------------------------------------- */

/* Takes the value over. */
static void push(struct machine *m, json_t *value, uint32_t depth, bool made_here)
{
    if (!dtp_grow(&m->stack, m->height, &m->room, sizeof *m->stack)) {
        json_decref(value);
        no_memory(m);
        return;
    }
    m->stack[m->height++] = (struct slot){value, depth, made_here, 0};
}

static void push_new(struct machine *m, json_t *value, bool container)
{
    if (value)
        push(m, value, container ? 1 : 0, container);
    else
        no_memory(m);
}

/* Where the items above the last mark begin; the mark is the slot before. */
static size_t above_mark(struct machine *m)
{
    for (size_t i = m->height; i > 0; i--)
        if (!m->stack[i - 1].value)
            return i;
    refuse(m, "there is no mark");
    return 0;
}

static void drop(struct machine *m, size_t height)
{
    while (m->height > height) {
        json_decref(m->stack[--m->height].value);
    }
}

static void name_top(struct machine *m, uint64_t index)
{
    if (m->height == 0 || !m->stack[m->height - 1].value) {
        refuse(m, "there is nothing to name");
        return;
    }
    if (index > m->count) { /* names are counted up, a name takes a byte or more */
        refuse(m, "a name that large is none of Python's");
        return;
    }
    if (index >= m->memo_room) {
        size_t room = 2 * (size_t)index + 256;
        struct named *grown = realloc(m->memo, room * sizeof *grown);
        if (!grown) {
            no_memory(m);
            return;
        }
        memset(grown + m->memo_room, 0, (room - m->memo_room) * sizeof *grown);
        m->memo = grown;
        m->memo_room = room;
    }
    struct slot *top = &m->stack[m->height - 1];
    if (top->made_here && top->name) {
        refuse(m, "a value that is named twice while it is made");
        return;
    }
    top->name = (size_t)index + 1;
    json_decref(m->memo[index].value);
    m->memo[index] = (struct named){json_incref(top->value), top->depth, m->height - 1};
}

static void get_named(struct machine *m, uint64_t index)
{
    if (index >= m->memo_room || !m->memo[index].value) {
        refuse(m, "nothing has that name");
        return;
    }
    struct named *named = &m->memo[index];
    struct slot *made = named->made_at < m->height ? &m->stack[named->made_at] : NULL;
    if (made && made->value == named->value)
        made->made_here = false; /* it stays as it is from here on */
    push(m, json_incref(named->value), named->depth, false);
}

/* ---- containers -------------------------------------------------------------------------------------------------- */

/* The list or dictionary at `at`, to be added to; NULL after a refusal. */
static struct slot *container_at(struct machine *m, size_t at, bool list)
{
    struct slot *slot = at < m->height ? &m->stack[at] : NULL;
    if (m->status != DTP_OK)
        return NULL;
    if (slot && slot->value && slot->made_here && (list ? json_is_array(slot->value) : json_is_object(slot->value)))
        return slot;
    refuse(m, "what is added to is no list or dictionary that was made here");
    return NULL;
}

/* What is named later by its place in the memo is as deep as it became. */
static bool deepens(struct machine *m, struct slot *container, const struct slot *item)
{
    if (item->depth + 1 > container->depth)
        container->depth = item->depth + 1;
    if (container->name && m->memo[container->name - 1].value == container->value)
        m->memo[container->name - 1].depth = container->depth;
    if (container->depth <= DTP_UNPICKLE_MOST_DEPTH)
        return true;
    refuse(m, "values are nested too deep");
    return false;
}

static void append_items(struct machine *m, size_t first, size_t container)
{
    struct slot *list = container_at(m, container, true);
    for (size_t i = first; list && i < m->height && deepens(m, list, &m->stack[i]); i++)
        if (json_array_append(list->value, m->stack[i].value) != 0)
            no_memory(m);
    if (m->status == DTP_OK)
        drop(m, container + 1);
}

static void set_items(struct machine *m, size_t first, size_t container)
{
    struct slot *dictionary = container_at(m, container, false);
    if (dictionary && (m->height - first) % 2)
        refuse(m, "a key without a value");
    for (size_t i = first; m->status == DTP_OK && i + 1 < m->height; i += 2) {
        const struct slot *key = &m->stack[i], *value = &m->stack[i + 1];
        if (!json_is_string(key->value))
            refuse(m, "a key that is no text");
        else if (deepens(m, dictionary, value) && json_object_setn(dictionary->value, json_string_value(key->value),
                                                                   json_string_length(key->value), value->value) != 0)
            no_memory(m);
    }
    if (m->status == DTP_OK)
        drop(m, container + 1);
}

static void make_tuple(struct machine *m, size_t first)
{
    struct slot made = {json_array(), 1, false, 0};
    if (!made.value)
        no_memory(m);
    for (size_t i = first; m->status == DTP_OK && i < m->height; i++) {
        if (!m->stack[i].value)
            refuse(m, "a mark within a tuple");
        else if (deepens(m, &made, &m->stack[i]) && json_array_append(made.value, m->stack[i].value) != 0)
            no_memory(m);
    }
    if (m->status != DTP_OK) {
        json_decref(made.value);
        return;
    }
    drop(m, first);
    push(m, made.value, made.depth, false);
}

/* ---- opcodes ----------------------------------------------------------------------------------------------------- */

static void push_text(struct machine *m, uint64_t bytes)
{
    const char *text = take_text(m, bytes);
    json_t *value = text ? json_stringn(text, (size_t)bytes) : NULL;
    if (text && !value)
        refuse(m, "a text that is no UTF-8");
    else if (text)
        push(m, value, 0, false);
}

/* Two's complement, of as many bytes as it takes. */
static void push_long(struct machine *m, uint64_t bytes)
{
    if (bytes > 8) {
        refuse(m, "a number beyond 64 bits");
        return;
    }
    uint64_t value = take_number(m, (size_t)bytes);
    if (bytes > 0 && bytes < 8 && value >> (8 * bytes - 1))
        value |= UINT64_MAX << (8 * bytes);
    push_new(m, json_integer((json_int_t)value), false);
}

/* Big endian. */
static void push_real(struct machine *m)
{
    uint64_t bits = 0;
    double value;
    const char *text = take_text(m, 8);
    for (int i = 0; text && i < 8; i++)
        bits = bits << 8 | (unsigned char)text[i];
    memcpy(&value, &bits, sizeof value);
    json_t *real = text ? json_real(value) : NULL;
    if (text && !real) /* JSON has neither infinities nor NAN */
        real = json_null();
    if (text)
        push_new(m, real, false);
}

static void with_mark(struct machine *m, void (*use)(struct machine *m, size_t first, size_t container))
{
    size_t first = above_mark(m);
    if (m->status == DTP_OK && first < 2)
        refuse(m, "there is nothing below the mark");
    if (m->status == DTP_OK)
        use(m, first, first - 2);
}

static void tuple_of(struct machine *m, size_t items)
{
    if (m->height < items)
        refuse(m, "there are too few values");
    else
        make_tuple(m, m->height - items);
}

static void marked_tuple(struct machine *m)
{
    size_t first = above_mark(m);
    if (m->status != DTP_OK)
        return;
    make_tuple(m, first);
    if (m->status == DTP_OK) { /* into the mark's place */
        m->stack[first - 1] = m->stack[first];
        m->height = first;
    }
}

static bool obey_values(struct machine *m, unsigned char opcode)
{
    switch (opcode) {
    case 'N': push_new(m, json_null(), false); return true;
    case 0x88: push_new(m, json_true(), false); return true;
    case 0x89: push_new(m, json_false(), false); return true;
    case 'J': push_new(m, json_integer((int32_t)take_number(m, 4)), false); return true;
    case 'K': push_new(m, json_integer((json_int_t)take_number(m, 1)), false); return true;
    case 'M': push_new(m, json_integer((json_int_t)take_number(m, 2)), false); return true;
    case 0x8a: push_long(m, take_number(m, 1)); return true;
    case 'G': push_real(m); return true;
    case 0x8c: push_text(m, take_number(m, 1)); return true;
    case 'X': push_text(m, take_number(m, 4)); return true;
    case 0x8d: push_text(m, take_number(m, 8)); return true;
    case '}': push_new(m, json_object(), true); return true;
    case ']': push_new(m, json_array(), true); return true;
    case ')': make_tuple(m, m->height); return true;
    default: return false;
    }
}

static bool obey_structure(struct machine *m, unsigned char opcode)
{
    switch (opcode) {
    case '(': push(m, NULL, 0, false); return true;
    case 'a': m->height >= 2 ? append_items(m, m->height - 1, m->height - 2) : refuse(m, "too few values"); return true;
    case 'e': with_mark(m, append_items); return true;
    case 's': m->height >= 3 ? set_items(m, m->height - 2, m->height - 3) : refuse(m, "too few values"); return true;
    case 'u': with_mark(m, set_items); return true;
    case 't': marked_tuple(m); return true;
    case 0x85: tuple_of(m, 1); return true;
    case 0x86: tuple_of(m, 2); return true;
    case 0x87: tuple_of(m, 3); return true;
    case 0x94: name_top(m, m->memo_count++); return true;
    case 'q': name_top(m, take_number(m, 1)); return true;
    case 'r': name_top(m, take_number(m, 4)); return true;
    case 'h': get_named(m, take_number(m, 1)); return true;
    case 'j': get_named(m, take_number(m, 4)); return true;
    case 0x80: take_number(m, 1); return true; /* protocol */
    case 0x95: take_number(m, 8); return true; /* frame */
    default: return false;
    }
}

static void refuse_opcode(struct machine *m, unsigned char opcode)
{
    static const char calling[] = "cRbioPQ\x81\x82\x83\x84\x92\x93";
    char why[160];
    if (opcode && memchr(calling, opcode, sizeof calling - 1))
        snprintf(
            why, sizeof why,
            "opcode 0x%02x would import, call or build something, which no recorded memory needs; it is not obeyed",
            opcode);
    else
        snprintf(why, sizeof why, "opcode 0x%02x is none of a history of PyTorch's memory", opcode);
    refuse(m, why);
}

static json_t *run(struct machine *m)
{
    while (m->status == DTP_OK) {
        m->opcode_at = m->at;
        if (m->at == m->count) {
            refuse(m, "it ends without its end mark; was the file copied whole?");
            break;
        }
        unsigned char opcode = m->bytes[m->at++];
        if (opcode == '.') {
            if (m->height == 1 && m->stack[0].value)
                return json_incref(m->stack[0].value);
            refuse(m, "it ends with other than one value");
        } else if (!obey_values(m, opcode) && !obey_structure(m, opcode))
            refuse_opcode(m, opcode);
    }
    return NULL;
}

enum dtp_status dtp_unpickle(const char *path, const unsigned char *bytes, size_t count, json_t **out,
                             struct dtp_faults *faults)
{
    struct machine m = {.path = path, .bytes = bytes, .count = count, .faults = faults};
    *out = run(&m);
    drop(&m, 0);
    for (size_t i = 0; i < m.memo_room; i++)
        json_decref(m.memo[i].value);
    free(m.stack);
    free(m.memo);
    return m.status;
}
