/* Rows of models with experts become jobs, or say what is missing. */
#include "runs/backtest.h"
#include "runs/run_table.h"

#include "plan/checkpointing.h"
#include "plan/graph_modules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plain_runs.h"

/* The OLMoE of h200_more_runs.csv on four GPUs, which divide its experts. */
static struct dtp_run olmoe(void)
{
    struct dtp_run run = shaped("olmoe-1b-7b", 6919100416, 16, 2048, 16, 16, 0, 50304, 4096);
    run.framework = "PyTorch 2.11", run.gpu_key = "h200-sxm";
    run.notes = "head_dim=128; qk_norm; trainable 6919100416, active 1178933248";
    run.gpus = run.gpus_per_node = run.ep = 4;
    run.experts = 64, run.top_k = 8, run.expert_ffn = 1024;
    return run;
}

/* Experts and who divides them are settings; ffn_hidden need not be stated where all layers have them. */
static void test_experts(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    struct dtp_faults faults = {0};
    struct dtp_job job;
    if (dtp_run_job(&run, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    assert_int_equal(job.transformer.experts, 64);
    assert_int_equal(job.transformer.experts_per_token, 8);
    assert_int_equal(job.transformer.expert_ffn, 1024);
    assert_true(job.transformer.qk_norm);
    assert_int_equal(dtp_transformer_count(&job.transformer).total, run.params);
    assert_int_equal(job.plan.ep, 4);
    assert_true(job.plan.expert_imbalance == 1);
}

/* torchtitan left the loss alone through 2024; a row that says otherwise has it compiled. */
static void test_compiled_loss(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    struct dtp_faults faults = {0};
    struct dtp_job job;
    run.framework = "torchtitan", run.compile = "1", run.notes = "AC none";
    assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), DTP_OK);
    assert_false(job.plan.compile_loss);
    run.notes = "AC none; loss compiled (--compile.enable)";
    assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), DTP_OK);
    assert_true(job.plan.compile && job.plan.compile_loss);
}

/* A name alone says that it has experts; numbers that are not its own are refused. */
static void test_preset(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    run.params = run.layers = run.hidden = run.heads = run.kv_heads = run.ffn = run.vocab = 0;
    run.experts = run.top_k = run.expert_ffn = 0;
    struct dtp_job job = job_of(&run);
    assert_int_equal(job.transformer.experts, 64);
    assert_int_equal(job.plan.ep, 4);
    assert_int_equal(dtp_transformer_count(&job.transformer).total, 6919161856);
    run.experts = 32;
    assert_refused(&run, "n_experts is 32, but the preset olmoe-1b-7b has 64");
}

/* What runs again is what the clause has that begins with the word, and nothing behind it. */
static void test_recomputed(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    run.framework = "Megatron-Core", run.strategy_key = "zero1", run.params = 0;
    run.notes = "recompute=layernorm+moe_act; x";
    assert_int_equal(job_of(&run).plan.megatron.recompute, 1u << DTP_RECOMPUTE_LAYERNORM | 1u << DTP_RECOMPUTE_MOE_ACT);
    run.notes = "\"recompute=full | 4096\"; --moe-permute-fusion";
    run.checkpointing = "full";
    struct dtp_job job = job_of(&run);
    assert_int_equal(job.plan.megatron.recompute, 0);
    assert_int_equal(job.plan.checkpointing, DTP_CHECKPOINT_FULL);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    run.expert_ffn = 0;
    assert_refused(&run, "n_experts 64 without top_k or moe_ffn_hidden");
    run = olmoe();
    run.etp = 2;
    assert_refused(&run, "etp: is for runtime megatron, and torch with tp and ep above 1");
    run = olmoe();
    run.notes = "capacity factor 1.25";
    assert_refused(&run, "experts with 'capacity factor', as notes say");
    run = olmoe();
    run.attention = "mla";
    assert_refused(&run, "latent attention (attention mla) of a model that is no preset");
    run = olmoe();
    run.ep = 3;
    assert_refused(&run, "3 does not divide 64 experts");
}

