#include "closed/adapted_work.h"

#include "cost/op_cost.h"
#include "plan/layer_tensors.h"
#include "plan/slice.h"

/* Rows of a token that go through it. */
static double rows_of(const struct dtp_layer_kind *kind, const struct dtp_layer_matrix *matrix)
{
    return matrix->expert ? (double)kind->experts_per_token : 1;
}

static double matrix_flops(const struct dtp_layer_kind *kind, const struct dtp_layer_matrix *matrix)
{
    return 2 * rows_of(kind, matrix) * (double)matrix->out * (double)matrix->in;
}

/* Of a token: W once more, times what dropout let through. */
static double dropped_flops(const struct dtp_layer_kind *kind, const struct dtp_plan *plan,
                            const struct dtp_layer_matrix *matrix)
{
    return matrix->magnitudes && plan->adapters.dropout > 0 ? matrix_flops(kind, matrix) : 0;
}

/* Of a token, what multiplies it of an adapter: of one that is added to its matrix nothing. */
static double adapter_flops(const struct dtp_layer_kind *kind, const struct dtp_layer_matrix *matrix)
{
    return matrix->folded ? 0 : 2 * (double)dtp_adapter_active_elements(kind, matrix);
}

static bool makes(const struct dtp_layer_operator *op, const struct dtp_layer_matrix *matrix)
{
    return op->makes & UINT64_C(1) << matrix->result;
}

/* Operators that a replay goes through: to the last saved tensor, or what the last adapter keeps. */
static int replayed(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan)
{
    int end = dtp_layer_tensors_saved_end(tensors);
    if (!plan->runtime->stops_replay)
        return tensors->operators;
    for (int i = end; i < tensors->operators; i++)
        for (int m = 0; m < tensors->kind.matrices; m++)
            if (tensors->kind.matrix[m].rank && makes(&tensors->op[i], &tensors->kind.matrix[m]))
                end = i + 1;
    return end;
}

/* Of the last matrix, whose result nobody reads, a compiler makes x A^T alone, eager x W^T too. */
static double replay_flops(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan)
{
    const struct dtp_layer_kind *kind = &tensors->kind;
    const bool kept = dtp_plan_checkpoint_rule(plan).keeps == DTP_KEEPS_PACKED_MATMULS;
    int end = replayed(tensors, plan), last = -1;
    double flops = 0;
    for (int i = 0; i < end; i++)
        for (int m = 0; m < kind->matrices; m++) {
            const struct dtp_layer_matrix *matrix = &kind->matrix[m];
            if (!makes(&tensors->op[i], matrix))
                continue;
            if (kept) { /* x A^T alone */
                flops += 2 * (double)(matrix->a_rows * matrix->in);
                continue;
            }
            flops += matrix_flops(kind, matrix) + adapter_flops(kind, matrix) + dropped_flops(kind, plan, matrix);
            last = i + 1 == end ? m : last;
        }
    if (last < 0 || !plan->runtime->stops_replay || !kind->matrix[last].rank || kind->matrix[last].magnitudes ||
        tensors->saved & UINT64_C(1) << kind->matrix[last].result)
        return flops;
    const struct dtp_layer_matrix *matrix = &kind->matrix[last];
    flops -= 2 * (double)(matrix->rank * matrix->b_rows);
    return plan->compile ? flops - matrix_flops(kind, matrix) : flops;
}

/* What the first layer's backward leaves out: operators that reach no adapter, and of a linear gradients of an input
 * that has none. */
