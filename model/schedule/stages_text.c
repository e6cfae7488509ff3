/* Stages as a Megatron layout text. Rules: NVIDIA/Megatron-LM, core/transformer/pipeline_parallel_layer_layout.py. */
#include "schedule/stages.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LETTERS 262144u /* of a text whose repetitions are written out */

/* ---- reading -------------------------------------------------------------------------------------------------------
 */

/* A text while its repetitions are written out. */
struct reading {
    const char *text;
    char *letters;
    size_t count, room;
    struct dtp_faults *faults;
};

static enum dtp_status fault_at(const struct reading *r, const char *at, const char *what)
{
    return dtp_fault(r->faults, DTP_BAD_INPUT, NULL, 0, "layout: character %zu: %s", (size_t)(at - r->text) + 1, what);
}

/* "*29" behind a part or a group; 1 where there is none. */
static enum dtp_status read_times(const struct reading *r, const char **at, uint32_t *times)
{
    *times = 1;
    if (**at != '*')
        return DTP_OK;
    const char *digits = ++*at;
    uint64_t value = 0;
    while (**at >= '0' && **at <= '9' && value <= MOST_LETTERS)
        value = 10 * value + (uint64_t)(*(*at)++ - '0');
    if (*at == digits)
        return fault_at(r, digits, "a number is missing behind '*'; write t*3");
    if (value < 1 || value > MOST_LETTERS)
        return fault_at(r, digits, "repetitions are 1 to 262144");
    *times = (uint32_t)value;
    return DTP_OK;
}

static bool is_letter(char c)
{
    return c && strchr("EtmL|", c);
}

/* Room for so many letters more. */
static enum dtp_status make_room(struct reading *r, const char *at, size_t more)
{
    if (more > MOST_LETTERS - r->count)
        return fault_at(r, at, "the layout has more than 262144 parts");
    if (r->count + more <= r->room)
        return DTP_OK;
    size_t room = 2 * (r->count + more);
    char *letters = realloc(r->letters, room);
    if (!letters)
        return dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    r->letters = letters;
    r->room = room;
    return DTP_OK;
}

/* Appends the last `bytes` letters so often that they stand there `times` times. */
static enum dtp_status repeat(struct reading *r, const char *at, size_t bytes, uint32_t times)
{
    enum dtp_status status = make_room(r, at, bytes * (times - 1));
    for (uint32_t i = 1; i < times && status == DTP_OK; i++) {
        memcpy(r->letters + r->count, r->letters + r->count - bytes, bytes);
        r->count += bytes;
    }
    return status;
}

/* One letter with its repetitions. */
static enum dtp_status read_letter(struct reading *r, const char **at)
{
    uint32_t times;
    const char *letter = (*at)++;
    if (!is_letter(*letter))
        return fault_at(r, letter,
                        *letter == '(' ? "groups hold no groups"
                        : isdigit((unsigned char)*letter)
                            ? "a number of layers stands behind its letter, 'Et*8|t*8|t*8|t*8L'; of ranks it is pp"
                            : "neither E, t, m, L, '|', '(' nor a comma; write Et*3|(tt|)*29m|L");
    enum dtp_status status = read_times(r, at, &times);
    if (status == DTP_OK)
        status = make_room(r, letter, 1);
    if (status != DTP_OK)
        return status;
    r->letters[r->count++] = *letter;
    return repeat(r, letter, 1, times);
}

static enum dtp_status read_group(struct reading *r, const char **at)
{
    uint32_t times;
    const char *open = (*at)++;
    size_t before = r->count;
    enum dtp_status status = DTP_OK;
    while (status == DTP_OK && **at && **at != ')')
        if (**at == ',')
            ++*at;
        else
            status = read_letter(r, at);
    if (status != DTP_OK)
        return status;
    if (**at != ')' || (*at)[1] != '*')
        return fault_at(r, open, "a group ends in )* and a number, as in (tt|)*29");
    if (r->count == before)
        return fault_at(r, open, "the group is empty");
    ++*at;
    status = read_times(r, at, &times);
    return status == DTP_OK ? repeat(r, open, r->count - before, times) : status;
}

static enum dtp_status write_out(struct reading *r)
{
    enum dtp_status status = DTP_OK;
    for (const char *at = r->text; *at && status == DTP_OK;)
        if (*at == ',')
            at++;
        else if (*at == '(')
            status = read_group(r, &at);
        else
            status = read_letter(r, &at);
    return status;
}

/* ---- what Megatron-LM asks of a layout -----------------------------------------------------------------------------
 */

/* Parts of all stages together. */
struct tally {
    uint32_t embeddings, heads, layers, mtp_layers, mtp_stages, mtp_stage;
    bool ordered; /* E first, L last, no layer behind an MTP layer */
};

