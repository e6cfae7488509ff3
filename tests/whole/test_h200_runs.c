/* Predicted memory against 35 measured PyTorch runs on H200 (scenarios/h200_torch_runs.csv). The prediction reads the
 * configuration columns only. */
#include "closed/closed_form.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"
#include "base/table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ROWS 64

struct row {
    const struct dtp_table *table;
    size_t index;
};

static const char *text(struct row row, const char *column)
{
    long index = dtp_table_column(row.table, column);
    assert_true(index >= 0);
    return dtp_table_text(row.table, row.index, index);
}

static uint64_t number(struct row row, const char *column)
{
    return strtoull(text(row, column), NULL, 10);
}

/* The reference model: gpt2 = LayerNorm, biases, GELU, learned positions, tied head; llama = RMSNorm, RoPE, SwiGLU.
 * The runs build the model without storage and fill it afterwards, which unties the head outside FSDP. */
static struct dtp_transformer transformer_of(struct row row, bool sharded)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = number(row, "n_layers");
    t.hidden = number(row, "hidden");
    t.heads = number(row, "n_heads");
    t.kv_heads = number(row, "n_kv_heads");
    t.head_dim = t.hidden / t.heads;
    t.ffn = number(row, "ffn_hidden");
    t.vocab = number(row, "vocab");
    if (strstr(text(row, "notes"), "architecture=gpt2")) {
        t.norm = DTP_LAYER_NORM;
        t.activation = DTP_GELU;
        t.position = DTP_POSITION_LEARNED;
        t.positions = number(row, "seq_len");
        t.norm_bias = t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
        t.tied_head = sharded;
    }
    return t;
}

static struct dtp_plan plan_of(struct row row)
{
    struct dtp_plan p = dtp_plan_default();
    const char *strategy = text(row, "strategy_key");
    assert_true(dtp_strategy_parse(strategy, &p.strategy));
    p.shard_group = (uint32_t)number(row, "shard_group");
    p.micro_batch = (uint32_t)number(row, "micro_batch_per_gpu");
    p.accumulate = (uint32_t)number(row, "grad_accum");
    p.sequence = number(row, "seq_len");
    p.compile = number(row, "compile") != 0;
    p.checkpointing = strcmp(text(row, "activation_checkpointing"), "full") ? DTP_CHECKPOINT_NONE : DTP_CHECKPOINT_FULL;
    p.offload = strcmp(text(row, "offload_key"), "none") ? DTP_OFFLOAD_PARAMS : DTP_OFFLOAD_NONE;
    p.fused_qkv = p.fused_gate_up = p.rope_fp32 = p.ddp_bucket_view = true;
    p.reshard_after_forward = p.strategy == DTP_FULL_SHARD || p.strategy == DTP_HYBRID_SHARD;
    assert_true(
        dtp_precision_recipe(strstr(text(row, "notes"), "pure bf16") ? "bf16-pure" : "bf16-mixed", &p.precision));
    return p;
}

static struct dtp_memory predict(struct row row)
{
    struct dtp_plan plan = plan_of(row);
    struct dtp_transformer transformer = transformer_of(row, plan.strategy != DTP_DDP && plan.strategy != DTP_ZERO1);
    struct dtp_cluster cluster = {.gpus = (uint32_t)number(row, "gpus"),
                                  .gpus_per_node = (uint32_t)number(row, "gpus_per_node")};
    cluster.nodes = cluster.gpus / cluster.gpus_per_node;
    cluster.gpu.architecture = DTP_GPU_HOPPER;
    cluster.gpu.memory_bytes = UINT64_C(150754820096);
    cluster.oversubscription = 1;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    plan.ddp_bucket_view = plan.strategy == DTP_DDP;
    static struct dtp_faults faults;
    struct dtp_memory memory;
    if (dtp_plan_resolve(&plan, &transformer, &cluster, &faults) != DTP_OK ||
        dtp_estimate_memory(&transformer, &cluster, &plan, &memory, NULL, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return memory;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct errors {
    double percent[MAX_ROWS];
    size_t count;
};

static void add_error(struct errors *errors, struct row row, uint64_t predicted, const char *column)
{
    assert_true(errors->count < MAX_ROWS);
    double percent = 100 * fabs((double)predicted / (double)number(row, column) - 1);
    errors->percent[errors->count++] = percent;
}

static void check_errors(struct errors *errors, const char *what, double median_limit, double limit)
{
    qsort(errors->percent, errors->count, sizeof *errors->percent, ascending);
    double median = errors->percent[errors->count / 2], largest = errors->percent[errors->count - 1];
    print_message("%s: %zu rows, median %.2f %%, largest %.2f %%\n", what, errors->count, median, largest);
    assert_true(median <= median_limit);
    assert_true(largest <= limit);
}

static void test_h200_runs(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_table *table = NULL;
    assert_int_equal(dtp_table_read(TEST_SOURCE_DIR "/scenarios/h200_torch_runs.csv", &table, &faults), DTP_OK);
    assert_int_equal(dtp_table_row_count(table), 35);
    struct errors allocated = {.count = 0}, reserved = allocated, device = allocated, start = allocated;
    for (size_t i = 0; i < dtp_table_row_count(table); i++) {
        struct row row = {table, i};
        struct dtp_memory memory = predict(row);
        add_error(&allocated, row, memory.allocated_peak_bytes, "peak_allocated_bytes");
        add_error(&reserved, row, memory.reserved_peak_bytes, "peak_reserved_bytes");
        add_error(&device, row, memory.device_peak_bytes, "device_used_bytes");
        add_error(&start, row, memory.after_init_bytes, "after_init_allocated_bytes");
    }
    dtp_table_destroy(table);
    check_errors(&allocated, "allocated", 0.5, 1.0);
    check_errors(&reserved, "reserved", 2, 12);
    check_errors(&device, "device", 4, 30);
    check_errors(&start, "after initialisation", 1, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_h200_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
