#include "observed/observed.h"

#include "base/input_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 30)

static const char sqlite_begins[] = "SQLite format 3";
static const char nsys_begins[] = "Start (ns),Duration (ns),";

static bool begins(const char *text, size_t bytes, const char *with)
{
    return bytes >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

enum dtp_status dtp_observed_parse(const char *path, const char *text, size_t bytes, struct dtp_observed *out,
                                   struct dtp_faults *faults)
{
    size_t at = 0;
    memset(out, 0, sizeof *out);
    out->path = path;
    if (bytes > 1 && (unsigned char)text[0] == 0x80)
        return dtp_read_snapshot(path, text, bytes, out, faults);
    if (begins(text, bytes, sqlite_begins))
        return dtp_read_nsys_database(path, text, bytes, out, faults);
    if (bytes > 1 && (unsigned char)text[0] == 0x1f && (unsigned char)text[1] == 0x8b)
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0, "is packed; gunzip it first");
    if (begins(text, bytes, nsys_begins))
        return dtp_read_nsys(path, text, out, faults);
    while (at < bytes && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    if (at < bytes && text[at] == '{' && text[at + 1] != '\'') /* "{'loss': ...", Python's words, are no JSON */
        return dtp_read_kineto(path, text, bytes, out, faults);
    if (dtp_is_train_log(text)) /* its lines may begin with "[rank0]:" */
        return dtp_read_train_log(path, text, out, faults);
    if (at < bytes && text[at] == '[')
        return dtp_read_kineto(path, text, bytes, out, faults);
    return dtp_fault(faults, DTP_BAD_INPUT, path, 0,
                     "is none of what is read: a history of memory (torch.cuda.memory._dump_snapshot), a trace of "
                     "PyTorch's profiler (JSON), nsys' database (nsys export --type sqlite) or its table, or a log of "
                     "torchtitan or Megatron-LM");
}

enum dtp_status dtp_observed_read(const char *path, struct dtp_observed *out, struct dtp_faults *faults)
{
    char *text;
    size_t bytes;
    enum dtp_status status = dtp_input_read(path, MOST_BYTES, "; name the file in it", &text, &bytes, faults);
    if (status == DTP_OK && bytes > MOST_BYTES)
        status = dtp_fault(faults, DTP_BAD_INPUT, path, 0, "is larger than 1 GiB; record fewer steps");
    else if (status == DTP_OK)
        status = dtp_observed_parse(path, text, bytes, out, faults);
    free(text);
    return status;
}