/* Megatron-LM's proxy of DeepSeek: notes have the widths of latents, the module ahead, its stages and its loss. */
static void test_noted_latents(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    struct dtp_faults faults = {0};
    struct dtp_job job;
    run.model_name = "proxy", run.framework = "Megatron-Core", run.gpu_key = "h100-sxm", run.strategy_key = "zero1";
    run.attention = "mla", run.params = 0, run.layers = 16, run.hidden = 1024, run.heads = run.kv_heads = 32;
    run.ffn = 4096, run.vocab = 51712, run.gpus = run.gpus_per_node = 8, run.tp = run.pp = 2, run.experts = 32;
    run.top_k = 4, run.shared_experts = 1, run.first_dense_layers = 3, run.micro_batch = 4, run.accumulate = 4;
    run.flash_attention = "0";
    run.notes = "architecture=llama; MLA q_lora=1536 kv_lora=512 nope=128 rope=64 v=96; MTP layers=1; "
                "pp_layout=Et*3|(tt|)*6tmL; cross-entropy-fusion-impl native";
    if (dtp_run_job(&run, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    const struct dtp_transformer *t = &job.transformer;
    assert_int_equal(t->q_latent, 1536);
    assert_int_equal(t->kv_latent, 512);
    assert_int_equal(t->head_dim, 128 + 64);
    assert_int_equal(t->rope_head_dim, 64);
    assert_int_equal(t->value_head_dim, 96);
    assert_int_equal(t->mtp_layers, 1);
    assert_int_equal(job.plan.virtual_stages, 4);
    assert_int_equal(job.plan.loss, DTP_LOSS_NATIVE);
    run.notes = "architecture=llama; MLA kv_lora=512 nope=128 rope=64 v=96; pp_layout=Et*3|(tt|)*6tmL";
    run.virtual_stages = 4;
    if (dtp_run_job(&run, &catalog, &job, &faults)) /* queries without latents; the layout alone has a module ahead */
        fail_msg("%s", faults.text[0]);
    assert_int_equal(job.transformer.q_latent, 0);
    assert_int_equal(job.transformer.mtp_layers, 1);
    assert_int_equal(job.plan.stages.cut, DTP_STAGE_CUT_LAYOUT);
    assert_int_equal(job.plan.loss, DTP_LOSS_FUSED);
    run.notes = "architecture=llama; MLA kv_lora=512 nope=128 rope=64 v=96; MTP layers=1; pp_layout=Et*3|(tt|)*6tL";
    assert_refused(&run, "MTP"); /* notes and layout disagree */
    run.notes = "architecture=llama; MLA kv_lora=512 nope=128 rope=64 v=96; pp_layout=Et*3|(tt|)*6tm*2L";
    assert_refused(&run, "mtp_layers: is 2, and more than one is not modelled");
    run.notes = "architecture=llama; MLA q_lora=1536 kv_lora=512 nope=128 rope=64; v=96";
    assert_refused(&run, "latent attention (attention mla) of a model that is no preset");
    run.notes = "architecture=llama; MLA kv_lora=512 nope=128 rope=64 v=96; attention CUDA graphs";
    assert_refused(&run, "in CUDA graphs is not modelled");
}

/* A row that names a model whose latents no column states is that model; a rack of 72 is one node, as much of it as
 * divides the GPUs. */
static void test_latent_preset(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    struct dtp_faults faults = {0};
    struct dtp_job job;
    run.model_name = "DeepSeek-V3", run.framework = "Megatron-Bridge/Megatron-Core", run.gpu_key = "gb200";
    run.strategy_key = "zero1", run.attention = "mla", run.notes = "", run.links = "NVLink NVL72";
    run.layers = 61, run.hidden = 7168, run.heads = run.kv_heads = 128, run.vocab = 129280, run.params = 671026404352;
    run.experts = 256, run.top_k = 8, run.expert_ffn = 2048, run.gpus = 256, run.pp = 4, run.ep = 64;
    run.micro_batch = 1, run.accumulate = 64;
    if (dtp_run_job(&run, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    assert_int_equal(job.transformer.kv_latent, 512);
    assert_int_equal(dtp_transformer_count(&job.transformer).total, run.params);
    assert_int_equal(job.cluster.gpus_per_node, 64);
    run.links = "NVLink";
    assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), DTP_OK);
    assert_int_equal(job.cluster.gpus_per_node, 4);
    assert_int_equal(job.transformer.mtp_layers, 0);
    run.notes = "MTP layers=1"; /* which no preset has */
    assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), DTP_OK);
    assert_int_equal(job.transformer.mtp_layers, 1);
    run.notes = "pp_layout=Et*4|(t*4|)*14tmL", run.pp = 2, run.ep = 32, run.links = "NVLink NVL72";
    if (dtp_run_job(&run, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    assert_int_equal(job.transformer.mtp_layers, 1);
    assert_int_equal(job.plan.virtual_stages, 8);
}

/* What notes say of CUDA graphs, of buffers and of routing: Megatron's alone has such graphs. */
static void test_notes(void **state)
{
    (void)state;
    static const struct {
        const char *notes;
        uint32_t graphs;
    } cases[] = {{"cuda_graph=full_iteration:; x", 1u << DTP_GRAPH_FULL_ITERATION},
                 {"cuda_graph=none:full_iteration; x", 1u << DTP_GRAPH_FULL_ITERATION},
                 {"cuda_graph=none:; mlp", 0},
                 {"cuda_graph=transformer_engine:moe_router+moe_preprocess; attn",
                  1u << DTP_GRAPH_MOE_ROUTER | 1u << DTP_GRAPH_MOE_PREPROCESS},
                 {"CUDA graphs attn+router", 1u << DTP_GRAPH_ATTN | 1u << DTP_GRAPH_MOE_ROUTER},
                 {"x; router/preprocess graphs; x", 1u << DTP_GRAPH_MOE_ROUTER | 1u << DTP_GRAPH_MOE_PREPROCESS},
                 {"partial graphs (attn, moe_router); mlp", 1u << DTP_GRAPH_ATTN | 1u << DTP_GRAPH_MOE_ROUTER},
                 {"x; partial CUDA graphs; attn",
                  1u << DTP_GRAPH_ATTN | 1u << DTP_GRAPH_MOE_ROUTER | 1u << DTP_GRAPH_MOE_PREPROCESS},
                 {"no CUDA graphs, no fused permutation", 0},
                 {"paged stash; full-iteration graph; rank capacity factor 1.2", 1u << DTP_GRAPH_FULL_ITERATION}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_run run = olmoe();
        struct dtp_faults faults = {0};
        struct dtp_job job;
        run.notes = cases[i].notes, run.params = 0;
        assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), DTP_OK);
        assert_int_equal(job.plan.megatron.graphs, 0);
        run.framework = "Megatron-Bridge", run.strategy_key = "zero1";
        if (dtp_run_job(&run, &catalog, &job, &faults))
            fail_msg("%s: %s", cases[i].notes, faults.text[0]);
        assert_int_equal(job.plan.megatron.graphs, cases[i].graphs);
    }
    struct dtp_run run = olmoe();
    struct dtp_job job;
    bool unstated = false;
    run.notes = "dispatcher=hybridep; token-drop MoE; x", run.framework = "Megatron-Bridge", run.strategy_key = "zero1";
    assert_int_equal(dtp_run_job(&run, &catalog, &job, NULL), DTP_OK);
    assert_true(job.plan.megatron.capacity_factor == 1 && job.plan.megatron.pad_to_capacity);
    assert_false(job.plan.megatron.flex_dispatcher);
    run = olmoe();
    run.notes = "capacity factor 1.25", run.unstated = &unstated;
    assert_refused(&run, "experts with 'capacity factor'");
    assert_false(unstated);
    run.sequence = 0; /* no job, whatever else is modelled */
    assert_refused(&run, "experts with 'capacity factor'");
    assert_true(unstated);
    run = olmoe(), unstated = false, run.unstated = &unstated;
    run.notes = "real dropless routing";
    assert_refused(&run, "how many tokens the fullest rank receives");
    assert_true(unstated);
}

