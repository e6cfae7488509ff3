#include "program/program_set.h"

#include "base/crc64.h"
#include "program/program_text_reader.h"

#include <errno.h>
#include <stdlib.h>

enum dtp_status dtp_program_set_write_text(const struct dtp_program_set *set, FILE *file)
{
    enum dtp_status status = DTP_OK;
    fputs("set 1", file);
    if (set->run)
        fprintf(file, " run %u", set->run);
    fputs(set->apart ? " apart\n" : "\n", file);
    for (uint32_t r = 0; r < set->role_count && status == DTP_OK; r++) {
        fprintf(file, "role %u \"%s\" ranks %u\n", r, set->roles[r].name, set->roles[r].ranks);
        status = dtp_program_write_text(set->roles[r].program, file);
    }
    fprintf(file, "end roles %u\n", set->role_count);
    return ferror(file) ? DTP_ENVIRONMENT : status;
}

enum dtp_status dtp_program_set_digest(const struct dtp_program_set *set, uint64_t *out, struct dtp_faults *faults)
{
    *out = 0;
    for (uint32_t r = 0; r < set->role_count; r++) {
        uint64_t of_role[2] = {set->roles[r].ranks};
        enum dtp_status status = dtp_program_digest(set->roles[r].program, &of_role[1], faults);
        if (status != DTP_OK)
            return status;
        *out = dtp_crc64(*out, of_role, sizeof of_role);
    }
    if (set->run)
        *out = dtp_crc64(*out, &set->run, sizeof set->run);
    if (set->apart)
        *out = dtp_crc64(*out, "apart", sizeof "apart");
    return DTP_OK;
}

/* The next line that says something; false: there is none. */
static bool next_line(struct reader *reader)
{
    while (reader->at < reader->end) {
        const char *feed = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
        reader->line_end = feed ? feed : reader->end;
        reader->line++;
        reader->line_failed = false;
        if (!at_line_end(reader) && *reader->at != '#')
            return true;
        reader->at = feed ? feed + 1 : reader->end;
    }
    return false;
}

static void leave_line(struct reader *reader)
{
    reader->at = reader->line_end < reader->end ? reader->line_end + 1 : reader->end;
}

static bool begins(const struct reader *reader, const char *word)
{
    size_t bytes = strlen(word);
    return (size_t)(reader->line_end - reader->at) > bytes && !strncmp(reader->at, word, bytes) &&
           reader->at[bytes] == ' ';
}

static void end_of_line(struct reader *reader)
{
    if (!reader->line_failed && !at_line_end(reader))
        REFUSE(reader, "the line goes on behind its end");
    leave_line(reader);
}

/* The lines of a program, up to its own end or the next role. */
static struct dtp_program *read_program(struct reader *reader)
{
    struct dtp_text_lines lines = {.name = reader->name, .text = reader->at, .before = reader->line};
    bool ended = false;
    while (!ended && next_line(reader)) {
        if (begins(reader, "role"))
            break;
        ended = begins(reader, "end");
        leave_line(reader);
    }
    if (!ended && reader->at < reader->end) /* at a line of the set */
        reader->line--;
    lines.bytes = (size_t)(reader->at - lines.text);
    struct dtp_program *program = NULL;
    enum dtp_status status = dtp_program_parse_lines(&lines, &program, reader->faults);
    reader->status = status > reader->status ? status : reader->status;
    return program;
}

static void read_role(struct reader *reader, struct dtp_program_set *out, uint32_t *roles)
{
    char name[DTP_PROGRAM_MAX_NAME_BYTES + 1];
    uint64_t ranks = 0;
    bool complete = expect_word(reader, "role") && read_index(reader, "role", *roles) && read_name(reader, name) &&
                    expect_word(reader, "ranks") && read_whole(reader, "ranks", 1, INT32_MAX, &ranks);
    ++*roles;
    end_of_line(reader);
    struct dtp_program *program = read_program(reader);
    if (!program)
        return;
    if (!complete || reader->status != DTP_OK) {
        dtp_program_destroy(program);
        return;
    }
    enum dtp_status status = dtp_program_set_add(out, name, (uint32_t)ranks, program, reader->faults);
    reader->status = status > reader->status ? status : reader->status;
}

