/* Files as flat lists: what each language's settings become, and that lines are those of the file. */
#include "import/entries.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef enum dtp_status (*reader)(struct dtp_entries *, const char *, size_t, struct dtp_faults *);

static struct dtp_faults faults;

/* "path = value @line", an entry a line. */
static const char *list(reader read, const char *text)
{
    static char out[8192];
    struct dtp_entries entries = {.name = "file"};
    memset(&faults, 0, sizeof faults);
    out[0] = '\0';
    if (read(&entries, text, strlen(text), &faults) == DTP_OK && dtp_entries_interpolate(&entries, &faults) == DTP_OK)
        for (size_t i = 0; i < entries.count; i++) {
            const struct dtp_entry *e = &entries.items[i];
            snprintf(out + strlen(out), sizeof out - strlen(out), "%s = %s @%zu\n", e->path,
                     e->null ? "NULL" : e->value, e->line);
        }
    dtp_entries_release(&entries);
    return out;
}

static void expect_refusal(reader read, const char *text, const char *words)
{
    list(read, text);
    assert_true(faults.count > 0);
    if (!strstr(faults.text[0], words))
        fail_msg("%s", faults.text[0]);
}

static void json_has_the_lines_of_the_file(void **state)
{
    (void)state;
    assert_string_equal(list(dtp_entries_read_json, "{\n\t\"a\": {\"b\": 5e8,\n\"c\": true},\n\n\"d\": [1, \"x\"],"
                                                    "\"e\": [], \"f\": null, \"g\": \"no\"}\n"),
                        "a.b = 5e8 @2\na.c = true @3\nd = 1,x @5\ne =  @5\nf = NULL @5\ng = no @5\n");
    assert_string_equal(list(dtp_entries_read_json, "\xef\xbb\xbf{\"a\": 1}"),
                        "a = 1 @1\n"); /* as Windows' editors write */
    expect_refusal(dtp_entries_read_json, "{\n\"a\": 1,\n}", "file:3: no JSON");
    expect_refusal(dtp_entries_read_json, "{\"a\": 1,\n\"a\": 2}", "no JSON: duplicate object key");
}

static void yaml_reads_words_as_python_does(void **state)
{
    (void)state;
    assert_string_equal(list(dtp_entries_read_yaml, "a: yes\nb: 'no'\nc: No\nd: ~\ne:\n  f: [q_proj, v_proj]\n"
                                                    "  g:\n  - path: x\n    n: 1\n  - path: y\nh: {}\ni: none\n"),
                        "a = true @1\nb = no @2\nc = false @3\nd = NULL @4\ne.f = q_proj,v_proj @6\n"
                        "e.g[].path = x @8\ne.g[].n = 1 @9\ne.g[].path = y @10\nh =  @11\ni = none @12\n");
    assert_string_equal(list(dtp_entries_read_yaml, "n: 8\na:\n  b: ${n}\n  c: ${a.b}\nd: ${gone}\n"),
                        "n = 8 @1\na.b = 8 @3\na.c = 8 @4\nd = ${gone} @5\n");
    expect_refusal(dtp_entries_read_yaml, "a: 1\nb: [", "file:3: no YAML");
    expect_refusal(dtp_entries_read_yaml, "a: 1\nb: 2\na: 3\n", "file:3: a stands here and in line 1");
    expect_refusal(dtp_entries_read_yaml, "a: &x {b: 1}\nc:\n  <<: *x\n", "file:3: <<");
    expect_refusal(dtp_entries_read_yaml, "- 1\n- 2\n", "no table");
    expect_refusal(dtp_entries_read_yaml, "a: ${b}\nb: ${a}\n", "refers to itself");
    expect_refusal(dtp_entries_read_yaml, "", "is empty");
}

/* A list of lists of ... of one node, ten times: more than anybody writes. */
static void yaml_that_grows_without_end_is_refused(void **state)
{
    (void)state;
    char text[2048] = "a0: &a0 {x: 1, y: 2}\n";
    for (int i = 1; i < 14; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "a%d: &a%d {p: *a%d, q: *a%d, r: *a%d}\n", i, i,
                 i - 1, i - 1, i - 1);
    expect_refusal(dtp_entries_read_yaml, text, "more than 5000 settings");
    /* libyaml takes 1.5 s for 20,000 open brackets and 40 for five times as many. */
    static char deep[100001] = "a: 1\nb: ";
    memset(deep + strlen(deep), '[', sizeof deep - 1 - strlen(deep));
    expect_refusal(dtp_entries_read_yaml, deep, "file:2: lies too deep");
}