static void count_below(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan,
                        struct dtp_adapted_work *out)
{
    const bool kept = dtp_plan_checkpoint_rule(plan).keeps == DTP_KEEPS_PACKED_MATMULS;
    for (int i = 0; i < tensors->operators && tensors->cut; i++) {
        const struct dtp_layer_operator *op = &tensors->op[i];
        bool core = op->reads & (DTP_TENSOR_BIT(CORE) | DTP_TENSOR_BIT(CORE_COPY));
        uint64_t reads = op->reads | (core ? DTP_TENSOR_BIT(CORE) : 0);
        if (op->kind == DTP_LAYER_OP_ATTENTION && !dtp_layer_tensors_first_runs(tensors, i))
            out->unneeded_attention = true;
        for (int m = 0; m < tensors->kind.matrices; m++) {
            const struct dtp_layer_matrix *matrix = &tensors->kind.matrix[m];
            if (!makes(op, matrix) || reads & tensors->first_gradients)
                continue;
            const double whole = matrix_flops(&tensors->kind, matrix), rows = rows_of(&tensors->kind, matrix);
            out->unneeded_flops +=
                dropped_flops(&tensors->kind, plan, matrix) + whole + 2 * rows * (double)(matrix->a_rows * matrix->in);
            out->first_again_flops += kept ? whole + 2 * rows * (double)(matrix->rank * matrix->b_rows) : 0;
        }
    }
}

/* What lower_folded.c does: casts of factors, W copied and B laid anew for each of two sums; backward the gradients of
 * factors, multiplied by s, cast, and laid as these are. The gradient of all of it is a matmul more of a token, in
 * place of the adapter's three, which the model's FLOPs have. */
static void count_folded(const struct dtp_layer_kind *kind, const struct dtp_plan *plan,
                         const struct dtp_layer_matrix *matrix, struct dtp_adapted_work *out)
{
    double c = dtp_plan_compute_bytes(plan), a = dtp_dtype_bytes(plan->adapters.dtype);
    double all = (double)(matrix->groups * matrix->out * matrix->in), r = (double)matrix->rank;
    double factors = (double)dtp_adapter_elements(matrix), laid = 2 * c * (double)(matrix->groups * matrix->out) * r;
    out->norm_flops += 2 * 2 * all * r;
    out->fold_back_flops += 2 * 2 * all * r;
    out->folded_flops += matrix_flops(kind, matrix) - 6 * (double)dtp_adapter_active_elements(kind, matrix);
    out->forward_unpacked_bytes += 2 * (2 * c * all + laid) + (a > c ? (a + c) * factors : 0);
    out->backward_unpacked_bytes += (3 * c + a) * factors;
    out->forward_kernels += 2 * 3 + (a > c ? 2 : 0);
    out->backward_kernels += 2 + 4;
}

/* Eager: forward two matmuls, scale and sum; backward scale, four matmuls and a sum, no weight gradient; of fp32 beside
 * 16 bits casts (dtp_adapted_bytes). A compiler unpacks once for both ways, eager each time. */
static void count_kernels(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, struct dtp_adapted_work *out)
{
    for (int m = 0; m < kind->matrices; m++) {
        const struct dtp_layer_matrix *matrix = &kind->matrix[m];
        double calls = kind->calls_experts ? (double)matrix->groups : 1; /* of experts, one after the other */
        if (matrix->folded) {
            count_folded(kind, plan, matrix, out);
            continue;
        }
        out->backward_kernels -= calls;
        if (dtp_plan_widens_norms(plan) && matrix->id != DTP_MATRIX_OUTPUT) { /* casts, of an adapter three more */
            out->forward_kernels += calls * (matrix->rank ? 3 : 2);
            out->backward_kernels += calls * (matrix->rank ? 4 : 2);
        }
        if (matrix->rank) {
            const bool wide = dtp_plan_widens_adapters(plan), packed = plan->adapters.base != DTP_BASE_NONE;
            const double cast = dtp_plan_recasts_adapters(plan) ? 1 : 0; /* x there and back, and each factor */
            const double copies = plan->adapter_ranks > 1 ? 1 : 0;       /* lower_divided_adapters.c */
            out->forward_kernels += copies, out->backward_kernels += copies;
            out->forward_kernels += calls * ((plan->compile ? 3 : 4) + (dtp_plan_defends_results(plan) ? 1 : 0) +
                                             (wide ? 2 : 0) + 4 * cast);
            out->backward_kernels += calls * ((plan->compile ? 5 : 6) + (wide ? packed ? 2 : 3 : 0) + 4 * cast);
            double factors = cast * (dtp_plan_compute_bytes(plan) + 4) * (double)dtp_adapter_elements(matrix);
            out->forward_unpacked_bytes += factors;
            out->backward_unpacked_bytes += factors;
        }
        if (plan->adapters.base == DTP_BASE_NONE)
            continue;
        struct dtp_unpacking unpacking = dtp_base_unpacking(plan, matrix->out, matrix->in);
        out->compares = unpacking.compares;
        out->forward_unpacked_bytes += calls * unpacking.bytes;
        out->forward_kernels += calls * unpacking.kernels;
        out->backward_unpacked_bytes += dtp_base_stays_unpacked(plan) ? 0 : calls * unpacking.bytes;
        out->backward_kernels += dtp_base_stays_unpacked(plan) ? 0 : calls * unpacking.kernels;
    }
}

