#include "net/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/said.h"

#define HEADER                                                                                                         \
    "key,layers,hidden,heads,kv_heads,head_dim,ffn,vocab,positions,norm,activation,position,norm_bias,tied_head,"      \
    "parameters\n"

static struct dtp_table *catalogue(void)
{
    struct dtp_faults faults = {0};
    struct dtp_table *table = NULL;
    if (dtp_table_read(TEST_SOURCE_DIR "/scenarios/models.csv", &table, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return table;
}

/* The published counts again, by key: a row that loses its `parameters` cell, or its shape, fails here. The last four
 * are counts that follow from a published shape where only a rounded count is published. */
static const struct {
    const char *key;
    uint64_t parameters;
} published[] = {
    {"llama-7b", 6738415616},
    {"llama-13b", 13015864320},
    {"llama-33b", 32528943616},
    {"llama-65b", 65285660672},
    {"llama-2-7b", 6738415616},
    {"llama-2-13b", 13015864320},
    {"llama-2-70b", 68976648192},
    {"llama-3-8b", 8030261248},
    {"llama-3-70b", 70553706496},
    {"llama-3.1-8b", 8030261248},
    {"llama-3.1-70b", 70553706496},
    {"llama-3.1-405b", 405853388800},
    {"llama-3.2-1b", 1235814400},
    {"llama-3.2-3b", 3212749824},
    {"llama-3.3-70b", 70553706496},
    {"codellama-7b", 6738546688},
    {"codellama-13b", 13016028160},
    {"codellama-34b", 33743970304},
    {"tinyllama-1.1b", 1100048384},
    {"open-llama-3b", 3426473600},
    {"sheared-llama-1.3b", 1345423360},
    {"mistral-7b", 7241732096},
    {"mistral-7b-v0.3", 7248023552},
    {"mistral-nemo-12b", 12247782400},
    {"yi-6b", 6061035520},
    {"yi-9b", 8829407232},
    {"yi-34b", 34388917248},
    {"deepseek-llm-7b", 6910365696},
    {"smollm-135m", 134515008},
    {"smollm-360m", 361821120},
    {"smollm-1.7b", 1711376384},
    {"smollm2-1.7b", 1711376384},
    {"phi-3-mini", 3821079552},
    {"phi-3-medium", 13960238080},
    {"phi-4", 14659507200},
    {"qwen2.5-0.5b", 494032768},
    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-3b", 3085938688},
    {"qwen2.5-7b", 7615616512},
    {"qwen2.5-14b", 14770033664},
    {"qwen2.5-32b", 32763876352},
    {"qwen2.5-72b", 72706203648},
    {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},
    {"qwen3-4b", 4022468096},
    {"qwen3-8b", 8190735360},
    {"qwen3-14b", 14768307200},
    {"qwen3-32b", 32762123264},
    {"gpt-2", 124439808},
    {"gpt-2-medium", 354823168},
    {"gpt-2-large", 774030080},
    {"gpt-2-xl", 1557611200},
    {"opt-125m", 125239296},
    {"opt-1.3b", 1315758080},
    {"opt-2.7b", 2651596800},
    {"opt-6.7b", 6658473984},
    {"opt-13b", 12853473280},
    {"opt-30b", 29974540288},
    {"bloom-560m", 559214592},
    {"bloom-1b1", 1065314304},
    {"bloom-1b7", 1722408960},
    {"bloom-3b", 3002557440},
    {"bloom-7b1", 7069016064},
    {"bloom-176b", 176247271424},
    {"pythia-70m", 70426624},
    {"pythia-160m", 162322944},
    {"pythia-410m", 405334016},
    {"pythia-1b", 1011781632},
    {"pythia-1.4b", 1414647808},
    {"pythia-2.8b", 2775208960},
    {"pythia-6.9b", 6857302016},
    {"pythia-12b", 11846072320},
    {"gpt-neox-20b", 20554567680},
    {"mpt-7b", 6649286656},
    {"mpt-foundry-125m", 125311488},
    {"mpt-foundry-350m", 355985408},
    {"mpt-foundry-760m", 760470528},
    {"mpt-foundry-1b", 1315950592},
    {"mpt-foundry-3b", 2651837440},
    {"mpt-foundry-7b", 6658859008},
    {"mpt-foundry-13b", 12853954560},
    {"mpt-foundry-30b", 29975214080},
    {"mpt-foundry-70b", 64862437376},
    /* 96 (12 h^2 + 13 h) + 50257 h + 2048 h + 2 h, h = 12288; the paper's table D.1 says 174,600 M */
    {"gpt-3-175b", 174604259328},
    /* the same with OPT's 50272 words and 2050 positions */
    {"opt-175b", 174604468224},
    /* 48 (12 h^2 + 2 h) + 50432 h + h, h = 7168; the card says 29.95B */
    {"mpt-30b", 29957200896},
    /* 95 (h (2 h + 2 * 1024 + 3 * 22016) + 2 h) + 2 * 102400 h + h, h = 8192 */
    {"deepseek-llm-67b", 67425001472},
};

static void test_catalogue_has_the_published_counts(void **state)
{
    (void)state;
    struct dtp_table *table = catalogue();
    long key = dtp_table_column(table, "key");
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        size_t row = 0;
        while (row < dtp_table_row_count(table) && strcmp(dtp_table_text(table, row, key), published[i].key))
            row++;
        if (row == dtp_table_row_count(table))
            fail_msg("%s is not in models.csv", published[i].key);
        struct dtp_transformer t;
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_transformer_from_row(table, row, &t, &faults), DTP_OK);
        assert_string_equal(t.name, published[i].key);
        if (dtp_transformer_count(&t).total != published[i].parameters)
            fail_msg("%s has %llu parameters", t.name, (unsigned long long)dtp_transformer_count(&t).total);
    }
    dtp_table_destroy(table);
}