static struct tally count_parts(const struct reading *r, struct dtp_stages *out)
{
    struct tally t = {.ordered = r->count > 0 && r->letters[0] == 'E' && r->letters[r->count - 1] == 'L'};
    uint32_t stage = 0;
    for (size_t i = 0; i < r->count; i++) {
        struct dtp_stage_parts *parts = &out->parts[stage];
        switch (r->letters[i]) {
        case 'E':
            parts->embedding = true;
            t.embeddings++;
            break;
        case 'L':
            parts->head = true;
            t.heads++;
            break;
        case 't':
            t.ordered = t.ordered && !t.mtp_layers;
            parts->layers++;
            t.layers++;
            break;
        case 'm':
            t.mtp_stages += !parts->mtp_layers;
            t.mtp_stage = stage;
            parts->mtp_layers++;
            t.mtp_layers++;
            break;
        default:
            stage++;
            out->parts[stage].first_layer = t.layers;
            break;
        }
    }
    return t;
}

static enum dtp_status check_parts(const struct tally *t, const struct dtp_stages_model *model, uint32_t ranks,
                                   uint32_t count, struct dtp_faults *faults)
{
    if (t->embeddings != 1 || t->heads != 1)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "layout: has %" PRIu32 " E and %" PRIu32 " L; one embedding and one head are needed",
                         t->embeddings, t->heads);
    if (!t->ordered)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "layout: parts stand in the order of the model: E first, then t, then m, L last");
    if (t->layers == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "layout: has no layer t");
    if (t->layers != model->layers || t->mtp_layers != model->mtp_layers)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "layout: has %" PRIu32 " t and %" PRIu32 " m, but the model %" PRIu32 " layers and %" PRIu32
                         " MTP layers",
                         t->layers, t->mtp_layers, model->layers, model->mtp_layers);
    if (ranks < 1 || count % ranks) {
        uint32_t less = ranks ? count - count % ranks : 0, more = less + ranks;
        char fewer[40] = "";
        if (less)
            snprintf(fewer, sizeof fewer, " or less makes %" PRIu32 " or", less);
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "layout: its %" PRIu32 " stages are no multiple of the %" PRIu32 " ranks; '|' more%s %" PRIu32,
                         count, ranks, less ? fewer : " makes", more);
    }
    if (t->mtp_stages > 1)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "layout: all m stand in one stage");
    if (t->mtp_layers && t->mtp_stage < count - ranks)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "layout: m stands in stage %" PRIu32 ", but belongs into the last chunk of a rank: one of the "
                         "stages %" PRIu32 " to %" PRIu32,
                         t->mtp_stage, count - ranks, count - 1);
    return DTP_OK;
}

enum dtp_status dtp_stages_parse(const char *text, const struct dtp_stages_model *model, uint32_t ranks,
                                 struct dtp_stages *out, struct dtp_faults *faults)
{
    struct reading r = {.text = text, .faults = faults};
    *out = (struct dtp_stages){0};
    enum dtp_status status = write_out(&r);
    size_t count = 1;
    for (size_t i = 0; i < r.count; i++)
        count += r.letters[i] == '|';
    if (status == DTP_OK && count > DTP_STAGES_MAX)
        status =
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "layout: has %zu stages, more than %u", count, DTP_STAGES_MAX);
    if (status == DTP_OK && !(out->parts = calloc(count, sizeof *out->parts)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        out->count = (uint32_t)count;
        struct tally tally = count_parts(&r, out);
        status = check_parts(&tally, model, ranks, out->count, faults);
    }
    free(r.letters);
    if (status != DTP_OK)
        dtp_stages_destroy(out);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------------------------------
 */

static void write_repeated(FILE *file, char letter, uint32_t times)
{
    if (times > 2)
        fprintf(file, "%c*%" PRIu32, letter, times);
    for (uint32_t i = 0; i < times && times <= 2; i++)
        fputc(letter, file);
}

static void write_stage(FILE *file, const struct dtp_stage_parts *p)
{
    if (p->embedding)
        fputc('E', file);
    write_repeated(file, 't', p->layers);
    write_repeated(file, 'm', p->mtp_layers);
    if (p->head)
        fputc('L', file);
}

static bool same_parts(const struct dtp_stage_parts *a, const struct dtp_stage_parts *b)
{
    return a->layers == b->layers && a->mtp_layers == b->mtp_layers && a->embedding == b->embedding &&
           a->head == b->head;
}

char *dtp_stages_text(const struct dtp_stages *stages)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return NULL;
    for (uint32_t i = 0; i < stages->count;) {
        uint32_t same = 1;
        while (i + same + 1 < stages->count && same_parts(&stages->parts[i], &stages->parts[i + same]))
            same++;
        bool last = i + 1 == stages->count;
        if (same > 2)
            fputc('(', file);
        else
            same = 1;
        write_stage(file, &stages->parts[i]);
        fputs(same > 2 ? "|)" : last ? "" : "|", file);
        if (same > 2)
            fprintf(file, "*%" PRIu32, same);
        i += same;
    }
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