/* Kernels and bytes of lower_magnitudes.c. */
static void count_magnitudes(const struct dtp_layer_kind *kind, const struct dtp_plan *plan,
                             struct dtp_adapted_work *out)
{
    const struct dtp_magnitude_passes passes = dtp_plan_magnitude_passes(plan);
    double drops = plan->adapters.dropout > 0 ? 1 : 0;
    for (int m = 0; m < kind->matrices; m++) {
        const struct dtp_layer_matrix *matrix = &kind->matrix[m];
        double in = (double)matrix->in, width = in * (double)matrix->out;
        if (!matrix->magnitudes)
            continue;
        out->norm_flops += 2 * (double)matrix->rank * (in * in + width);
        out->dropped_flops += dropped_flops(kind, plan, matrix);
        out->forward_unpacked_bytes += (double)passes.identity * in * in + (double)(passes.casts + passes.norm) * width;
        out->forward_kernels += drops + passes.identity_kernels + passes.cast_kernels + passes.norm_kernels +
                                passes.terms_kernels +
                                passes.added_kernels; /* matmuls of the identity beside 2 of an adapter's 4 */
        out->backward_kernels += drops + passes.back_kernels + passes.back_wanted_kernels; /* in place of s g */
    }
}

struct dtp_adapted_work dtp_adapted_work_of(const struct dtp_transformer *transformer,
                                            const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_adapted_work work = {0};
    struct dtp_layer_tensors tensors;
    if (!dtp_plan_adapts(plan))
        return work;
    const struct dtp_transformer kept = dtp_plan_packed_experts(transformer, plan);
    dtp_layer_tensors_of(&kept, dtp_layer_mlp_of(&kept), cluster, plan, &tensors);
    work.replay_flops = replay_flops(&tensors, plan);
    count_below(&tensors, plan, &work);
    count_kernels(&tensors.kind, plan, &work);
    count_magnitudes(&tensors.kind, plan, &work);
    return work;
}

/* Of a token and linear, adapters in fp32 (dtp_plan_widens_adapters), elements of w = 4 bytes beside those of c: x is
 * cast c + w and dropped out 2 w + 1; s wide 2 w, the sum c + 2 w, cast back w + c. Backward its gradient is cast to
 * fp32 and, by autograd for the frozen matrix, back 2 (c + w), s g 2 w; dropout 2 w + 1, x's gradient cast w + c, the
 * sum of two 3 c. Beside packed matrices what B made is cast back w + c, then all is as ever: 7 c; backward s g 2 c,
 * cast c + w. */
static void count_wide(const struct dtp_plan *plan, double in, double out, double *forward, double *backward)
{
    double c = dtp_plan_compute_bytes(plan), w = dtp_plan_adapter_bytes(plan);
    double dropped = plan->adapters.dropout > 0 ? 2 * w + 1 : 0;
    bool packed = plan->adapters.base != DTP_BASE_NONE;
    *forward += (c + w + dropped) * in + (packed ? w + 8 * c : 5 * w + 2 * c) * out;
    *backward += (w + 4 * c + dropped) * in + (packed ? w + 3 * c : 4 * w + 2 * c) * out;
}