static void test_every_row_is_read_with_a_source(void **state)
{
    (void)state;
    struct dtp_table *table = catalogue();
    assert_true(dtp_table_row_count(table) >= 90);
    for (size_t row = 0; row < dtp_table_row_count(table); row++) {
        struct dtp_transformer t;
        struct dtp_faults faults = {0};
        if (dtp_transformer_from_row(table, row, &t, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_true(*dtp_table_text(table, row, dtp_table_column(table, "source")));
        assert_true(*dtp_table_text(table, row, dtp_table_column(table, "name")));
        for (size_t other = 0; other < row; other++)
            assert_string_not_equal(dtp_table_text(table, other, dtp_table_column(table, "key")), t.name);
    }
    dtp_table_destroy(table);
}

static enum dtp_status read_row(const char *line, struct dtp_transformer *out, struct dtp_faults *faults)
{
    char text[1024];
    struct dtp_table *table = NULL;
    int length = snprintf(text, sizeof text, HEADER "%s\n", line);
    assert_int_equal(dtp_table_parse("user.csv", text, (size_t)length, &table, faults), DTP_OK);
    enum dtp_status status = dtp_transformer_from_row(table, 0, out, faults);
    dtp_table_destroy(table);
    return status;
}

static void test_empty_cells_take_defaults(void **state)
{
    (void)state;
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    assert_int_equal(read_row("mine,32,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,6738415616", &t, &faults), DTP_OK);
    assert_int_equal(t.kv_heads, 32);
    assert_int_equal(t.head_dim, 128);
    assert_true(t.final_norm);
    assert_false(t.tied_head);
}

static void expect_fault(const char *line, const char *fault)
{
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    assert_int_equal(read_row(line, &t, &faults), DTP_BAD_INPUT);
    assert_said(&faults, fault);
}

static void test_bad_rows_are_refused(void **state)
{
    (void)state;
    expect_fault("m,32,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,6738415617",
                 "user.csv:2: m: the dimensions give 6738415616 parameters, the row says 6738415617");
    expect_fault("m,,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,", "user.csv:2: layers is missing");
    expect_fault("m,-1,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,", "layers is '-1'");
    expect_fault("m,3.5,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,", "layers is '3.5'");
    expect_fault("m,nan,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,", "layers is 'nan'");
    expect_fault("m,32,4096,31,,,11008,32000,,rms_norm,swiglu,rope,,,", "heads 31 do not divide hidden 4096");
    expect_fault("m,32,4096,0,,,11008,32000,,rms_norm,swiglu,rope,,,", "heads is 0");
    expect_fault("m,32,4096,32,5,,11008,32000,,rms_norm,swiglu,rope,,,", "kv_heads 5 do not divide heads 32");
    expect_fault("m,32,4096,32,,,11008,32000,,batch_norm,swiglu,rope,,,", "one of layer_norm, rms_norm");
    expect_fault("m,32,4096,32,,,11008,32000,,rms_norm,swiglu,,,,", "position is ''");
    expect_fault("m,32,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,yes,", "tied_head is 'yes'");
    expect_fault("m,32,4096,32,,,11008,32000,,rms_norm,swiglu,rope,1,,", "norm_bias needs norm layer_norm");
    expect_fault("m m,32,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,", "key is 'm m'");
    expect_fault(",32,4096,32,,,11008,32000,,rms_norm,swiglu,rope,,,", "key has 0 bytes");
}

static void test_all_faults_of_a_row_at_once(void **state)
{
    (void)state;
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    assert_int_equal(read_row("m,x,,32,,,11008,32000,,rms,swiglu,rope,,2,many", &t, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 5);
}

static void test_words(void **state)
{
    (void)state;
    assert_string_equal(dtp_norm_text(DTP_RMS_NORM), "rms_norm");
    assert_string_equal(dtp_activation_text(DTP_SWIGLU), "swiglu");
    assert_string_equal(dtp_position_text(DTP_POSITION_ALIBI), "alibi");
    assert_string_equal(dtp_position_text((enum dtp_position)77), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_catalogue_has_the_published_counts),
                                       cmocka_unit_test(test_every_row_is_read_with_a_source),
                                       cmocka_unit_test(test_empty_cells_take_defaults),
                                       cmocka_unit_test(test_bad_rows_are_refused),
                                       cmocka_unit_test(test_all_faults_of_a_row_at_once),
                                       cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