/* fms-acceleration's benchmark packs sequences of 4096 where nobody says otherwise. */
static void test_packed(void **state)
{
    (void)state;
    struct dtp_run run = olmoe();
    struct dtp_faults faults = {0};
    struct dtp_job job;
    run.model_name = "Mistral-7B", run.experts = run.top_k = run.expert_ffn = run.ep = 0, run.params = 0;
    run.layers = 32, run.hidden = 4096, run.heads = 32, run.kv_heads = 8, run.ffn = 14336, run.vocab = 32000;
    run.sequence = 0, run.notes = "packed sequences";
    assert_refused(&run, "seq_len is empty");
    run.framework = "HF SFTTrainer + accelerate FSDP (fms-acceleration)";
    if (dtp_run_job(&run, &catalog, &job, &faults))
        fail_msg("%s", faults.text[0]);
    assert_int_equal(job.plan.sequence, 4096);
    run.notes = "";
    assert_refused(&run, "seq_len is empty");
}

/* A limit without watts is no machine; with those that the part has it is that part. */
static void test_limited_power(void **state)
{
    (void)state;
    static const struct {
        const char *gpu, *notes, *reason;
    } rows[] = {{"H200 (power limited)", "", "'power limited' without watts"},
                {"", "power-limited nodes; 700 W elsewhere", "'power limited' without watts"},
                {"", "power limited to 500 W", "the GPU was power limited to 500 W, and h200-sxm has 700 W"},
                {"H200 (power limited, 700W)", "seq 2048, power limited", NULL},
                {"H200-141GB-SXM", "no limit of power", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_run run = olmoe();
        struct dtp_faults faults = {0};
        struct dtp_job job;
        bool unstated = false;
        run.unstated = &unstated, run.gpu_name = rows[i].gpu, run.notes = rows[i].notes;
        assert_int_equal(dtp_run_job(&run, &catalog, &job, &faults), rows[i].reason ? DTP_BAD_INPUT : DTP_OK);
        assert_true(!rows[i].reason || strstr(faults.text[0], rows[i].reason));
        assert_int_equal(unstated, i < 2);
    }
}

/* What a table of one row says was measured; `reason`: it is refused in these words. */
static struct dtp_run_measured measured_of(const char *text, const char *reason)
{
    struct dtp_faults faults = {0};
    struct dtp_table *table;
    struct dtp_run_columns columns;
    struct dtp_run_measured measured;
    assert_int_equal(dtp_table_parse("text", text, strlen(text), &table, &faults), DTP_OK);
    assert_int_equal(dtp_run_columns_find(table, &columns, &faults), DTP_OK);
    assert_int_equal(dtp_run_read_measured(table, 0, &columns, &measured, &faults), reason ? DTP_BAD_INPUT : DTP_OK);
    if (reason && !strstr(faults.text[0], reason))
        fail_msg("%s", faults.text[0]);
    dtp_table_destroy(table);
    return measured;
}

/* Coordinates that no rank of the layout has, a rank twice, more places than bytes. */
static void test_places_of_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *places, *reason;
    } rows[] = {{"2;3", "0/0/0/0;1/0/0/1", NULL},
                {"2", "12", "begins with no rank of pp 2, dp 2, cp 1, tp 2"},
                {"2;3", "0/0/0/0;9/0/0/0", "'9/0/0/0' begins with no rank of pp 2"},
                {"2;3", "0/0/0/0;0/0/0/0", "names a rank twice"},
                {"2;3", "0/0/0/0", "more ranks than the 1 that"},
                {"2", "0/0/0/0;1/0/0/0", "begins with no bytes of a rank"},
                {"2", "1e300/0/0/0", "begins with no rank"},
                {"x", "0/0/0/0", "begins with no bytes"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "id,source,model_name,gpu_key,strategy_key,seq_len,gpus,micro_batch_per_gpu,pp,tp,status,"
                 "peak_allocated_bytes_ranks,coordinates_ranks_pp_dp_cp_tp\n"
                 "a,s,llama-2-7b,h100-sxm,ddp,4096,8,1,2,2,ok,%s,%s\n",
                 rows[i].bytes, rows[i].places);
        struct dtp_run_measured measured = measured_of(text, rows[i].reason);
        assert_true(rows[i].reason || (measured.stage_bytes[0] == 2 && measured.stage_bytes[1] == 3));
    }
}