/* As lower_wide_norms.c has it; the cast of an MLP's gradient is the sum's. */
static void count_prepared(const struct dtp_plan *plan, const struct dtp_layer_matrix *matrix, double in, double out,
                           double *forward, double *backward)
{
    double n = dtp_plan_compute_bytes(plan), w = dtp_plan_result_bytes(plan);
    double dropped = plan->adapters.dropout > 0 ? 2 * w + 1 : 0;
    *forward += (n + w) * (in + out);
    *backward += (n + w) * in + (matrix->result == DTP_TENSOR_DOWN ? 0 : (n + w) * out);
    if (!matrix->rank)
        return;
    *forward += (n + w + dropped) * in + (3 * n + 4 * w) * out;
    *backward += (n + w + dropped + 3 * w) * in + (3 * n + w) * out;
}

/* Copies of lower_divided_adapters.c; returns columns of a token's result that are scaled and added. */
static double count_divided(const struct dtp_plan *plan, const struct dtp_layer_matrix *matrix, double *forward,
                            double *backward)
{
    const bool by_rows = matrix->id == DTP_MATRIX_OUTPUT || matrix->id == DTP_MATRIX_DOWN;
    double w = dtp_plan_compute_bytes(plan), out = (double)matrix->out;
    *forward += 2 * w * (by_rows ? out : (double)matrix->rank);
    *backward += 2 * w * (double)(by_rows ? matrix->b_rows : matrix->a_rows);
    return by_rows ? out / plan->sequence_shards : out;
}

/* Eager: s wide 2, a sum 3, and 2 of a copy before it (dtp_plan_defends_results); backward s g 2, and the two gradients
 * of what both read 3. Fused: one tensor more is read and written; backward one written. */
void dtp_adapted_bytes(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, double *forward,
                       double *backward)
{
    double w = dtp_plan_compute_bytes(plan), dropped = plan->adapters.dropout > 0 ? 2 * w + 1 : 0;
    bool fused = plan->compile;
    if (dtp_plan_recasts_adapters(plan)) /* lower_recast_adapters.c */
        dropped = 2 * (w + 4) + (dropped > 0 ? 2 * 4 + 1 : 0);
    for (int m = 0; m < kind->matrices; m++) {
        const struct dtp_layer_matrix *matrix = &kind->matrix[m];
        double out = rows_of(kind, matrix) * (double)matrix->out, in = rows_of(kind, matrix) * (double)matrix->in;
        if (dtp_plan_widens_norms(plan) && matrix->id != DTP_MATRIX_OUTPUT) {
            count_prepared(plan, matrix, in, out, forward, backward);
            continue;
        }
        if (!matrix->rank || matrix->folded)
            continue;
        if (dtp_plan_widens_adapters(plan)) {
            count_wide(plan, in, out, forward, backward);
            continue;
        }
        if (matrix->magnitudes) { /* a sum of two gradients: the result's, or behind dropout the input's */
            const struct dtp_magnitude_passes passes = dtp_plan_magnitude_passes(plan);
            *forward += (double)(passes.terms + passes.added) * out + dropped * in;
            *backward += (double)(passes.back + passes.back_wanted) * out +
                         w * (3 * in + 3 * (plan->adapters.dropout > 0 ? in : out)) + dropped * in;
            continue;
        }
        if (plan->adapter_ranks > 1)
            out = count_divided(plan, matrix, forward, backward);
        *forward += (fused ? 2 : dtp_plan_defends_results(plan) ? 7 : 5) * w * out + dropped * in;
        *backward += (fused ? w * out : w * (2 * out + 3 * in)) + dropped * in;
    }
}

/* Of so many bytes of all `ranks`. */
static void exchange(struct dtp_tensor_exchanges *out, enum dtp_collective collective, uint64_t times, uint64_t bytes,
                     uint64_t ranks)
{
    const uint64_t ring = dtp_divide_up(bytes, ranks) * (ranks - 1);
    out->count[collective] += times;
    out->bytes[collective] += times * (collective == DTP_ALL_REDUCE ? 2 : 1) * ring;
}

