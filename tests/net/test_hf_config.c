#include "net/models.h"
#include "net/transformer.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "lib/said.h"

#define FIXTURES TEST_SOURCE_DIR "/tests/fixtures/hf/"

/* ---- real files ------------------------------------------------------------------------------------------------- */

static void expect_same_shape(const struct dtp_transformer *a, const struct dtp_transformer *b)
{
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->max_sequence, b->max_sequence);
    assert_int_equal(a->sliding_window, b->sliding_window);
    assert_int_equal(a->norm, b->norm);
    assert_int_equal(a->activation, b->activation);
    assert_int_equal(a->position, b->position);
    assert_int_equal(a->parallel_block, b->parallel_block);
    assert_int_equal(a->norm_place, b->norm_place);
    assert_int_equal(a->qk_norm_wide, b->qk_norm_wide);
    assert_true(fabs(a->norm_epsilon - b->norm_epsilon) < 1e-12);
    assert_int_equal(a->norm_bias, b->norm_bias);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->attention_output_bias, b->attention_output_bias);
    assert_int_equal(a->mlp_bias, b->mlp_bias);
    assert_int_equal(a->tied_head, b->tied_head);
    assert_int_equal(a->head_bias, b->head_bias);
    assert_int_equal(a->embedding_norm, b->embedding_norm);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->final_norm, b->final_norm);
}

static struct dtp_transformer preset(const char *key)
{
    struct dtp_transformer t = {0};
    struct dtp_faults faults = {0};
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_read(TEST_SOURCE_DIR "/scenarios/models.csv", &table, &faults), DTP_OK);
    for (size_t row = 0; row < dtp_table_row_count(table); row++)
        if (!strcmp(dtp_table_text(table, row, dtp_table_column(table, "key")), key))
            assert_int_equal(dtp_transformer_from_row(table, row, &t, &faults), DTP_OK);
    dtp_table_destroy(table);
    assert_string_equal(t.name, key);
    return t;
}

