/* nsys' databases, made here by SQLite itself: the sums of a trace by hand, and files that are hostile or broken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observed/observed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dtp_faults faults;
static struct dtp_observed observed;

#ifdef DTP_HAVE_SQLITE

#include <sqlite3.h>

/* The bytes of a database that these statements make. A byte more is had, for the zero that texts end in. */
static char *make(const char *statements, size_t *count)
{
    sqlite3 *db;
    char *error = NULL;
    sqlite3_int64 bytes;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    if (sqlite3_exec(db, statements, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s", error);
    unsigned char *serial = sqlite3_serialize(db, "main", &bytes, 0);
    char *text = malloc((size_t)bytes + 1);
    assert_non_null(text);
    memcpy(text, serial, (size_t)bytes);
    text[bytes] = '\0';
    sqlite3_free(serial);
    sqlite3_close(db);
    *count = (size_t)bytes;
    return text;
}

static enum dtp_status read_made(const char *statements)
{
    size_t count;
    char *text = make(statements, &count);
    faults.count = 0;
    faults.status = DTP_OK;
    enum dtp_status status = dtp_observed_parse("run.sqlite", text, count, &observed, &faults);
    free(text);
    return status;
}

static void near(double is, double meant)
{
    if (!(fabs(is - meant) < 1e-9))
        fail_msg("%.9f, not %.9f", is, meant);
}

#define TABLES                                                                                                         \
    "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);"                                                      \
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, \"end\" INTEGER, deviceId INTEGER, globalPid INTEGER, "    \
    "demangledName INTEGER, shortName INTEGER);"                                                                       \
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER, \"end\" INTEGER, deviceId INTEGER, copyKind INTEGER);"     \
    "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, \"end\" INTEGER, globalTid INTEGER, nameId INTEGER);"     \
    "CREATE TABLE NVTX_EVENTS(start INTEGER, \"end\" INTEGER, eventType INTEGER, text TEXT, textId INTEGER, "          \
    "globalTid INTEGER);"                                                                                              \
    "INSERT INTO StringIds VALUES(1,'ncclDevKernel_AllGather_RING_LL(ncclDevComm*)'),(2,'nvjet_sm90_tst_256x128'),"    \
    "(3,'cutlass_80_simt_sgemm_256x128_8x4_nn_align1'),"                                                               \
    "(4,'multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>'),(5,'ProfilerStep#7');"

/* Milliseconds in which something runs, of process 1 (its threads are 16777216 and on) or 2, on GPU 0 or 1. */
#define KERNEL(from, to, gpu, process, name)                                                                           \
    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(" #from "*1000000," #to "*1000000," #gpu "," #process               \
    "*16777216," #name ",9);"
#define CALL(from, to, process)                                                                                        \
    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(" #from "*1000000," #to "*1000000," #process "*16777216+77,9);"

/* The step of test_spans: a matmul 10..30, an all-gather 20..50, of which 30..40 nothing computes beside, another
 * matmul 40..60, the optimizer 60..70; a copy of 80..82; the host launches 0..75 and does nothing for 25. What runs on
 * another GPU and what another process calls is not this rank's. */
static void test_sums_of_a_step(void **state)
{
    (void)state;
    if (read_made(
            TABLES KERNEL(10, 30, 0, 1, 2) KERNEL(20, 50, 0, 1, 1) KERNEL(40, 60, 0, 1, 3) KERNEL(60, 70, 0, 1, 4)
                KERNEL(0, 100, 1, 2, 2) CALL(0, 75, 1) CALL(
                    75, 100, 2) "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(80000000,82000000,0,1),(0,90000000,1,1);"
                                "INSERT INTO NVTX_EVENTS VALUES(0,100000000,59,NULL,5,16777293),(3,NULL,34,'a "
                                "mark',NULL,16777293);") != DTP_OK)
        fail_msg("%s", faults.text[0]);
    const struct dtp_observed_time *time = &observed.time;
    assert_string_equal(observed.tool, "nsys");
    assert_int_equal(time->steps, 1);
    near(time->step_s, 0.1);
    near(time->kind_s[DTP_OBSERVED_MATMUL], 0.04);
    near(time->kind_s[DTP_OBSERVED_OPTIMIZER], 0.01);
    near(time->kind_s[DTP_OBSERVED_ALL_GATHER], 0.03);
    near(time->kind_s[DTP_OBSERVED_COPY], 0.002);
    near(time->exposed_s[DTP_OBSERVED_ALL_GATHER], 0.01);
    near(time->exposed_s[DTP_OBSERVED_COPY], 0.002);
    near(time->idle_s, 0.038);     /* 0..10, 70..80 and 82..100 */
    near(time->host_gap_s, 0.023); /* 75..80 and 82..100 */
    assert_true(time->host_known);
}

/* Without marks steps lie between bursts of the optimizer, and older databases have neither process nor host. */
static void test_steps_without_marks(void **state)
{
    (void)state;
    if (read_made(
            "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, \"end\" INTEGER, deviceId INTEGER, "
            "demangledName INTEGER);"
            "INSERT INTO StringIds VALUES(2,'nvjet_sm90'),"
            "(4,'multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>');"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(0,30000000,0,2),(30000000,40000000,0,4),"
            "(40000000,70000000,0,2),(70000000,80000000,0,4),(80000000,110000000,0,2),(110000000,120000000,0,4);") !=
        DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_int_equal(observed.time.steps, 2);
    near(observed.time.step_s, 0.04);
    near(observed.time.kind_s[DTP_OBSERVED_MATMUL], 0.03);
    assert_false(observed.time.host_known);
}

static void refuse(const char *statements, const char *words)
{
    assert_int_equal(read_made(statements), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("%s", faults.text[0]);
}

/* A view would compute what its author likes, without end too. */
static void test_what_is_refused(void **state)
{
    (void)state;
    refuse("CREATE TABLE other(x);", "has no table CUPTI_ACTIVITY_KIND_KERNEL");
    refuse("CREATE TABLE StringIds(id, value);"
           "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE f(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM f) "
           "SELECT x AS start, x AS \"end\", 0 AS deviceId, 1 AS demangledName FROM f;",
           "has no table CUPTI_ACTIVITY_KIND_KERNEL");
    refuse("CREATE TABLE StringIds(id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(a, b);", "no such column");
    refuse(TABLES, "no kernel");
}

/* Each byte of the first page changed, and each cut: read or refused, and nothing else happens. */
static void test_broken_files(void **state)
{
    size_t count, read = 0, refused = 0;
    char *text = make(
        TABLES KERNEL(0, 30, 0, 1, 2) KERNEL(30, 40, 0, 1, 4) KERNEL(40, 70, 0, 1, 2) KERNEL(70, 80, 0, 1, 4), &count);
    char *copy = malloc(count + 1);
    (void)state;
    for (size_t i = 16; i < count; i += i < 4096 ? 7 : 97) {
        memcpy(copy, text, count + 1);
        copy[i] = (char)(copy[i] ^ 0xff);
        faults.count = 0;
        faults.status = DTP_OK;
        enum dtp_status status = dtp_observed_parse("run.sqlite", copy, count, &observed, &faults);
        assert_true(status == DTP_OK || (status == DTP_BAD_INPUT && faults.count));
        read += status == DTP_OK;
        refused += status != DTP_OK;
    }
    for (size_t cut = 17; cut < count; cut += 501) {
        memcpy(copy, text, cut);
        copy[cut] = '\0';
        faults.count = 0;
        faults.status = DTP_OK;
        enum dtp_status status = dtp_observed_parse("run.sqlite", copy, cut, &observed, &faults);
        assert_true(status == DTP_OK || (status == DTP_BAD_INPUT && faults.count));
    }
    assert_true(read && refused);
    free(copy);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_of_a_step),
        cmocka_unit_test(test_steps_without_marks),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_broken_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void test_refused_by_name(void **state)
{
    static const char text[] = "SQLite format 3";
    (void)state;
    assert_int_equal(dtp_observed_parse("run.sqlite", text, sizeof text - 1, &observed, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "built without libsqlite3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
