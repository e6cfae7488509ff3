/* The catalogues of scenarios/, read once for a group of tests. */
#ifndef TEST_SHIPPED_CATALOG_H
#define TEST_SHIPPED_CATALOG_H

#include "machine/catalog.h"

#include <math.h>

#define assert_close(actual, expected, most_apart) assert_true(fabs((actual) - (expected)) <= (most_apart))

static struct dtp_catalog catalog;

static int load_catalog(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    return dtp_catalog_load(TEST_SOURCE_DIR "/scenarios", &catalog, &faults) == DTP_OK ? 0 : -1;
}

static int drop_catalog(void **state)
{
    (void)state;
    dtp_catalog_destroy(&catalog);
    return 0;
}

#endif
