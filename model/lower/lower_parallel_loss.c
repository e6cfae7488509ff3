/* Cross entropy of tensor parallel ranks, who have columns of the logits each. */
#include "lower/lower_parallel_loss.h"

#include "base/bytes.h"

/* Who reads the logits last lets them go, unless the stage holds them. */
uint32_t dtp_lower_last_of_logits(const struct dtp_lowering *l)
{
    return dtp_lower_holds(l) ? DTP_READ : DTP_READ | DTP_FREE;
}

/* Tensor parallel ranks have columns of the logits each: a row's maximum, its target's logit and its sum of
 * exponentials are of all ranks together, three all-reduces of [T] in fp32. The pass over the logits for the maximum is
 * one of those that the loss takes anyhow. */
dtp_buffer_id dtp_lower_reduce_rows(struct dtp_lowering *l, uint64_t tokens)
{
    static const char *const names[] = {"row maxima", "target logits", "sums of exponentials"};
    const int count = sizeof names / sizeof *names;
    struct dtp_draft draft;
    if (l->vocab_ranks == 1)
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, names[0]);
    dtp_draft_use(&draft, l->flight->logits, DTP_READ);
    dtp_buffer_id rows = dtp_draft_new(l, &draft, "row statistics", DTP_OWNER_LOGITS,
                                       dtp_bytes_product(tokens, (uint64_t)count * 4), DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)tokens * (double)l->transformer->vocab * (double)l->compute, 1);
    dtp_draft_end(l, &draft);
    for (int i = 0; i < count; i++)
        dtp_lower_sum_in_place(l, names[i], rows, dtp_bytes_product(tokens, 4), false);
    return rows;
}

/* loss_parallel compiled keeps log-softmax in fp32, as eager does, and makes it out of logits in fp32 less the maximum,
 * which stand beside it: across its sums over ranks nothing is fused (tensors that live at the peak of compiled stages,
 * reports/h200/README.md). */
bool dtp_lower_compiled_in_parallel(const struct dtp_lowering *l)
{
    return l->vocab_ranks > 1 && l->plan->runtime->dtensor && l->loss == DTP_LOSS_FUSED;
}

/* Behind the maximum less which the logits are written c + 4, a pass for the sum of exponentials 4, and log-softmax
 * 4 + 4. */
void dtp_lower_parallel_loss(struct dtp_lowering *l, uint64_t tokens)
{
    double logits = (double)tokens * (double)l->transformer->vocab;
    dtp_buffer_id rows = dtp_lower_reduce_rows(l, tokens);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "");
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    l->flight->loss_state = dtp_draft_new(l, &draft, "log-softmax", DTP_OWNER_LOGITS,
                                          dtp_bytes_product(tokens, 4 * l->transformer->vocab), DTP_WRITE);
    dtp_draft_new(l, &draft, "logits in fp32", DTP_OWNER_LOGITS, dtp_bytes_product(tokens, 4 * l->transformer->vocab),
                  DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, l->flight->logits, dtp_lower_last_of_logits(l));
    dtp_draft_memory(l, &draft, logits * (double)(l->compute + 16), 3);
    dtp_draft_end(l, &draft);
    if (!dtp_lower_holds(l))
        l->flight->logits = DTP_NO_BUFFER;
}

/* Log-softmax 4 and the targets make the gradient, c. */
void dtp_lower_parallel_gradient(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "");
    l->flight->logits_gradient = dtp_draft_new(l, &draft, "logits gradient", DTP_OWNER_LOGITS,
                                               dtp_bytes_product(tokens, l->compute * vocab), DTP_WRITE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, (double)tokens * (double)vocab * (double)(4 + l->compute), 2);
    dtp_draft_end(l, &draft);
}

bool dtp_lower_parallel_in_python(const struct dtp_lowering *l)
{
    return l->vocab_ranks > 1 && l->plan->runtime->dtensor && l->loss == DTP_LOSS_EAGER && l->compute != 4;
}

/* loss_parallel is written in Python operators (torch/distributed/tensor/parallel/loss.py): (zeros with the targets'
 * own + exp(x)) * gradient, each a tensor of its own, of which exp(x) is gone when the last is made. */
void dtp_lower_parallel_python_gradient(struct dtp_lowering *l, double logits, uint64_t wide_bytes)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "sum");
    dtp_buffer_id own = dtp_draft_new(l, &draft, "nll gradient", DTP_OWNER_LOGITS, wide_bytes, DTP_WRITE);
    dtp_draft_new(l, &draft, "probabilities", DTP_OWNER_LOGITS, wide_bytes, DTP_UPDATE | DTP_FREE);
    dtp_buffer_id sum = dtp_draft_new(l, &draft, "unscaled gradient", DTP_OWNER_LOGITS, wide_bytes, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_READ);
    dtp_draft_memory(l, &draft, logits * 24, 3);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "scaled");
    l->flight->logits_gradient =
        dtp_draft_new(l, &draft, "logits gradient in fp32", DTP_OWNER_LOGITS, wide_bytes, DTP_WRITE);
    dtp_draft_use(&draft, sum, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, own, DTP_FREE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_FREE);
    dtp_draft_memory(l, &draft, logits * 8, 1);
    dtp_draft_end(l, &draft);
}

/* ---- logits that each rank gathers ------------------------------------------------------------------------------- */

/* Of all ranks, where a rank's are `vocab` columns. */
static uint64_t whole_logits(const struct dtp_lowering *l)
{
    return dtp_bytes_product(l->tokens, l->compute * dtp_plan_loss_columns(l->plan, l->transformer->vocab));
}

/* DTensor's way from Shard(-1) to Replicate (all_gather_tensor of torch/distributed/_functional_collectives.py): ranks'
 * columns one behind the other, then side by side (torch.cat). A slice by itself has nobody to gather from, but what is
 * gathered stands. */
void dtp_lower_gather_logits(struct dtp_lowering *l)
{
    const uint64_t whole = whole_logits(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, l->tp > 1 ? DTP_OP_ALL_GATHER : DTP_OP_COPY_OUT, "logits");
    dtp_draft_use(&draft, l->flight->logits, DTP_READ);
    dtp_buffer_id gathered = dtp_draft_new(l, &draft, "gathered logits", DTP_OWNER_LOGITS, whole, DTP_WRITE);
    if (l->tp > 1)
        l->awaited = dtp_lower_tensor_end(l, &draft, whole, false);
    else
        dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "logits side by side");
    dtp_buffer_id logits = dtp_draft_new(l, &draft, "logits", DTP_OWNER_LOGITS, whole, DTP_WRITE);
    dtp_draft_use(&draft, gathered, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->flight->logits, DTP_FREE);
    dtp_draft_memory(l, &draft, 2 * (double)whole, 1);
    dtp_draft_end(l, &draft);
    l->flight->logits = logits;
}

/* Back from Replicate to Shard(-1): a clone of the rank's columns (_replicate_to_shard of
 * torch/distributed/tensor/placement_types.py). */
void dtp_lower_cut_logits_gradient(struct dtp_lowering *l)
{
    const uint64_t own = dtp_bytes_product(l->tokens, l->compute * l->transformer->vocab);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "logits gradient");
    dtp_buffer_id gradient = dtp_draft_new(l, &draft, "logits gradient", DTP_OWNER_LOGITS, own, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->logits_gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 2 * (double)own, 1);
    dtp_draft_end(l, &draft);
    l->flight->logits_gradient = gradient;
}
