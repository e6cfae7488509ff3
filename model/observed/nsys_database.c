/* nsys' database (nsys export --type sqlite FILE.nsys-rep): kernels, copies, calls of CUDA's runtime and ranges of NVTX
 * of one process on one GPU become spans, as those of a trace do. Tables and columns are those of the Nsight Systems
 * user guide, "SQLite Schema Reference"; times are nanoseconds of one clock.
 *
 * A database is somebody else's: it is read where it lies in memory, is never written, and may neither call nor load
 * anything; what is asked for must be tables, no views, and a question that goes on too long is ended. */
#include "observed/observed.h"

#ifndef DTP_HAVE_SQLITE

enum dtp_status dtp_read_nsys_database(const char *path, const char *bytes, size_t count, struct dtp_observed *out,
                                       struct dtp_faults *faults)
{
    (void)bytes;
    (void)count;
    (void)out;
    return dtp_fault(
        faults, DTP_BAD_INPUT, path, 0,
        "is nsys' database, which this dtplan cannot read: it was built without libsqlite3. Build it with "
        "libsqlite3-dev, or write the table: nsys stats --report cuda_gpu_trace --format csv --output FILE "
        "%s",
        path);
}

#else

#include "observed/spans.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

/* Of SQLite's virtual machine, some minutes: a day of kernels takes a hundredth of it. */
#define MOST_CALLBACKS 20000
#define OPERATIONS_A_CALLBACK 1000000

#define KERNELS "CUPTI_ACTIVITY_KIND_KERNEL"

struct reader {
    sqlite3 *db;
    const char *path;
    struct dtp_spans spans;
    int callbacks;
    sqlite3_int64 device, process; /* of the GPU that is read; process -1: not said */
    struct dtp_faults *faults;
};

static int end_when_long(void *context)
{
    struct reader *r = context;
    return ++r->callbacks > MOST_CALLBACKS;
}

static bool has_column(const struct reader *r, const char *table, const char *column)
{
    return sqlite3_table_column_metadata(r->db, NULL, table, column, NULL, NULL, NULL, NULL, NULL) == SQLITE_OK;
}

static enum dtp_status fail(const struct reader *r)
{
    int code = sqlite3_errcode(r->db);
    return dtp_fault(r->faults, code == SQLITE_NOMEM ? DTP_ENVIRONMENT : DTP_BAD_INPUT, r->path, 0,
                     "is no database of nsys that can be read: %s", sqlite3_errmsg(r->db));
}

/* A view may compute anything; nsys writes tables. */
static enum dtp_status check_table(const struct reader *r, const char *name)
{
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(r->db, "SELECT type FROM sqlite_schema WHERE name = ?1", -1, &s, NULL) != SQLITE_OK)
        return fail(r);
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    int step = sqlite3_step(s);
    const char *type = step == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    bool table = type && strcmp(type, "table") == 0;
    enum dtp_status status = step != SQLITE_ROW && step != SQLITE_DONE ? fail(r) : DTP_OK;
    sqlite3_finalize(s);
    if (status != DTP_OK || table)
        return status;
    return dtp_fault(
        r->faults, DTP_BAD_INPUT, r->path, 0,
        "has no table %s; export what nsys profile --trace cuda,nvtx recorded by nsys export --type sqlite", name);
}

/* Rows (start, end, name) of the question; `add` gets each in seconds. */
static enum dtp_status each_row(struct reader *r, const char *question,
                                bool (*add)(struct dtp_spans *, const char *, double, double))
{
    sqlite3_stmt *s;
    int step;
    bool room = true;
    if (sqlite3_prepare_v2(r->db, question, -1, &s, NULL) != SQLITE_OK)
        return fail(r);
    int device = sqlite3_bind_parameter_index(s, ":device"), process = sqlite3_bind_parameter_index(s, ":process");
    if (device)
        sqlite3_bind_int64(s, device, r->device);
    if (process)
        sqlite3_bind_int64(s, process, r->process);
    while ((step = sqlite3_step(s)) == SQLITE_ROW && room) {
        const char *name = (const char *)sqlite3_column_text(s, 2);
        room = add(&r->spans, name ? name : "", 1e-9 * (double)sqlite3_column_int64(s, 0),
                   1e-9 * (double)sqlite3_column_int64(s, 1));
    }
    enum dtp_status status = !room                 ? dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory")
                             : step == SQLITE_DONE ? DTP_OK
                                                   : fail(r);
    sqlite3_finalize(s);
    return status;
}

static bool add_host(struct dtp_spans *spans, const char *name, double start_s, double end_s)
{
    (void)name;
    return dtp_spans_add(spans, DTP_SPANS_HOST, start_s, end_s);
}

/* PyTorch's own ranges (torch.autograd.profiler.emit_nvtx) have the names of its profiler's annotations. */
static bool add_range(struct dtp_spans *spans, const char *name, double start_s, double end_s)
{
    if (strncmp(name, "ProfilerStep", 12) == 0)
        return dtp_spans_add(spans, DTP_SPANS_STEP, start_s, end_s);
    if (strncmp(name, "enumerate(DataLoader)", 21) == 0)
        return dtp_spans_add(spans, DTP_SPANS_LOADER, start_s, end_s);
    return strncmp(name, "aten::", 6) != 0 || dtp_spans_add(spans, DTP_SPANS_HOST, start_s, end_s);
}

