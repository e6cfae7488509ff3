/* PowerSGD of a module's gradients G, matrix by matrix M, as PyTorch's powerSGD_hook has it (Vogels et al. 2019,
 * arXiv:1905.13727), on the stream of the sums: of whole gradients under ddp, of what ranks of a copy have summed to
 * shards under hybrid_shard, which the N copies sum. Gradients have the factor 1/ranks already:
 *
 *   E += G                   what was lost before is added: E is what is to be sent
 *   Q orthonormal, P = E Q   Q is the last step's (warm start)
 *   sum of P over ranks      with it, behind P, what is sent as it is
 *   P orthonormal, Q = P^T E
 *   sum of Q over ranks
 *   G = P Q                  the sum of all ranks' gradients, of that rank
 *   E -= P Q / N             this rank's part of it went; what is left is lost for now
 *
 * PyTorch's E is N times this one. Its error of what is sent as it is, the difference to the mean, adds up to nothing
 * over ranks, and is left out. Behind the first step P is made anew, so one buffer serves all modules; E and Q are
 * state of the module. All products are of fp32. */
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

#define ELEMENT 4u /* bytes of all that is here */

/* ---- what stands ------------------------------------------------------------------------------------------------- */

void dtp_executor_make_factors(struct dtp_executor *x)
{
    uint64_t largest = 0;
    for (uint64_t i = 0; i < x->module_count; i++) {
        struct dtp_executor_factors f;
        dtp_executor_factors_of(x->modules[i].layout, x->plan->powersgd_rank, &f);
        largest = f.p_elements > largest && f.count ? f.p_elements : largest;
    }
    if (!largest)
        return;
    x->narrow = dtp_lower_buffer(x->l, "P of gradients", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, ELEMENT * largest, true);
    dtp_program_set_element(x->l->program, x->narrow, DTP_FP32);
    x->factor_workspace = dtp_lower_buffer(x->l, "workspace of factors", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                                           DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES, true);
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

struct factoring {
    struct dtp_executor *x;
    struct dtp_executor_module *module;
    dtp_buffer_id gradient, lost, q;
    enum dtp_stream stream; /* of the sums */
    dtp_op_id after;        /* that the first operation awaits */
    bool waited;
};

static void begin(struct factoring *f, struct dtp_draft *draft, enum dtp_op_kind kind, const char *name)
{
    dtp_executor_begin_at(f->x, f->module, draft, kind, name);
    draft->op.stream = f->stream;
    if (!f->waited)
        dtp_executor_await_gradients(f->x, draft, f->after);
    f->waited = true;
}

static void use(struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer, uint32_t access, uint64_t begin,
                uint64_t elements)
{
    dtp_draft_role(draft, role, buffer, access, ELEMENT * begin)->bytes = ELEMENT * elements;
}

static dtp_op_id end_elements(struct factoring *f, struct dtp_draft *draft, uint64_t elements, double passes)
{
    dtp_executor_memory(draft, elements, passes * (double)(ELEMENT * elements), 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    return dtp_draft_end(f->x->l, draft);
}

static void add_lost(struct factoring *f, const struct dtp_executor_factor *factor)
{
    const uint64_t elements = factor->rows * factor->columns;
    struct dtp_draft draft;
    begin(f, &draft, DTP_OP_ACCUMULATE, "what was lost");
    use(&draft, DTP_ROLE_INPUT, f->gradient, DTP_READ, factor->begin, elements);
    use(&draft, DTP_ROLE_RESULT, f->lost, DTP_UPDATE, factor->lost, elements);
    end_elements(f, &draft, elements, 3);
}

/* Read and written once through HBM; further passes find a factor in L2. */
static void orthogonalize(struct factoring *f, const struct dtp_executor_factor *factor, bool is_p)
{
    const uint64_t rows = is_p ? factor->rows : factor->rank, columns = is_p ? factor->rank : factor->columns;
    struct dtp_draft draft;
    begin(f, &draft, DTP_OP_ORTHOGONALIZE, is_p ? "P" : "Q");
    use(&draft, DTP_ROLE_RESULT, is_p ? f->x->narrow : f->q, DTP_UPDATE, is_p ? factor->p : factor->q, rows * columns);
    draft.op.demand.form = is_p ? DTP_FORM_COLUMNS : DTP_FORM_NONE;
    dtp_executor_memory(&draft, rows, 2.0 * (double)(ELEMENT * rows * columns), 1);
    draft.op.demand.n = (double)columns;
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(f->x->l, &draft);
}

static dtp_op_id end_product(struct factoring *f, struct dtp_draft *draft, uint64_t m, uint64_t n, uint64_t k)
{
    dtp_draft_matmul(f->x->l, draft, m, n, k, false);
    draft->op.demand.dtype = DTP_FP32;
    dtp_draft_role(draft, DTP_ROLE_WORKSPACE, f->x->factor_workspace, DTP_UPDATE, 0);
    return dtp_draft_end(f->x->l, draft);
}

static void make_p(struct factoring *f, const struct dtp_executor_factor *factor)
{
    struct dtp_draft draft;
    begin(f, &draft, DTP_OP_MATMUL, "P");
    use(&draft, DTP_ROLE_INPUT, f->lost, DTP_READ, factor->lost, factor->rows * factor->columns);
    use(&draft, DTP_ROLE_WEIGHT, f->q, DTP_READ, factor->q, factor->rank * factor->columns);
    use(&draft, DTP_ROLE_RESULT, f->x->narrow, DTP_WRITE, factor->p, factor->rows * factor->rank);
    end_product(f, &draft, factor->rows, factor->rank, factor->columns);
}

static void make_q(struct factoring *f, const struct dtp_executor_factor *factor)
{
    struct dtp_draft draft;
    begin(f, &draft, DTP_OP_MATMUL, "Q");
    use(&draft, DTP_ROLE_GRADIENT, f->x->narrow, DTP_READ, factor->p, factor->rows * factor->rank);
    use(&draft, DTP_ROLE_INPUT, f->lost, DTP_READ, factor->lost, factor->rows * factor->columns);
    use(&draft, DTP_ROLE_WEIGHT_GRADIENT, f->q, DTP_WRITE, factor->q, factor->rank * factor->columns);
    end_product(f, &draft, factor->rank, factor->columns, factor->rows);
}

/* P Q where the gradient was, or taken from what is lost: of that this rank's part. */
static dtp_op_id multiply(struct factoring *f, const struct dtp_executor_factor *factor, bool takes)
{
    const uint64_t elements = factor->rows * factor->columns;
    struct dtp_draft draft;
    begin(f, &draft, DTP_OP_MATMUL, takes ? "what is lost" : "P Q");
    use(&draft, DTP_ROLE_GRADIENT, f->x->narrow, DTP_READ, factor->p, factor->rows * factor->rank);
    use(&draft, DTP_ROLE_WEIGHT, f->q, DTP_READ, factor->q, factor->rank * factor->columns);
    if (takes) {
        use(&draft, DTP_ROLE_INPUT_GRADIENT, f->lost, DTP_UPDATE, factor->lost, elements);
        draft.op.demand.form = DTP_FORM_SUBTRACTED;
        draft.op.demand.scale = 1 / (double)f->x->rules.replicas;
    } else {
        use(&draft, DTP_ROLE_INPUT_GRADIENT, f->gradient, DTP_WRITE, factor->begin, elements);
    }
    return end_product(f, &draft, factor->rows, factor->columns, factor->rank);
}

/* What is sent as it is, to behind P and back. */
static void copy_runs(struct factoring *f, const struct dtp_executor_factors *factors, bool back)
{
    for (uint32_t i = 0; i < factors->run_count; i++) {
        const struct dtp_executor_run *run = &factors->run[i];
        struct dtp_draft draft;
        begin(f, &draft, DTP_OP_CAST, "not factored");
        use(&draft, back ? DTP_ROLE_RESULT : DTP_ROLE_INPUT, f->gradient, back ? DTP_WRITE : DTP_READ, run->begin,
            run->elements);
        use(&draft, back ? DTP_ROLE_INPUT : DTP_ROLE_RESULT, f->x->narrow, back ? DTP_READ : DTP_WRITE, run->p,
            run->elements);
        end_elements(f, &draft, run->elements, 2);
    }
}

static void sum(struct factoring *f, dtp_buffer_id buffer, uint64_t elements)
{
    struct dtp_draft draft;
    begin(f, &draft, DTP_OP_ALL_REDUCE, NULL);
    use(&draft, DTP_ROLE_INPUT, buffer, DTP_READ, 0, elements);
    use(&draft, DTP_ROLE_RESULT, buffer, DTP_WRITE, 0, elements);
    dtp_executor_collective(f->x, &draft, f->stream, f->x->replica_group,
                            2 * dtp_lower_ring(ELEMENT * elements, f->x->rules.replicas));
}

dtp_op_id dtp_executor_sum_factored(struct dtp_executor *x, struct dtp_executor_module *module,
                                    const struct dtp_executor_factors *factors, dtp_buffer_id gradient,
                                    enum dtp_stream stream, dtp_op_id after)
{
    struct factoring f = {.x = x,
                          .module = module,
                          .gradient = gradient,
                          .stream = stream,
                          .lost = module->state[DTP_EXECUTOR_LOST],
                          .q = module->state[DTP_EXECUTOR_FACTOR_Q],
                          .after = after};
    dtp_op_id last = DTP_NO_OP;
    for (uint32_t i = 0; i < factors->count; i++) {
        add_lost(&f, &factors->factor[i]);
        orthogonalize(&f, &factors->factor[i], false);
        make_p(&f, &factors->factor[i]);
    }
    copy_runs(&f, factors, false);
    sum(&f, x->narrow, factors->p_elements);
    copy_runs(&f, factors, true);
    for (uint32_t i = 0; i < factors->count; i++) {
        orthogonalize(&f, &factors->factor[i], true);
        make_q(&f, &factors->factor[i]);
    }
    sum(&f, f.q, factors->q_elements);
    for (uint32_t i = 0; i < factors->count; i++) {
        multiply(&f, &factors->factor[i], false);
        last = multiply(&f, &factors->factor[i], true);
    }
    return last;
}