struct dtp_tensor_exchanges dtp_adapter_exchanges_of(const struct dtp_transformer *slice, const struct dtp_plan *plan)
{
    struct dtp_tensor_exchanges out = {{0}, {0}};
    const bool spreads = plan->sequence_shards > 1, whole = !spreads || plan->tp_overlap;
    const uint64_t layers = slice->layers, ranks = plan->adapter_ranks, c = dtp_plan_compute_bytes(plan),
                   tokens = dtp_plan_tokens(plan),
                   forwards = plan->checkpointing == DTP_CHECKPOINT_FULL ? 2 * layers : layers;
    struct dtp_layer_kind kind;
    dtp_layer_kind_of(slice, dtp_layer_mlp_of(slice), plan->fused_qkv, plan->fused_gate_up, &kind);
    dtp_plan_adapt_kind(plan, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        const struct dtp_layer_matrix *m = &kind.matrix[i];
        const bool by_rows = m->id == DTP_MATRIX_OUTPUT || m->id == DTP_MATRIX_DOWN;
        const uint64_t low = dtp_bytes_product(tokens, c * m->rank), result = dtp_bytes_product(tokens, c * m->out),
                       input = dtp_bytes_product(tokens, c * m->in);
        if (!m->rank)
            continue;
        exchange(&out, by_rows ? DTP_ALL_REDUCE : DTP_ALL_GATHER, forwards, low, ranks);
        exchange(&out, DTP_ALL_REDUCE, layers, low, ranks);
        if (by_rows) {
            exchange(&out, DTP_ALL_GATHER, forwards + (spreads ? layers : 0), result, ranks);
        } else if (whole) {
            exchange(&out, DTP_ALL_GATHER, spreads ? forwards : 0, input, ranks);
            exchange(&out, spreads ? DTP_REDUCE_SCATTER : DTP_ALL_REDUCE, layers, input, ranks);
        }
    }
    return out;
}

double dtp_adapted_ends(const struct dtp_plan *plan, const struct dtp_transformer *transformer)
{
    struct dtp_plan ends;
    if (!dtp_plan_mixes_ends(plan))
        return 0;
    dtp_plan_of_ends(plan, &ends);
    return (double)dtp_plan_trained_ends(transformer, plan) *
           (dtp_optimizer_bytes_per_parameter(&ends) - dtp_optimizer_bytes_per_parameter(plan));
}

double dtp_adapted_traffic_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan, bool reduces)
{
    struct dtp_trained_count count;
    dtp_plan_trained(transformer, plan, &count);
    double a = dtp_dtype_bytes(plan->adapters.dtype), trained = (double)count.trained;
    double bytes = 0;
    bool sums = plan->accumulate > 1 && !dtp_plan_fetches_modules(plan); /* those reduce in each, into the partition */
    if (dtp_plan_widens_ends(plan))                                      /* of the head's weight a cast */
        bytes += (double)(transformer->vocab * transformer->hidden) * (4 + dtp_plan_compute_bytes(plan));
    if (plan->runtime->gradients_in_matmul) { /* which add to the sum of the buffer, whatever the micro-step */
        double r = dtp_dtype_bytes(plan->precision.reduce);
        return trained * (2 * r - dtp_plan_compute_bytes(plan) + (reduces ? 2 * r : 0));
    }
    double adds = sums ? 3 * a : 0, copies = reduces ? 2 * a : 0;
    if (dtp_plan_mixes_ends(plan))
        trained -= (double)dtp_plan_trained_ends(transformer, plan) *
                   (1 - dtp_dtype_bytes(plan->precision.params) / a); /* on one rank: bytes to add alone */
    if (!dtp_plan_shards_params(plan))
        return bytes + trained * (adds + copies);
    double gathers = plan->reshard_after_forward ? 2 : 1;
    return gathers * 2 * ((double)count.frozen_bytes + a * trained) + trained * (adds + copies);
}

double dtp_adapted_unneeded_flops(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                  const struct dtp_adapted_work *work)
{
    double s = dtp_transformer_layer_attention_length(transformer, 0, plan->sequence);
    double core = 2 * s * (double)(transformer->heads * transformer->head_dim);
    double backward = plan->attention == DTP_ATTENTION_MATH ? 2 : DTP_ATTENTION_BACKWARD_FLOPS;
    if (plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION) /* nor is it run again for that */
        backward += 1;
    return work->unneeded_flops + (work->unneeded_attention ? backward * core : 0);
}