static void toml_of_all_kinds(void **state)
{
    (void)state;
    assert_string_equal(
        list(dtp_entries_read_toml,
             "a = 1_000 # one\n[t]\nb = 'x\\y' \nc.d = \"q\\u00e9\"\n[t.\"u v\"]\ne = [1,\n  2, # two\n]\n"
             "f = {g = true, h = -1.5e-3}\n[[many]]\ni = \"\"\n[[many]]\ni = '''a\nb'''\nj = []\n"),
        "a = 1000 @1\nt.b = x\\y @3\nt.c.d = q\xc3\xa9 @4\nt.u v.e = 1,2 @6\nt.u v.f.g = true @9\n"
        "t.u v.f.h = -1.5e-3 @9\nmany[].i =  @11\nmany[].i = a\nb @13\nmany[].j =  @15\n");
    assert_string_equal(list(dtp_entries_read_toml, "a = [{b = 1}, {b = 2}]\nc = [[1, 2], [3]]\nd = {}\n"),
                        "a[].b = 1 @1\na[].b = 2 @1\nc = 1,2,3 @2\nd =  @3\n");
    expect_refusal(dtp_entries_read_toml, "a = 1\nb = word\n", "file:2: no TOML: 'word' is no value");
    expect_refusal(dtp_entries_read_toml, "a = \"x\n", "does not end");
    expect_refusal(dtp_entries_read_toml, "a = 1 b = 2\n", "behind a setting");
    expect_refusal(dtp_entries_read_toml, "[a\nb = 1\n", "] is missing");
    expect_refusal(dtp_entries_read_toml, "a = 1\n\n[b]\nc = 2\n[b]\nc = 3\n", "file:6: b.c stands here and in line 4");
    expect_refusal(dtp_entries_read_toml, "a = [1 2]\n", "comma");
    expect_refusal(dtp_entries_read_toml, "a = \"\\ud800\"\n", "no character");
}

static void flags_of_a_script(void **state)
{
    (void)state;
    assert_string_equal(
        list(dtp_entries_read_flags,
             "#!/bin/bash\nTP=4\nGPUS=${GPUS:-8}\nARGS=(\n  --tensor-model-parallel-size $TP # of 8\n"
             "  --bf16\n  --betas 0.9 0.95\n)\nMORE=\"\n --lr 1e-4 \\\n --seq-length=2048\n\"\n"
             "torchrun --nproc-per-node ${GPUS} run.py ${ARGS[@]} $MORE --save \"$DIR/x\" --data-path $1\n"),
        "tensor_model_parallel_size = 4 @5\nbf16 = true @6\nbetas = 0.9,0.95 @7\nlr = 1e-4 @10\n"
        "seq_length = 2048 @11\nnproc_per_node = 8 @13\nsave = $ @13\ndata_path = $ @13\n");
    assert_string_equal(list(dtp_entries_read_flags, "--a 1\n--b-c\n--d x y\n"),
                        "a = 1 @1\nb_c = true @2\nd = x,y @3\n");
    expect_refusal(dtp_entries_read_flags, "--a 1\n--a 2\n", "file:2: a stands here and in line 1");
}

/* Every cut of a file is read or refused, and nothing is lost of memory: run under sanitizers. */
static void cut_files_are_read_or_refused(void **state)
{
    (void)state;
    static const char text[] = "a = [1, {b = \"x\\u0041\", c = '''q'''}]\n[t.\"k\"]\nd = \"\"\"e\\\n f\"\"\" # r\n";
    static const reader readers[] = {dtp_entries_read_yaml, dtp_entries_read_json, dtp_entries_read_toml,
                                     dtp_entries_read_flags};
    char cut[sizeof text];
    for (size_t i = 0; i < sizeof text; i++)
        for (size_t r = 0; r < sizeof readers / sizeof *readers; r++) {
            snprintf(cut, i + 1, "%s", text);
            list(readers[r], cut);
            assert_true(faults.count == 0 || faults.status == DTP_BAD_INPUT);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_the_lines_of_the_file),
        cmocka_unit_test(yaml_reads_words_as_python_does),
        cmocka_unit_test(yaml_that_grows_without_end_is_refused),
        cmocka_unit_test(toml_of_all_kinds),
        cmocka_unit_test(flags_of_a_script),
        cmocka_unit_test(cut_files_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
