/* Casts around fp8 and fp4 matmuls (plan/fp8_casts.h) in the closed form: what they take, and kernels that a host
 * launches. A recipe's largest elements, scales and casts are kernels of their own where nothing fuses them: PyTorch's
 * eager ones are 12 a linear forward and 27 backward, where its matmuls are three. */
#include "closed/closed_form_timing.h"

#include "cost/cluster_cost.h"
#include "plan/checkpointing.h"
#include "plan/rules.h"

/* Bytes per second, by how the kernel walks. */
static void count_rates(const struct dtp_timing *c, double bytes_per_s[DTP_FP8_WALK_COUNT])
{
    bytes_per_s[DTP_FP8_ALONG_ROWS] = c->eager_bytes_per_s;
    bytes_per_s[DTP_FP8_TRANSPOSING] =
        dtp_cluster_memory_kernel_bytes_per_s(c->cluster, &c->execution, DTP_KERNEL_TRANSPOSING);
    bytes_per_s[DTP_FP8_DOWN_COLUMNS] =
        dtp_cluster_memory_kernel_bytes_per_s(c->cluster, &c->execution, DTP_KERNEL_COLUMNS);
    bytes_per_s[DTP_FP8_STREAMING] = c->streaming_bytes_per_s;
}

static double seconds_of(const struct dtp_fp8_traffic *traffic, const double bytes_per_s[DTP_FP8_WALK_COUNT])
{
    double seconds = 0;
    for (int walk = 0; walk < DTP_FP8_WALK_COUNT; walk++)
        seconds += traffic->bytes[walk] / bytes_per_s[walk];
    return seconds;
}

/* Of what a matmul reads when it runs again: its input and its weight, as in forward. */
static double again_s(const struct dtp_timing *c, const struct dtp_fp8_casts *casts, const struct dtp_weight_matmul *m,
                      const double bytes_per_s[DTP_FP8_WALK_COUNT])
{
    const struct dtp_fp8_cast *input = &casts->of[DTP_FP8_INPUT], *weight = &casts->of[DTP_FP8_WEIGHT];
    const double each = m->gathered == DTP_FP8_INPUT ? input->gathered_bytes : input->bytes,
                 times = casts->weights_once ? 1.0 / c->plan->accumulate : 1;
    return each * c->tokens * m->rows * m->k / bytes_per_s[input->walk] +
           times * weight->bytes * m->n * m->k / bytes_per_s[weight->walk];
}

double dtp_timing_fp8_s(const struct dtp_timing *c)
{
    const struct dtp_plan *plan = c->plan;
    struct dtp_fp8_casts casts;
    double bytes_per_s[DTP_FP8_WALK_COUNT];
    if (c->own) /* a runtime that counts its own bytes counts these too */
        return 0;
    dtp_fp8_casts_of(plan, &c->cluster->gpu, &casts);
    count_rates(c, bytes_per_s);
    double h = (double)c->transformer->hidden, rows = (double)dtp_transformer_ahead_rows(c->transformer);
    struct dtp_fp8_traffic ahead =
        dtp_fp8_traffic_of(&casts, c->tokens, rows, 2 * h, plan->accumulate,
                           dtp_plan_gathers_casts(plan) ? DTP_FP8_INPUT : DTP_FP8_OPERAND_COUNT);
    double all_s = (double)c->transformer->ahead_layers * seconds_of(&ahead, bytes_per_s);
    if (dtp_plan_narrows_head(plan)) {
        struct dtp_fp8_traffic head = dtp_fp8_traffic_of(&casts, c->tokens, dtp_timing_head_columns(c), h,
                                                         plan->accumulate, DTP_FP8_OPERAND_COUNT);
        all_s += dtp_timing_losses(c) * head.bytes[DTP_FP8_STREAMING] / c->streaming_bytes_per_s;
    }
    struct dtp_fp8_core core = dtp_fp8_core_bytes(&casts, plan, c->transformer);
    all_s += c->layers * c->tokens * (core.forward + core.backward) / c->streaming_bytes_per_s;
    const bool core_alone = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    EACH_KIND(c, block)
    for (int i = 0; i < block->matmul_count; i++) {
        const struct dtp_weight_matmul *m = &block->matmul[i];
        if (m->wide)
            continue;
        struct dtp_fp8_traffic traffic =
            dtp_fp8_traffic_of(&casts, c->tokens * m->rows, m->n, m->k, plan->accumulate, m->gathered);
        const double again = dtp_timing_runs_again(c, m) && !core_alone ? block->layers_again : 0;
        all_s += m->copies *
                 (block->layers * seconds_of(&traffic, bytes_per_s) + again * again_s(c, &casts, m, bytes_per_s));
    }
    return all_s;
}

/* Where gathers are in fp8 forward has a copy by columns of those matrices whose backward reads it. */
void dtp_fp8_add_launches(const struct dtp_plan *plan, const struct dtp_cluster *cluster,
                          const struct dtp_layer_kind *kind, struct dtp_block_work *work)
{
    struct dtp_fp8_casts casts;
    dtp_fp8_casts_of(plan, &cluster->gpu, &casts);
    const bool core_alone = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION,
               halves = plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL,
               stops = plan->runtime->stops_replay && !kind->norms_after;
    for (int i = 0; i < kind->matrices; i++) {
        if (kind->matrix[i].wide)
            continue;
        const double times = casts.weights_once ? 1.0 / plan->accumulate : 1,
                     forward = casts.of[DTP_FP8_INPUT].kernels + times * casts.of[DTP_FP8_WEIGHT].kernels,
                     columns = casts.of[DTP_FP8_WEIGHT_AGAIN].kernels;
        const bool kept = dtp_fp8_keeps_matrix(&casts, kind->matrix[i].id),
                   runs = halves ? work->matmul[i].recomputed : !work->matmul[i].ends || !stops;
        work->forward_kernels += forward + (kept ? columns : 0);
        work->backward_kernels += casts.of[DTP_FP8_INPUT_AGAIN].kernels + casts.of[DTP_FP8_GRADIENT_ROWS].kernels +
                                  casts.of[DTP_FP8_GRADIENT_COLUMNS].kernels + (kept ? 0 : columns);
        work->again_kernels += runs && !core_alone ? forward : 0;
    }
}
