/* NF4 by hand: codes, scales and what they stand for. */
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* The largest magnitude of a block is its scale. 4 of 4 is 1, code 15; -4 is -1, code 0; 0 is code 7. 1 of 4 lies
 * between 0.2461 (code 10) and 0.3379 (11), nearer the former; 2 between 0.4407 (12) and 0.5626 (13), whose middle is
 * 0.5017, so it is the former too. The first of two is the higher half. */
static void test_codes(void **state)
{
    (void)state;
    float values[DTP_NF4_BLOCK] = {4, -4, 0, 1, 2}, back[DTP_NF4_BLOCK], largest = 0;
    uint8_t codes[DTP_NF4_BLOCK / 2];
    struct dtp_pack4_args pack = {values, codes, &largest, DTP_NF4_BLOCK, DTP_ELEMENT_FP32};
    struct dtp_unpack4_args unpack = {codes, &largest, back, DTP_NF4_BLOCK, DTP_ELEMENT_FP32};
    assert_int_equal(dtp_reference_pack4(NULL, &pack, NULL), 0);
    assert_true(largest == 4);
    assert_int_equal(codes[0], 0xf0);
    assert_int_equal(codes[1], 0x7a);
    assert_int_equal(codes[2], 0xc7);
    assert_int_equal(dtp_reference_unpack4(NULL, &unpack, NULL), 0);
    assert_true(back[0] == 4 && back[1] == -4 && back[2] == 0 && back[63] == 0);
    assert_true(back[3] == 4 * 0.24611230194568634f && back[4] == 4 * 0.44070982933044434f);
}

/* Zeros stay zeros, and what was unpacked packs to the same codes. */
static void test_again(void **state)
{
    (void)state;
    float values[2 * DTP_NF4_BLOCK] = {0}, back[2 * DTP_NF4_BLOCK], largest[2], largest_again[2];
    uint8_t codes[DTP_NF4_BLOCK], again[DTP_NF4_BLOCK];
    for (size_t i = 0; i < DTP_NF4_BLOCK; i++)
        values[DTP_NF4_BLOCK + i] = ((float)(i * i % 37) - 18) / 7;
    struct dtp_pack4_args pack = {values, codes, largest, 2 * DTP_NF4_BLOCK, DTP_ELEMENT_FP32};
    struct dtp_unpack4_args unpack = {codes, largest, back, 2 * DTP_NF4_BLOCK, DTP_ELEMENT_FP32};
    struct dtp_pack4_args once_more = {back, again, largest_again, 2 * DTP_NF4_BLOCK, DTP_ELEMENT_FP32};
    dtp_reference_pack4(NULL, &pack, NULL);
    dtp_reference_unpack4(NULL, &unpack, NULL);
    dtp_reference_pack4(NULL, &once_more, NULL);
    assert_memory_equal(codes, again, sizeof codes);
    assert_memory_equal(largest, largest_again, sizeof largest);
    for (size_t i = 0; i < DTP_NF4_BLOCK; i++)
        assert_true(back[i] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes), cmocka_unit_test(test_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
