#include "device/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_pages(void **state)
{
    static const uint64_t bytes[] = {1, 4096, (2 << 20) - 1, 2 << 20, (9 << 20) + 12345};
    (void)state;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        void *memory;
        assert_int_equal(dtp_pages_take(bytes[i], &memory, NULL), DTP_OK);
        assert_int_equal((uintptr_t)memory % (2 << 20), 0);
        const unsigned char *at = memory;
        for (uint64_t k = 0; k < bytes[i]; k++)
            if (at[k])
                fail_msg("byte %llu of %llu is not zero", (unsigned long long)k, (unsigned long long)bytes[i]);
        memset(memory, 1, bytes[i]);
        dtp_pages_release(memory, bytes[i]);
    }
}

static void test_more_than_there_is(void **state)
{
    void *memory = &memory;
    struct dtp_faults faults = {0};
    (void)state;
    assert_int_equal(dtp_pages_take(UINT64_C(1) << 60, &memory, &faults), DTP_ENVIRONMENT);
    assert_null(memory);
    assert_non_null(strstr(faults.text[0], "GiB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pages), cmocka_unit_test(test_more_than_there_is)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
