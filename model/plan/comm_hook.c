#include "plan/comm_hook.h"

#include "plan/resolver.h"
#include "plan/runtime.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A tensor is taken as matrix [n, m] of its first dimension and the rest; r is at most either (_should_compress). */
uint64_t dtp_factored_rank(uint64_t rows, uint64_t columns, uint64_t rank)
{
    uint64_t r = least(rank, least(rows, columns));
    return (rows + columns) * r * DTP_POWERSGD_RATE < rows * columns ? r : 0;
}

void dtp_factored_add(struct dtp_factored *factored, uint64_t elements, uint64_t columns, uint64_t tensors,
                      uint64_t rank)
{
    if (!elements)
        return;
    uint64_t rows = columns ? elements / columns / tensors : 0, r = dtp_factored_rank(rows, columns, rank);
    if (!r) {
        factored->whole += elements;
        return;
    }
    factored->p += tensors * rows * r;
    factored->q += tensors * columns * r;
    factored->matrices += tensors;
}

uint64_t dtp_int8_part_bytes(uint64_t elements)
{
    uint64_t runs = elements / DTP_INT8_RUN + (elements % DTP_INT8_RUN != 0);
    uint64_t bytes = elements + 8 * runs, over = bytes % DTP_INT8_ALIGNMENT;
    return over ? bytes + DTP_INT8_ALIGNMENT - over : bytes;
}

double dtp_comm_hook_bytes(const struct dtp_plan *plan, uint64_t ranks, double grad_bytes)
{
    switch (plan->comm_hook) {
    case DTP_COMM_HOOK_NONE: break;
    case DTP_COMM_HOOK_FP16:
    case DTP_COMM_HOOK_BF16: return 2 * (grad_bytes + 2) + 2 * 2;
    case DTP_COMM_HOOK_INT8: return (1 + 9 + 3) * grad_bytes + 1 + (double)ranks * (4 + 8 * grad_bytes);
    case DTP_COMM_HOOK_POWERSGD: return (3 + 2 + 2 + 1 + 3) * grad_bytes;
    }
    return 0;
}

void dtp_plan_check_comm_hook(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->comm_hook == DTP_COMM_HOOK_NONE)
        return;
    if (p->tp > 1 || p->pp > 1 || p->cp > 1)
        dtp_plan_refuse(r, "comm_hook", "%s is not modelled with tensor, context or pipeline parallelism; use none",
                        dtp_comm_hook_text(p->comm_hook));
    if (p->comm_hook == DTP_COMM_HOOK_POWERSGD && (r->transformer->experts || r->transformer->kv_latent))
        dtp_plan_refuse(r, "comm_hook", "powersgd is not modelled of %s; use fp16, bf16, int8 or none",
                        r->transformer->experts ? "experts" : "latent attention");
}