/* The first GPU by number, and the first process on it: one rank, as a trace of PyTorch has. */
static enum dtp_status choose_rank(struct reader *r)
{
    sqlite3_stmt *s;
    bool process = has_column(r, KERNELS, "globalPid");
    const char *question = process ? "SELECT deviceId, globalPid FROM " KERNELS " ORDER BY deviceId, globalPid LIMIT 1"
                                   : "SELECT deviceId, -1 FROM " KERNELS " ORDER BY deviceId LIMIT 1";
    if (sqlite3_prepare_v2(r->db, question, -1, &s, NULL) != SQLITE_OK)
        return fail(r);
    int step = sqlite3_step(s);
    r->device = step == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;
    r->process = step == SQLITE_ROW ? sqlite3_column_int64(s, 1) : -1;
    enum dtp_status status = step == SQLITE_ROW || step == SQLITE_DONE ? DTP_OK : fail(r);
    sqlite3_finalize(s);
    return status;
}

/* A question about a table that may not be there, or of another process. A process' number stands in all but the
 * lower 24 bits of a thread's. */
static enum dtp_status optional_rows(struct reader *r, const char *table, const char *columns, const char *of,
                                     bool (*add)(struct dtp_spans *, const char *, double, double))
{
    char question[512];
    if (!has_column(r, table, "start") || !has_column(r, table, "end") || check_table(r, table) != DTP_OK)
        return DTP_OK;
    bool thread = r->process >= 0 && has_column(r, table, "globalTid");
    snprintf(question, sizeof question, "SELECT %s FROM %s t%s%s", columns, table, of,
             thread ? " AND (t.globalTid & ~16777215) = :process" : "");
    return each_row(r, question, add);
}

static enum dtp_status read_tables(struct reader *r)
{
    enum dtp_status status = check_table(r, KERNELS);
    if (status == DTP_OK)
        status = check_table(r, "StringIds");
    if (status == DTP_OK)
        status = choose_rank(r);
    if (status == DTP_OK)
        status = each_row(r,
                          "SELECT k.start, k.\"end\", s.value FROM " KERNELS
                          " k JOIN StringIds s ON s.id = k.demangledName WHERE k.deviceId = :device",
                          dtp_spans_add_gpu);
    if (status == DTP_OK)
        status = optional_rows(r, "CUPTI_ACTIVITY_KIND_MEMCPY", "t.start, t.\"end\", '[CUDA memcpy]'",
                               " WHERE t.deviceId = :device", dtp_spans_add_gpu);
    if (status == DTP_OK)
        status = optional_rows(r, "CUPTI_ACTIVITY_KIND_MEMSET", "t.start, t.\"end\", 'Memset'",
                               " WHERE t.deviceId = :device", dtp_spans_add_gpu);
    if (status == DTP_OK)
        status = optional_rows(r, "CUPTI_ACTIVITY_KIND_RUNTIME", "t.start, t.\"end\", ''", " WHERE 1", add_host);
    if (status == DTP_OK)
        status = optional_rows(r, "NVTX_EVENTS", "t.start, t.\"end\", coalesce(t.text, s.value)",
                               " LEFT JOIN StringIds s ON s.id = t.textId WHERE t.\"end\" IS NOT NULL", add_range);
    return status;
}

/* Reads the bytes as they lie: SQLite may read a deserialised database and, told so, never writes it. */
static enum dtp_status open_bytes(struct reader *r, const char *bytes, size_t count)
{
    if (sqlite3_open_v2(":memory:", &r->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        return dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    sqlite3_limit(r->db, SQLITE_LIMIT_LENGTH, 1 << 20); /* of a name */
    sqlite3_progress_handler(r->db, OPERATIONS_A_CALLBACK, end_when_long, r);
    if (sqlite3_deserialize(r->db, "main", (unsigned char *)(uintptr_t)bytes, (sqlite3_int64)count,
                            (sqlite3_int64)count, SQLITE_DESERIALIZE_READONLY) != SQLITE_OK ||
        sqlite3_exec(r->db, "PRAGMA cell_size_check = ON", NULL, NULL, NULL) != SQLITE_OK)
        return fail(r);
    return DTP_OK;
}

enum dtp_status dtp_read_nsys_database(const char *path, const char *bytes, size_t count, struct dtp_observed *out,
                                       struct dtp_faults *faults)
{
    struct reader r = {.path = path, .faults = faults};
    enum dtp_status status = open_bytes(&r, bytes, count);
    if (status == DTP_OK)
        status = read_tables(&r);
    out->tool = "nsys";
    out->what = DTP_OBSERVED_TIME;
    if (status == DTP_OK)
        status = dtp_spans_sum(&r.spans, path, &out->time, faults);
    dtp_spans_release(&r.spans);
    sqlite3_close(r.db);
    return status;
}

#endif