/* A config.json and the catalogue row of the same model are two roads to one shape. */
static void test_files_give_the_presets(void **state)
{
    (void)state;
    static const char *const keys[] = {"llama-2-7b", "llama-3.2-1b", "mistral-7b", "mistral-nemo-12b", "qwen2.5-0.5b",
                                       "qwen2.5-7b", "qwen3-0.6b",   "gpt-2",      "gpt-2-xl",         "opt-125m",
                                       "bloom-176b", "bloom-560m",   "mpt-7b",     "mpt-foundry-7b",   "pythia-160m",
                                       "phi-3-mini", "olmo-2-7b",    "falcon-7b",  "falcon-40b",       "gpt-j-6b"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char path[256];
        struct dtp_hf_config config;
        struct dtp_transformer expected = preset(keys[i]);
        struct dtp_faults faults = {0};
        snprintf(path, sizeof path, FIXTURES "%s.json", keys[i]);
        if (dtp_hf_config_read(path, &config, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_string_equal(config.transformer.name, keys[i]);
        expect_same_shape(&config.transformer, &expected);
    }
}

static void expect_file_fault(const char *file, const char *part)
{
    char path[256];
    struct dtp_hf_config t;
    struct dtp_faults faults = {0};
    snprintf(path, sizeof path, FIXTURES "%s", file);
    assert_int_equal(dtp_hf_config_read(path, &t, &faults), DTP_BAD_INPUT);
    assert_said(&faults, part);
}

static void test_unknown_kinds_are_refused_by_name(void **state)
{
    (void)state;
    expect_file_fault("opt-350m.json", "do_layer_norm_before is false");
    expect_file_fault("opt-350m.json", "word_embed_proj_dim is 512 beside a hidden_size of 1024");
    expect_file_fault("not-there.json", "cannot open");
}

/* ---- small texts ------------------------------------------------------------------------------------------------ */

static enum dtp_status parse(const char *text, struct dtp_transformer *t, struct dtp_faults *faults)
{
    struct dtp_hf_config config;
    enum dtp_status status = dtp_hf_config_parse("config.json", text, strlen(text), &config, faults);
    *t = config.transformer;
    return status;
}

static struct dtp_transformer good(const char *text)
{
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    if (parse(text, &t, &faults) != DTP_OK)
        fail_msg("%s: %s", text, faults.text[0]);
    return t;
}

static uint64_t count(struct dtp_transformer t)
{
    return dtp_transformer_count(&t).total;
}

/* The configuration classes' own defaults. */
static void test_missing_keys_take_the_defaults(void **state)
{
    (void)state;
    assert_int_equal(count(good("{\"model_type\": \"llama\"}")), 6738415616);
    assert_int_equal(count(good("{\"model_type\": \"mistral\"}")), 7241732096);
    assert_int_equal(count(good("{\"model_type\": \"gpt2\"}")), 124439808);
    assert_int_equal(count(good("{\"model_type\": \"opt\"}")), 125239296);
    assert_int_equal(count(good("{\"model_type\": \"gpt_neox\"}")), 20554567680);
    assert_int_equal(count(good("{\"model_type\": \"phi3\"}")), 3821079552);
    /* Gemma 2 2B as published, with its four norms a layer */
    struct dtp_transformer gemma = good("{\"model_type\": \"gemma2\"}");
    assert_int_equal(count(gemma), 2614341888);
    assert_int_equal(gemma.activation, DTP_GEGLU);
    assert_int_equal(gemma.norm_place, DTP_NORMS_BOTH);
    assert_int_equal(gemma.sliding_window_pattern, 2);
    assert_true(gemma.norm_unit_offset && gemma.tied_head && gemma.embedding_scale);
    assert_int_equal((int)(gemma.attention_softcap + gemma.final_softcap), 80);
    gemma = good("{\"model_type\": \"gemma2\", \"sliding_window\": null}");
    assert_true(gemma.sliding_window == 0 || gemma.sliding_window > 1000000);
    gemma = good("{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": null, \"final_logit_softcapping\": 20.0}");
    assert_int_equal((int)(gemma.attention_softcap + gemma.final_softcap), 20);
    assert_int_equal(good("{\"model_type\": \"mpt\"}").position, DTP_POSITION_ALIBI);
    assert_int_equal(good("{\"model_type\": \"bloom\"}").hidden, 64);
    assert_int_equal(good("{\"model_type\": \"qwen3\", \"head_dim\": null}").head_dim, 128);
    assert_string_equal(good("{\"model_type\": \"qwen2\"}").name, "qwen2");
}

static void test_switches_of_the_families(void **state)
{
    (void)state;
    struct dtp_transformer t = good("{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true}");
    assert_true(t.qkv_bias && t.attention_output_bias && t.mlp_bias);
    t = good("{\"model_type\": \"opt\", \"enable_bias\": false, \"_remove_final_layer_norm\": true}");
    assert_true(!t.qkv_bias && !t.mlp_bias && t.norm_bias && !t.final_norm && t.positions == 2050);
    t = good("{\"model_type\": \"gpt_neox\", \"attention_bias\": false}");
    assert_true(!t.qkv_bias && !t.attention_output_bias && t.mlp_bias);
    t = good("{\"model_type\": \"mpt\", \"attn_config\": {\"rope\": true, \"attn_type\": \"grouped_query_attention\","
             " \"kv_n_heads\": 4}, \"norm_type\": \"rmsnorm\", \"no_bias\": false}");
    assert_true(t.position == DTP_POSITION_ROPE && t.kv_heads == 4 && t.norm == DTP_RMS_NORM && !t.norm_bias);
    t = good("{\"model_type\": \"gpt2\", \"activation_function\": \"relu\", \"n_inner\": 100}");
    assert_true(t.activation == DTP_RELU && t.ffn == 100);
    t = good("{\"model_type\": \"gpt2\", \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4}");
    assert_true(t.hidden == 64 && t.layers == 3 && t.head_dim == 16 && t.ffn == 256);
}

static void test_sliding_windows(void **state)
{
    (void)state;
#define QWEN(type, rest) "{\"model_type\": \"" type "\", \"sliding_window\": 1024" rest "}"
#define USED ", \"use_sliding_window\": true"
    assert_int_equal(good("{\"model_type\": \"mistral\"}").sliding_window, 4096);
    assert_int_equal(good("{\"model_type\": \"mistral\", \"sliding_window\": null}").sliding_window, 0);
    assert_int_equal(good("{\"model_type\": \"phi3\", \"sliding_window\": 2047}").sliding_window, 2047);
    assert_int_equal(good(QWEN("qwen2", "")).sliding_window, 0);
    assert_int_equal(good(QWEN("qwen2", USED ", \"max_window_layers\": 0")).sliding_window, 1024);
    assert_int_equal(good(QWEN("qwen2", USED ", \"max_window_layers\": 32")).sliding_window, 0);
    assert_int_equal(good(QWEN("qwen3", USED ", \"layer_types\": [\"full_attention\"]")).sliding_window, 0);
    assert_int_equal(
        good(QWEN("qwen3", USED ", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]")).sliding_window,
        1024);
}

/* Files that name their type alone are of the class's defaults, which most classes take from a published model; others
 * say what that model's file says. Counts are those known of the published weights, or the sum that stands beside; none
 * was read from an index of safetensors. */
static void test_published_counts(void **state)
{
    (void)state;
#define TYPE(name, rest) "{\"model_type\": \"" name "\"" rest "}"
#define SAYS(key, value) ", \"" key "\": " value
#define SIZES(L, h, n, f, V)                                                                                           \
    SAYS("num_hidden_layers", #L)                                                                                      \
    SAYS("hidden_size", #h) SAYS("num_attention_heads", #n) SAYS("intermediate_size", #f) SAYS("vocab_size", #V)
    static const struct {
        const char *text;
        uint64_t total;
    } files[] = {
        {TYPE("gemma", ""), 8537680896},
        {TYPE("gemma", SIZES(18, 2048, 8, 16384, 256000) SAYS("num_key_value_heads", "1")), 2506172416},
        {TYPE("gemma3_text", SIZES(26, 1152, 4, 6912, 262144) SAYS("num_key_value_heads", "1")), 999885952},
        {TYPE("gemma3_text", SIZES(18, 640, 4, 2048, 262144) SAYS("num_key_value_heads", "1")), 268098176},
        {TYPE("phi", ""), 1418270720},
        {TYPE("phi", SIZES(32, 2560, 32, 10240, 51200)), 2779683840},
        {TYPE("olmo", SIZES(32, 4096, 32, 11008, 50304)), 6888095744},
        {TYPE("olmo", SIZES(16, 2048, 16, 8192, 50304) SAYS("tie_word_embeddings", "true")), 1176764416},
        {TYPE("starcoder2", ""), 3030371328},
        {TYPE("stablelm", ""), 2795443200},
        {TYPE("stablelm", SIZES(24, 2048, 32, 5632, 100352) SAYS("use_qkv_bias", "true")), 1644515328},
        {TYPE("cohere", ""), 34980831232},
        {TYPE("glm", ""), 9399951360},
        {TYPE("smollm3", ""), 3075098624},
        {TYPE("granite",
              SIZES(40, 4096, 32, 12800, 49155) SAYS("num_key_value_heads", "8") SAYS("tie_word_embeddings", "true")),
         8170848256},
        {TYPE("internlm2", SIZES(32, 4096, 32, 14336, 92544) SAYS("num_key_value_heads", "8") SAYS("bias", "false")),
         7737708544},
        {TYPE("baichuan", SIZES(32, 4096, 32, 11008, 125696) SAYS("max_position_embeddings", "4096")), 7505973248},
        {TYPE("baichuan", SIZES(40, 5120, 40, 13696, 125696)), 13896668160},
        {TYPE("qwen", SIZES(32, 4096, 32, 22016, 151936)), 7721324544},
        {TYPE("chatglm",
              SAYS("multi_query_attention", "true") SAYS("multi_query_group_num", "2") SAYS("add_qkv_bias", "true")),
         6243584000},
        {TYPE("ernie4_5", ""), 360748032},
        /* 36 (4 h^2 + 2 h f + biases 4 h + f + h, norms 4 h, of q and k 4 64) + 2 V h + 2 h, h = 4096, f = 16384 */
        {TYPE("persimmon", ""), 36 * (UINT64_C(4) * 4096 * 4096 + UINT64_C(2) * 4096 * 16384 + 9 * 4096 + 16384 + 256) +
                                    UINT64_C(2) * 262144 * 4096 + 2 * 4096},
        {TYPE("mixtral", ""), 46702792704},
        {TYPE("deepseek_v3", ""), 671026404352},
        {TYPE("kimi_k2", SAYS("n_routed_experts", "384") SAYS("first_k_dense_replace", "1") SAYS("n_group", "1")
                             SAYS("topk_group", "1")),
         1026408209408},
        {TYPE("deepseek_v2", SIZES(27, 2048, 16, 10944, 102400) SAYS("q_lora_rank", "null")
                                 SAYS("first_k_dense_replace", "1") SAYS("moe_intermediate_size", "1408")),
         15706484224},
        {TYPE("deepseek_v2",
              SIZES(60, 5120, 128, 12288, 102400) SAYS("n_routed_experts", "160") SAYS("first_k_dense_replace", "1")
                  SAYS("moe_intermediate_size", "1536") SAYS("topk_method", "\"group_limited_greedy\"")
                      SAYS("n_group", "8") SAYS("topk_group", "3")),
         235741434880},
        {TYPE("qwen2_moe", ""), 14315784192},
        {TYPE("qwen3_moe", SAYS("num_hidden_layers", "48") SAYS("head_dim", "128")), 30532122624},
        {TYPE("gpt_oss", ""), 116829156672},
        {TYPE("gpt_oss", SAYS("num_hidden_layers", "24") SAYS("num_local_experts", "32")), 20914757184},
        {TYPE("llama4_text", ""), 107769861120},
        {TYPE("llama4_text",
              SAYS("num_local_experts", "128") SAYS("interleave_moe_layer_step", "2") SAYS("use_qk_norm", "false")),
         400711848960},
        {"{\"model_type\": \"llama4\", \"text_config\": {\"num_hidden_layers\": 48}}", 107769861120},
        {TYPE("olmoe", SAYS("intermediate_size", "1024")), 6919161856},
        {TYPE("phimoe", SAYS("attention_bias", "true") SAYS("lm_head_bias", "true")), 41873153344},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (count(good(files[i].text)) != files[i].total)
            print_error("%s has %llu\n", files[i].text, (unsigned long long)count(good(files[i].text)));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_int_equal(count(good(files[i].text)), files[i].total);
}

static void expect_fault(const char *text, const char *part)
{
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    assert_int_equal(parse(text, &t, &faults), DTP_BAD_INPUT);
    assert_true(faults.count > 0);
    assert_said(&faults, part);
}

#define LLAMA "{\"model_type\": \"llama\",\n"

/* What the file says, or the default of the family's configuration class. */
static void test_norm_epsilon(void **state)
{
    (void)state;
    const struct {
        const char *text;
        double epsilon;
    } files[] = {{"{\"model_type\": \"llama\"}", 1e-6},
                 {"{\"model_type\": \"llama\", \"rms_norm_eps\": 1e-05}", 1e-5},
                 {"{\"model_type\": \"phi3\"}", 1e-5},
                 {"{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 1e-3}", 1e-3},
                 {"{\"model_type\": \"gpt_neox\", \"layer_norm_eps\": 1e-12}", 1e-12},
                 {"{\"model_type\": \"opt\"}", 1e-5}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_true(fabs(good(files[i].text).norm_epsilon / files[i].epsilon - 1) < 1e-9);
    expect_fault("{\"model_type\": \"llama\", \"rms_norm_eps\": 0}", "a number above 0");
    expect_fault("{\"model_type\": \"llama\", \"rms_norm_eps\": \"small\"}", "a number above 0");
}

static void test_wrong_values_name_line_and_key(void **state)
{
    (void)state;
    expect_fault(LLAMA "\"hidden_size\": -4096}",
                 "config.json:2: hidden_size is -4096; a whole number from 1 to 100000000 is needed");
    expect_fault(LLAMA "\"hidden_size\": 4096.5}", "config.json:2: hidden_size is 4096.5");
    expect_fault(LLAMA "\"hidden_size\": 4096.0}", "hidden_size is 4096.0; a whole number");
    expect_fault(LLAMA "\"hidden_size\": \"4096\"}", "hidden_size is \"4096\"");
    expect_fault(LLAMA "\"hidden_size\": true}", "hidden_size is true");
    expect_fault(LLAMA "\"hidden_size\": [4096]}", "hidden_size is a list");
    expect_fault(LLAMA "\"vocab_size\": 0}", "vocab_size is 0");
    expect_fault(LLAMA "\"vocab_size\": 9223372036854775807}", "vocab_size is 9223372036854775807");
    expect_fault(LLAMA "\"vocab_size\": 99999999999999999999}", "config.json:2: no JSON: too big integer");
    expect_fault(LLAMA "\"rope_theta\": 1e999}", "config.json:2: no JSON: real number overflow");
    expect_fault(LLAMA "\"tie_word_embeddings\": 1}", "tie_word_embeddings is 1; true or false is needed");
    expect_fault(LLAMA "\"hidden_act\": \"tanh\"}",
                 "hidden_act is \"tanh\"; in a gated MLP silu and the gelu kinds are modelled");
    expect_fault(LLAMA "\"num_attention_heads\": 30}", "num_attention_heads 30 do not divide the hidden size 4096");
    expect_fault(LLAMA "\"num_key_value_heads\": 5}", "kv_heads 5 do not divide heads 32");
    expect_fault(LLAMA "\"num_local_experts\": 8}", "is 8, and models of type \"llama\" have no experts");
    expect_fault(LLAMA "\"x\": {\"hidden_size\": 1},\n\n\"hidden_size\": 0}", "config.json:4: hidden_size is 0");
    expect_fault("{\"model_type\": \"mpt\",\n\"attn_config\": {\"alibi\": 1}}",
                 "config.json:2: attn_config.alibi is 1");
    expect_fault("{\"model_type\": \"mpt\", \"attn_config\": 5}", "attn_config is no object");
    expect_fault("{\"model_type\": \"mpt\", \"attn_config\": {\"qk_ln\": true}}", "attn_config.qk_ln is true");
    expect_fault("{\"model_type\": \"bloom\", \"n_embed\": 64, \"hidden_size\": 128}",
                 "hidden_size differs from n_embed, which means the same");
    expect_fault("{\"model_type\": \"qwen3\", \"use_sliding_window\": true, \"layer_types\": [\"linear\"]}", "linear");
    expect_fault("{\"model_type\": \"qwen2\", \"use_sliding_window\": true}", "is true for 4 of 32 layers");
}

static void test_all_faults_at_once(void **state)
{
    (void)state;
    struct dtp_transformer t;
    struct dtp_faults faults = {0};
    assert_int_equal(parse(LLAMA "\"hidden_size\": -1,\n\"vocab_size\": \"x\",\n\"hidden_act\": 7}", &t, &faults),
                     DTP_BAD_INPUT);
    assert_int_equal(faults.count, 3);
    assert_int_equal(strncmp(faults.text[1], "config.json:3: ", 15), 0);
    assert_int_equal(strncmp(faults.text[2], "config.json:4: ", 15), 0);
}

static void test_what_is_no_config_is_refused(void **state)
{
    (void)state;
    expect_fault("", "config.json:1: no JSON");
    expect_fault("{\"model_type\": \"llama\",\n\"hidden_size\": 40", "config.json:2: no JSON");
    expect_fault("[1, 2]", "no JSON object");
    expect_fault("\"llama\"", "no JSON");
    expect_fault("{}", "known are llama, mistral, qwen2");
    expect_fault("{\"model_type\": 7}", "model_type is 7; a string is needed");
    expect_fault("{\"model_type\": \"jamba\"}", "it has state space layers");
    expect_fault("{\"model_type\": \"t5\"}", "an encoder beside the decoder");
    expect_fault("{\"model_type\": \"llava\"}", "its text_config, where it has one, can be planned");
    expect_fault("{\"model_type\": \"gemma3\"}", "text_config is no object");
    expect_fault("{\"model_type\": \"wonder\", \"loops\": 2}", "not understood: loops;");
    expect_fault("{\"model_type\": \"wonder\"}", "model_type \"wonder\" is not modelled (unknown)");
    expect_fault(LLAMA "\"hidden_size\": 1, \"hidden_size\": 2}", "config.json:2: no JSON: duplicate object key");
    expect_fault("{\"model_type\": \"llama\\u0000\"}", "no JSON");
    expect_fault("{\"model_type\": \"\xff\xfe\"}", "no JSON");
    /* A byte order mark is none of the text. */
    struct dtp_transformer t;
    assert_int_equal(parse("\xef\xbb\xbf{\"model_type\": \"llama\"}", &t, NULL), DTP_OK);
    expect_fault("\xef\xbb\xbf", "config.json:1: no JSON");
}

static void test_hostile_bytes(void **state)
{
    (void)state;
    struct dtp_hf_config t;
    struct dtp_faults faults = {0};
    static const char nul[] = "{\"model_type\": \"llama\"\0, \"x\": 1}";
    assert_int_equal(dtp_hf_config_parse("nul", nul, sizeof nul - 1, &t, &faults), DTP_BAD_INPUT);
    size_t bytes = DTP_HF_CONFIG_MAX_BYTES;
    char *text = malloc(bytes + 1);
    memset(text, '[', bytes);
    faults.count = 0;
    assert_int_equal(dtp_hf_config_parse("deep", text, bytes, &t, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "maximum parsing depth"));
    faults.count = 0;
    assert_int_equal(dtp_hf_config_parse("large", text, bytes + 1, &t, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "large: more than 1048576 bytes; no config.json is that large");
    free(text);
}

static void test_large_files_are_not_read_whole(void **state)
{
    (void)state;
    char path[] = "/tmp/dtplan-hf-config-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && !ftruncate(file, 100 << 20));
    struct dtp_hf_config t;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_hf_config_read(path, &t, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "more than 1048576 bytes"));
    close(file);
    unlink(path);
    assert_int_not_equal(dtp_hf_config_read("/", &t, &faults), DTP_OK);
}

static size_t allocations_left;

static void *failing_malloc(size_t bytes)
{
    return allocations_left && allocations_left-- ? malloc(bytes) : NULL;
}

/* Whichever allocation of the parser fails: a fault, no crash, no leak (under the sanitizers), never a shape. */
static void test_every_failing_allocation(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\"], \"x\": {\"y\": 1.5}}";
    struct dtp_hf_config t;
    enum dtp_status status = DTP_ENVIRONMENT;
    size_t count = 0;
    json_set_alloc_funcs(failing_malloc, free);
    for (; status != DTP_OK && count < 1000; count++) {
        struct dtp_faults faults = {0};
        allocations_left = count;
        status = dtp_hf_config_parse("memory", text, strlen(text), &t, &faults);
        assert_int_equal(status == DTP_OK, faults.count == 0);
        assert_int_equal(status == DTP_OK, t.transformer.layers != 0);
    }
    json_set_alloc_funcs(malloc, free);
    assert_int_equal(status, DTP_OK);
    assert_true(count > 10);
}

static void expect_name(const char *path, const char *name)
{
    struct dtp_hf_config t;
    struct dtp_faults faults = {0};
    static const char text[] = "{\"model_type\": \"llama\"}";
    assert_int_equal(dtp_hf_config_parse(path, text, strlen(text), &t, &faults), DTP_OK);
    assert_string_equal(t.transformer.name, name);
}

static void test_names(void **state)
{
    (void)state;
    expect_name("models/my-llama/config.json", "my-llama");
    expect_name("/my-llama/config.json", "my-llama");
    expect_name("/config.json", "llama");
    expect_name("config.json", "llama");
    expect_name("./config.json", "llama");
    expect_name("../config.json", "llama");
    expect_name("x/tiny.json", "tiny");
    /* The hub's cache: by the repository, not by the hash of its snapshot. */
    expect_name("/home/me/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f249a16976918f6564/"
                "config.json",
                "meta-llama/Llama-3.1-8B");
    expect_name("models--gpt2/snapshots/607a30d/config.json", "gpt2");
    expect_name("models--a--b/snapshots/0/variant.json", "a/b");
    expect_name("models--a--b/blobs/config.json", "blobs");
    expect_name("my-models--a/snapshots/0/config.json", "0");
    expect_name("models--/snapshots/0/config.json", "0");
    expect_name("x/tiny", "tiny");
    expect_name("x/", "llama");
    expect_name("bad\033name.json", "bad?name");
    char path[300] = "";
    for (int i = 0; i < 280; i++)
        path[i] = 'a';
    path[63] = 0;
    char name[64];
    memcpy(name, path, 64);
    path[63] = 'a';
    expect_name(path, name);
}

static void expect_unused(const char *text, const char *wanted)
{
    struct dtp_hf_config config;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_hf_config_parse("config.json", text, strlen(text), &config, &faults), DTP_OK);
    assert_string_equal(config.unused, wanted);
}

/* What a file says and no prediction uses is listed where it changes anything; a quantised copy is no full training, a
 * maker's own format is. */
static void test_what_is_not_used(void **state)
{
    (void)state;
    expect_unused("{\"model_type\": \"llama\"}", "");
    expect_unused("{\"model_type\": \"llama\", \"attention_dropout\": 0.0, \"pretraining_tp\": 1, "
                  "\"quantization_config\": null}",
                  "");
    expect_unused("{\"model_type\": \"llama\", \"attention_dropout\": 0.1, \"torch_dtype\": \"bfloat16\", "
                  "\"pretraining_tp\": 2, \"use_cache\": true}",
                  "attention_dropout 0.1, pretraining_tp 2, torch_dtype bfloat16");
    expect_unused("{\"model_type\": \"gpt_neox\", \"rotary_pct\": 0.25}", "rotary_pct 0.25");
    expect_unused("{\"model_type\": \"gpt_neox\", \"rotary_pct\": 1.0}", "");
    expect_unused("{\"model_type\": \"deepseek_v3\", \"num_nextn_predict_layers\": 1}",
                  "num_nextn_predict_layers 1 (mtp_layers trains them)");
    expect_unused("{\"model_type\": \"deepseek_v3\", \"num_nextn_predict_layers\": 0}", "");
    expect_unused("{\"model_type\": \"gemma2\", \"query_pre_attn_scalar\": 256}", "");
    expect_unused("{\"model_type\": \"gemma2\", \"query_pre_attn_scalar\": 144}", "query_pre_attn_scalar 144");
    expect_unused("{\"model_type\": \"gpt2\", \"resid_pdrop\": 0.1, \"dtype\": \"x\\u001b\"}",
                  "resid_pdrop 0.1, torch_dtype x?");
    expect_unused("{\"model_type\": \"deepseek_v3\", \"quantization_config\": {\"quant_method\": \"fp8\", "
                  "\"weight_block_size\": [128, 128]}}",
                  "quantization_config fp8 (how weights are stored)");
    expect_unused("{\"model_type\": \"gpt_oss\", \"dtype\": \"bfloat16\", \"quantization_config\": "
                  "{\"quant_method\": \"mxfp4\"}}",
                  "torch_dtype bfloat16, quantization_config mxfp4 (how weights are stored)");
    expect_fault("{\"model_type\": \"llama\",\n\"quantization_config\": {\"load_in_4bit\": true}}",
                 "config.json:2: quantization_config makes this a quantised copy");
    expect_fault("{\"model_type\": \"llama\",\n\"quantization_config\": {\"quant_method\": \"gptq\"}}",
                 "config.json:2: quantization_config makes this a quantised copy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files_give_the_presets),
                                       cmocka_unit_test(test_unknown_kinds_are_refused_by_name),
                                       cmocka_unit_test(test_missing_keys_take_the_defaults),
                                       cmocka_unit_test(test_switches_of_the_families),
                                       cmocka_unit_test(test_sliding_windows),
                                       cmocka_unit_test(test_norm_epsilon),
                                       cmocka_unit_test(test_published_counts),
                                       cmocka_unit_test(test_wrong_values_name_line_and_key),
                                       cmocka_unit_test(test_all_faults_at_once),
                                       cmocka_unit_test(test_what_is_no_config_is_refused),
                                       cmocka_unit_test(test_hostile_bytes),
                                       cmocka_unit_test(test_large_files_are_not_read_whole),
                                       cmocka_unit_test(test_every_failing_allocation),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_what_is_not_used)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
