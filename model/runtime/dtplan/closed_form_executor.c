/* Our executor's hooks of the closed form: what its step waits for, state on the host. */
#include "runtime/dtplan/closed_form_executor.h"

#include "base/bytes.h"
#include "closed/model_parallel.h"
#include "cost/collective_choice.h"
#include "net/parameter_layout.h"
#include "runtime/dtplan/batch_layout.h"
#include "runtime/dtplan/dtplan.h"
#include "runtime/dtplan/executor_work.h"
#include "runtime/dtplan/lower_executor.h"

#include <math.h>

/* The embedding is gathered with nothing to hide behind, in every micro-step where weights are sharded, and so is
 * the first block at the step's begin; the others are gathered while the blocks before them compute. In backward
 * gathers and reductions share a FIFO, unless copy engines carry one of them. The embedding's gradient is reduced last;
 * the next micro-step's first block hides it, the step's end does not. */
static double exposed_s(struct dtp_timing *c, const struct dtp_time *time, const struct dtp_windows *window)
{
    struct dtp_executor_rules rules;
    const struct dtp_executor_rules *r = &rules;
    dtp_executor_rules(c->transformer, c->cluster, c->plan, &rules);
    double k = c->plan->accumulate, reductions = r->reduces_always ? k : 1, total = (double)c->count.total;
    double embedding = (double)(c->count.embedding + c->count.position) / total,
           block = (1 - dtp_timing_root_share(c)) / c->layers;
    double gather_s = time->collective_s[DTP_ALL_GATHER];
    double reduce_s = (time->collective_s[DTP_ALL_REDUCE] + time->collective_s[DTP_REDUCE_SCATTER] +
                       time->collective_s[DTP_ALL_TO_ALL]) /
                      reductions;
    double block_s = window->forward_s / c->layers, backward_s = 0;
    double exposed = reduce_s * embedding + (reductions - 1) * fmax(0, reduce_s * embedding - block_s);
    if (r->gathers_once) {
        double first = embedding + block;
        exposed += gather_s * first + fmax(0, gather_s * (1 - first) - window->forward_s);
    } else if (r->sharded) {
        double ring = (double)r->ring, passes = c->layers + (2 * k - 1) * (c->layers - ring);
        double edges = k * (dtp_timing_root_share(c) / block), one_s = gather_s / (passes + edges); /* of a block */
        double head = dtp_timing_root_share(c) - embedding;
        double forward_s = (c->layers - 1 + (k - 1) * (c->layers - ring) + k * head / block) * one_s;
        double hidden = c->plan->prefetch ? fmax(0, forward_s / k - window->forward_s) * k : forward_s;
        exposed += one_s * (1 + k * embedding / block) + hidden;
        backward_s = (c->layers - ring) * one_s;
        exposed += c->plan->prefetch ? 0 : k * backward_s;
        c->last_backward_exposed_s = c->plan->prefetch ? 0 : backward_s;
        backward_s = c->plan->prefetch ? backward_s : 0;
    }
    double reductions_s = reduce_s * (1 - embedding);
    bool apart = dtp_execution_copies(&c->execution, DTP_ALL_GATHER) ||
                 dtp_execution_copies(&c->execution, DTP_ALL_TO_ALL); /* two queues, which overlap each other */
    double queue_s = apart ? fmax(backward_s, reductions_s) : backward_s + reductions_s;
    double with_reduction = fmax(0, queue_s - window->backward_s);
    c->last_backward_exposed_s += with_reduction + reduce_s * embedding;
    return exposed + reductions * with_reduction + (k - reductions) * fmax(0, backward_s - window->backward_s);
}

/* Copies and updates follow the reductions module by module from the head's on, beside the blocks'
 * backward with its exposed collectives, and end with those of the embedding; where the norm must be known first, all
 * updates come after it. Uploads of parameters stay ahead of what they are for unless they take longer than all of it.
 */