/* Sizes of one run that cannot stand beside each other. */
static void test_sizes_that_contradict(void **state)
{
    (void)state;
    static const struct {
        const char *cells, *reason;
    } rows[] = {{"3,4,2", NULL},
                {"3,3,3", NULL},
                {"3,2,1", "peak_allocated_bytes 3 is more than peak_reserved_bytes 2"},
                {"3,4,5", "after_init_allocated_bytes 5 is more than peak_allocated_bytes 3"},
                {",4,5", "after_init_allocated_bytes 5 is more than peak_reserved_bytes 4"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "id,source,model_name,gpu_key,strategy_key,seq_len,gpus,micro_batch_per_gpu,"
                 "peak_allocated_bytes,peak_reserved_bytes,after_init_allocated_bytes\n"
                 "a,s,llama-2-7b,h100-sxm,ddp,4096,8,1,%s\n",
                 rows[i].cells);
        measured_of(text, rows[i].reason);
    }
}

/* What the last rank alone logged is its stage's; where there is one stage, what is allocated. */
static void test_last_rank(void **state)
{
    (void)state;
    static const char text[] = "id,source,model_name,gpu_key,strategy_key,seq_len,gpus,micro_batch_per_gpu,pp,"
                               "peak_mem_gib,mem_kind\n"
                               "a,s,llama-2-7b,h100-sxm,zero1,4096,8,1,4,2,allocated-last-rank\n"
                               "b,s,llama-2-7b,h100-sxm,zero1,4096,8,1,,2,allocated-last-rank\n"
                               "c,s,llama-2-7b,h100-sxm,zero1,4096,32,1,32,2,allocated-last-rank\n";
    struct dtp_faults faults = {0};
    struct dtp_table *table;
    struct dtp_run_columns columns;
    struct dtp_run_measured measured;
    assert_int_equal(dtp_table_parse("text", text, sizeof text - 1, &table, &faults), DTP_OK);
    assert_int_equal(dtp_run_columns_find(table, &columns, &faults), DTP_OK);
    assert_int_equal(dtp_run_read_measured(table, 0, &columns, &measured, &faults), DTP_OK);
    assert_true(measured.stage_bytes[3] == 2 * 1073741824.0 && measured.least_stage_bytes[3] == 2 * 1073741824.0);
    assert_true(measured.stage_bytes[0] == 0 && measured.memory_bytes[DTP_RUN_ALLOCATED] == 0);
    assert_int_equal(dtp_run_read_measured(table, 1, &columns, &measured, &faults), DTP_OK);
    assert_true(measured.stage_bytes[0] == 0 && measured.memory_bytes[DTP_RUN_ALLOCATED] == 2 * 1073741824.0);
    assert_int_equal(dtp_run_read_measured(table, 2, &columns, &measured, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "with pp 32: memory is predicted of up to 16 stages"));
    dtp_table_destroy(table);
}