static void read_end(struct reader *reader, uint32_t roles)
{
    uint64_t said = 0;
    bool read =
        expect_word(reader, "end") && expect_word(reader, "roles") && read_whole(reader, "roles", 0, UINT32_MAX, &said);
    if (read && said != roles)
        REFUSE(reader, "there are %u roles above: lines are missing or too many", roles);
    end_of_line(reader);
    if (next_line(reader))
        REFUSE(reader, "the set goes on behind its end");
}

/* What the set's line says of all roles. */
static void read_head(struct reader *reader, struct dtp_program_set *out, uint64_t *run)
{
    bool more = expect_word(reader, "set") && expect_word(reader, "1") && !at_line_end(reader);
    while (more && read_word(reader, "run")) {
        if (!*run && !out->apart && strcmp(reader->word, "run") == 0)
            read_whole(reader, "run", 1, INT32_MAX, run);
        else if (!out->apart && strcmp(reader->word, "apart") == 0)
            out->apart = true;
        else
            REFUSE(reader, "\"%s\", where \"run\" or \"apart\" is expected once", reader->word);
        more = !reader->line_failed && !at_line_end(reader);
    }
    end_of_line(reader);
}

enum dtp_status dtp_program_set_parse_text(const char *name, const char *text, size_t bytes,
                                           struct dtp_program_set *out, struct dtp_faults *faults)
{
    struct reader reader = {.name = name, .at = text, .end = text + bytes, .faults = faults};
    uint32_t roles = 0;
    uint64_t run = 0;
    bool ended = false;
    *out = (struct dtp_program_set){.roles = NULL};
    if (next_line(&reader))
        read_head(&reader, out, &run);
    while (!ended && next_line(&reader)) {
        ended = begins(&reader, "end");
        if (ended)
            read_end(&reader, roles);
        else
            read_role(&reader, out, &roles);
    }
    reader.line_failed = false;
    if (!ended || roles == 0)
        REFUSE(&reader, ended ? "the set has no role" : "the set has no line \"end roles ...\": the text was cut off");
    if (reader.status == DTP_OK && run)
        reader.status = dtp_program_set_take_turns(out, (uint32_t)run, faults);
    if (reader.status != DTP_OK)
        dtp_program_set_release(out);
    return reader.status;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Of which the first line that says something begins with `word`. */
static bool text_begins(const char *text, size_t bytes, const char *word)
{
    struct reader reader = {.at = text, .end = text + bytes};
    return next_line(&reader) && begins(&reader, word);
}

static uint32_t ranks_of_groups(const struct dtp_program *program)
{
    uint64_t ranks = 1;
    for (size_t i = 0; i < dtp_program_group_count(program); i++) {
        const struct dtp_program_group *group = &dtp_program_groups(program)[i];
        uint64_t held = (uint64_t)group->ranks * group->stride;
        ranks = held > ranks ? held : ranks;
    }
    return ranks < INT32_MAX ? (uint32_t)ranks : INT32_MAX;
}

static enum dtp_status take_alone(const char *path, const char *text, size_t bytes, struct dtp_program_set *out,
                                  struct dtp_faults *faults)
{
    struct dtp_program *program = NULL;
    *out = (struct dtp_program_set){NULL, 0};
    enum dtp_status status = dtp_program_parse_text(path, text, bytes, &program, faults);
    return status == DTP_OK ? dtp_program_set_add(out, "all ranks", ranks_of_groups(program), program, faults) : status;
}

enum dtp_status dtp_program_set_read_file(const char *path, struct dtp_program_set *out, struct dtp_faults *faults)
{
    size_t bytes = 0;
    char *text;
    *out = (struct dtp_program_set){NULL, 0};
    enum dtp_status status = dtp_program_read_bytes(path, &text, &bytes, faults);
    if (status == DTP_OK)
        status = text_begins(text, bytes, "program") ? take_alone(path, text, bytes, out, faults)
                                                     : dtp_program_set_parse_text(path, text, bytes, out, faults);
    free(text);
    return status;
}
