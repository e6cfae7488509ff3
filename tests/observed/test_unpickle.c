/* What of a pickle is obeyed, and that nothing else is. Bytes are those of Python's pickletools.dis. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "observed/unpickle.h"

#include <string.h>

static struct dtp_faults faults;

static json_t *read_bytes(const char *bytes, size_t count)
{
    json_t *value;
    memset(&faults, 0, sizeof faults);
    enum dtp_status status = dtp_unpickle("x.pickle", (const unsigned char *)bytes, count, &value, &faults);
    assert_int_equal(status == DTP_OK, value != NULL);
    assert_int_equal(status, faults.status);
    return value;
}
#define READ(text) read_bytes(text, sizeof(text) - 1)

static void refuses(const char *bytes, size_t count, const char *why)
{
    assert_null(read_bytes(bytes, count));
    if (!strstr(faults.text[0], why))
        fail_msg("'%s' lacks '%s'", faults.text[0], why);
}
#define REFUSES(text, why) refuses(text, sizeof(text) - 1, why)

/* {"a": [1, 300, 70000, -1, 2**40], "b": (1.5, None, True, "x")} */
static void test_values(void **state)
{
    (void)state;
    json_t *value = READ("\x80\x04}\x94(\x8c\x01"
                         "a\x94]\x94(K\x01M\x2c\x01J\x70\x11\x01\x00J\xff\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01"
                         "e\x8c\x01"
                         "b(G\x3f\xf8\x00\x00\x00\x00\x00\x00N\x88\x8c\x01xtu.");
    assert_non_null(value);
    json_t *a = json_object_get(value, "a"), *b = json_object_get(value, "b");
    assert_int_equal(json_array_size(a), 5);
    assert_int_equal(json_integer_value(json_array_get(a, 1)), 300);
    assert_int_equal(json_integer_value(json_array_get(a, 2)), 70000);
    assert_int_equal(json_integer_value(json_array_get(a, 3)), -1);
    assert_int_equal(json_integer_value(json_array_get(a, 4)), INT64_C(1) << 40);
    assert_int_equal(json_array_size(b), 4);
    assert_true(json_real_value(json_array_get(b, 0)) == 1.5);
    assert_true(json_is_null(json_array_get(b, 1)) && json_is_true(json_array_get(b, 2)));
    assert_string_equal(json_string_value(json_array_get(b, 3)), "x");
    json_decref(value);
}

/* One text in two places. */
static void test_names(void **state)
{
    (void)state;
    json_t *value = READ("\x80\x04]\x94(\x8c\x02hi\x94h\x01"
                         "e.");
    assert_int_equal(json_array_size(value), 2);
    assert_string_equal(json_string_value(json_array_get(value, 1)), "hi");
    json_decref(value);
    REFUSES("\x80\x04h\x07.", "nothing has that name");
}

/* os.system("true") as pickle makes it, in protocols 0 and 4; objects, extensions, persistent ids. */
static void test_nothing_is_called(void **state)
{
    (void)state;
    REFUSES("cos\nsystem\n(S'true'\ntR.", "byte 0: opcode 0x63 would import, call or build");
    REFUSES("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.", "byte 17: opcode 0x93 would import");
    REFUSES("\x80\x02}}b.", "byte 4: opcode 0x62");
    REFUSES("\x80\x02)R.", "opcode 0x52");
    REFUSES("\x80\x02)\x81.", "opcode 0x81");
    REFUSES("\x80\x02\x82\x01.", "opcode 0x82");
    REFUSES("\x80\x02Px\n.", "opcode 0x50");
    REFUSES("\x80\x02\x8f.", "opcode 0x8f is none of");
}

static void test_broken(void **state)
{
    (void)state;
    REFUSES("", "ends without its end mark");
    REFUSES("\x80\x04]", "ends without its end mark");
    REFUSES("\x80\x04\x8c\x09hi.", "ends within a text");
    REFUSES("\x80\x04J\x01.", "ends within an argument");
    REFUSES("\x80\x04.", "other than one value");
    REFUSES("\x80\x04]].", "other than one value");
    REFUSES("\x80\x04(.", "other than one value");
    REFUSES("\x80\x04"
            "e.",
            "no mark");
    REFUSES("\x80\x04(K\x01"
            "e.",
            "nothing below the mark");
    REFUSES("\x80\x04}(K\x01K\x02u.", "a key that is no text");
    REFUSES("\x80\x04}(\x8c\x01"
            "au.",
            "a key without a value");
    REFUSES("\x80\x04K\x01K\x02"
            "a.",
            "no list or dictionary that was made here");
    REFUSES("\x80\x04\x8c\x02\xff\xff.", "no UTF-8");
    REFUSES("\x80\x04\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\x00.", "beyond 64 bits");
}

/* a = []; a.append(a), and by a detour through another list; a chain that is deeper than walks go. */
static void test_no_value_contains_itself(void **state)
{
    char deep[512] = "\x80\x04";
    (void)state;
    REFUSES("\x80\x04]\x94h\x00"
            "a.",
            "no list or dictionary that was made here");
    REFUSES("\x80\x04]\x94]\x94(h\x00"
            "ea.",
            "no list or dictionary that was made here");
    memset(deep + 2, ']', 40);
    memset(deep + 42, 'a', 39);
    deep[81] = '.';
    refuses(deep, 82, "nested too deep");
    /* each is named, and the next one made of the name: ]q\0 ]q\1 (h\0 e ... */
    size_t at = 2;
    deep[at++] = ']', deep[at++] = 'q', deep[at++] = 0;
    for (char i = 0; i < 40; i++) {
        const char more[] = {'0', ']', 'q', (char)(i + 1), 'h', i, 'a'};
        memcpy(deep + at, more + (i >= 0), sizeof more - 1); /* POP is none of the opcodes: lists pile up */
        at += sizeof more - 1;
    }
    deep[at++] = '.';
    assert_null(read_bytes(deep, at));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_nothing_is_called), cmocka_unit_test(test_broken),
                                       cmocka_unit_test(test_no_value_contains_itself)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