/* Formulas do not predict stages: such a row is none that is scored, and says why. */
static void test_a_stage_that_nobody_predicts(void **state)
{
    (void)state;
    static const char table[] = TEST_BINARY_DIR "/test_backtest_stage.csv";
    FILE *file = fopen(table, "w");
    assert_non_null(file);
    fputs("id,source,model_name,gpu_key,strategy_key,framework,seq_len,gpus,micro_batch_per_gpu,grad_accum,pp,"
          "peak_mem_gib,mem_kind\n"
          "a,s,llama-2-7b,h100-sxm,zero1,Megatron-Core,4096,8,1,4,2,40,allocated-last-rank\n",
          file);
    fclose(file);
    struct dtp_backtest *closed = NULL;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_backtest_run(table, &catalog, &closed, &faults), DTP_OK);
    assert_int_equal(closed->rows[0].verdict, DTP_BACKTEST_REFUSED);
    assert_non_null(strstr(closed->rows[0].reason, "stages are predicted by simulation only"));
    dtp_backtest_destroy(closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limited_power), cmocka_unit_test(test_experts),
        cmocka_unit_test(test_compiled_loss), cmocka_unit_test(test_latent_preset),
        cmocka_unit_test(test_noted_latents), cmocka_unit_test(test_places_of_ranks),
        cmocka_unit_test(test_last_rank),     cmocka_unit_test(test_sizes_that_contradict),
        cmocka_unit_test(test_preset),        cmocka_unit_test(test_recomputed),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_notes),
        cmocka_unit_test(test_packed),        cmocka_unit_test(test_a_stage_that_nobody_predicts)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