static double exposed_offload_s(const struct dtp_timing *c, const struct dtp_communication *communication,
                                const struct dtp_windows *window, const struct dtp_time *time, double bytes_per_s,
                                double adam_s)
{
    struct dtp_executor_rules rules;
    dtp_executor_rules(c->transformer, c->cluster, c->plan, &rules);
    double down_s = (double)communication->device_to_host_bytes / bytes_per_s;
    double up_s = (double)communication->host_to_device_bytes / bytes_per_s;
    double embedding = (double)(c->count.embedding + c->count.position) / (double)c->count.total;
    double path_s = time->compute_s + time->exposed_communication_s;
    bool params = c->plan->offload != DTP_OFFLOAD_OPTIMIZER;
    double micro_steps_s = params ? fmax(path_s, up_s) : path_s, last_up_s = params ? 0 : up_s * embedding;
    /* Up to the last backward: what that waits for, or loses to hidden collectives, is no part of it. */
    double windows_s = window->forward_s + window->head_s + window->backward_s;
    double before_s = time->compute_s * (1 - window->backward_s / windows_s / c->plan->accumulate);
    double waits_s = fmin(c->parts->not_hidden_s - c->last_backward_exposed_s, time->exposed_communication_s);
    double beside_s = before_s + fmax(0, waits_s) + adam_s;
    double end_s =
        rules.gradient_norm ? micro_steps_s + adam_s : fmax(micro_steps_s + (down_s + adam_s) * embedding, beside_s);
    return end_s + last_up_s - path_s;
}

/* ---- state on the host ------------------------------------------------------------------------------------------- */

/* What a rank has of all modules: elements, and bytes of its gradients. */
static uint64_t own_elements(const struct dtp_transformer *transformer, const struct dtp_executor_rules *rules,
                             uint64_t *gradient_bytes)
{
    struct dtp_parameter_alike alike[DTP_PARAMETER_KINDS];
    const int kinds = dtp_parameter_alike_modules(transformer, alike);
    uint64_t elements = 0;
    *gradient_bytes = 0;
    for (int i = 0; i < kinds; i++) {
        struct dtp_parameter_module layout;
        dtp_parameter_module(transformer, rules->shard_ranks, alike[i].module, &layout);
        enum dtp_dtype shard = dtp_executor_gradient_dtypes(transformer, rules, alike[i].module).shard;
        elements += alike[i].count * layout.shard_elements;
        *gradient_bytes += alike[i].count * dtp_bytes_product(layout.shard_elements, dtp_dtype_bytes(shard));
    }
    return elements;
}

static uint64_t aligned(uint64_t bytes)
{
    return dtp_divide_up(bytes, DTP_EXECUTOR_HOST_ALIGNMENT) * DTP_EXECUTOR_HOST_ALIGNMENT;
}

/* The pinned arena, registered instead of rounded: state, the gradients it is updated with, the weights that go up,
 * batches. */
static void offload_state(const struct dtp_transformer *transformer, const struct dtp_units *units,
                          const struct dtp_plan *plan, const struct dtp_element_bytes *bytes, uint64_t shard,
                          struct dtp_state_bytes *out)
{
    (void)units, (void)shard;
    struct dtp_executor_rules rules;
    uint64_t gradient_bytes;
    out->optimizer_elements = 0;
    if (plan->offload != DTP_OFFLOAD_OPTIMIZER)
        out->params_elements = 0;
    if (out->gpu_alone)
        return;
    dtp_executor_rules(transformer, out->cluster, plan, &rules);
    uint64_t own = own_elements(transformer, &rules, &gradient_bytes);
    dtp_state_add_host(out, DTP_TERM_HOST_MASTER, 1, own, bytes->master);
    dtp_state_add_host(out, DTP_TERM_HOST_MOMENTS, 1, own, bytes->moments);
    dtp_state_add_host(out, DTP_TERM_HOST_PARAMS, 1, own, bytes->compute);
    dtp_state_add_host(out, DTP_TERM_OUR_HOST_GRADS, 1, 1, gradient_bytes);
    dtp_state_add_host(out, DTP_TERM_OUR_HOST_BATCHES, plan->accumulate, 1,
                       aligned(dtp_batch_layout_of(rules.tokens).bytes));
    dtp_state_add_host(out, DTP_TERM_OUR_HOST_SCALARS, 2, 1, aligned(DTP_EXECUTOR_SCALARS_BYTES));
}

/* ---- what they are ----------------------------------------------------------------------------------------------- */

const struct dtp_closed_form_hooks dtp_executor_closed_form = {
    .offload_state = offload_state,
    .nccl = dtp_executor_nccl_bytes,
    .traffic = dtp_executor_traffic,
    .work = dtp_executor_work,
    .exposed_s = exposed_s,
    .exposed_offload_s = exposed_offload_s,
    .slice = dtp_slice_of,
    .tensor_traffic = dtp_executor_tensor_traffic,
    .table_gradient_bytes = dtp_executor_table_gradient_bytes,
    .add_stages = dtp_stages_of_slice,
    .add_stages_memory = dtp_stages_memory_of_slice,
};
