/* Cross entropy as Transformers' models have it (dtp_plan_shifts_logits): of a copy in fp32, of which a second one
 * leaves out each sequence's last token, beside the 16-bit logits. */
#include "lower/lowering.h"

#include "base/bytes.h"

/* What backward reads is log-softmax; or, of one kernel, what it read, with the gradient in its place. Forward of the
 * model returns then, and lets go what the head read. */
void dtp_lower_shifted_loss(struct dtp_lowering *l, uint64_t tokens, bool drops_input)
{
    double logits = (double)tokens * (double)l->transformer->vocab;
    uint64_t state = dtp_plan_shifted_loss_bytes(l->plan), copy = dtp_plan_shifted_copy_bytes(l->plan);
    uint64_t wide = dtp_bytes_product(tokens, state * l->transformer->vocab);
    bool eager = l->loss == DTP_LOSS_EAGER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "");
    dtp_draft_new(l, &draft, "logits in fp32", DTP_OWNER_LOGITS, state == l->compute ? 0 : wide, DTP_UPDATE | DTP_FREE);
    if (eager)
        dtp_draft_new(l, &draft, "shifted logits", DTP_OWNER_LOGITS,
                      dtp_bytes_product(tokens, copy * l->transformer->vocab), DTP_UPDATE | DTP_FREE);
    l->flight->loss_state =
        dtp_draft_new(l, &draft, eager ? "log-softmax" : "shifted logits", DTP_OWNER_LOGITS, wide, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->logits, DTP_READ | DTP_FREE);
    if (drops_input) {
        dtp_draft_use(&draft, l->flight->final_norm, DTP_FREE);
        l->flight->final_norm = DTP_NO_BUFFER;
    }
    l->flight->logits = DTP_NO_BUFFER;
    double narrow = (double)(2 * copy + (state == copy ? 0 : copy + state) + 2 * state);
    if (l->plan->narrow_logits)
        dtp_draft_memory(l, &draft, logits * narrow, state == copy ? 2 : 3);
    else
        dtp_draft_memory(l, &draft, logits * (double)(l->compute + (eager ? 20 : 16)), eager ? 4 : 3);
    dtp_draft_end(l, &draft);
}

/* Of log-softmax three tensors, of nll zeros; where it is wider a cast back; then zeros of which all but the last token
 * are filled. */
static void narrow_gradient(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab, state = dtp_plan_shifted_loss_bytes(l->plan), c = l->compute;
    double logits = (double)tokens * (double)vocab;
    uint64_t wide = dtp_bytes_product(tokens, state * vocab), narrow = dtp_bytes_product(tokens, c * vocab);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "");
    dtp_draft_new(l, &draft, "nll gradient", DTP_OWNER_LOGITS, wide, DTP_UPDATE | DTP_FREE);
    dtp_buffer_id gradient = dtp_draft_new(l, &draft, "shifted gradient", DTP_OWNER_LOGITS, wide, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, logits * (double)(3 * state), 2);
    dtp_draft_end(l, &draft);
    if (state != c) {
        dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "cast");
        dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
        gradient = dtp_draft_new(l, &draft, "shifted gradient", DTP_OWNER_LOGITS, narrow, DTP_WRITE);
        dtp_draft_memory(l, &draft, logits * (double)(state + c), 1);
        dtp_draft_end(l, &draft);
    }
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "shift");
    l->flight->logits_gradient = dtp_draft_new(l, &draft, "logits gradient", DTP_OWNER_LOGITS, narrow, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, logits * (double)(3 * c), 2);
    dtp_draft_end(l, &draft);
}

/* Of log-softmax 4 + 4 + 4, of the nll loss zeros; by one kernel 4 + 4. Then of the copy without the last token: zeros
 * 4, of which 4 + 4 are filled. */
void dtp_lower_shifted_gradient(struct dtp_lowering *l, uint64_t tokens)
{
    double logits = (double)tokens * (double)l->transformer->vocab;
    uint64_t wide = dtp_bytes_product(tokens, 4 * l->transformer->vocab);
    dtp_buffer_id gradient = l->flight->loss_state;
    struct dtp_draft draft;
    if (l->plan->narrow_logits) {
        narrow_gradient(l, tokens);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "");
    if (l->loss == DTP_LOSS_EAGER) {
        dtp_draft_new(l, &draft, "nll gradient", DTP_OWNER_LOGITS, wide, DTP_UPDATE | DTP_FREE);
        gradient = dtp_draft_new(l, &draft, "shifted gradient", DTP_OWNER_LOGITS, wide, DTP_WRITE);
        dtp_draft_use(&draft, l->flight->loss_state, DTP_READ | DTP_FREE);
    } else {
        dtp_draft_use(&draft, gradient, DTP_UPDATE);
    }
    dtp_draft_memory(l, &draft, logits * (l->loss == DTP_LOSS_EAGER ? 12 : 8), 2);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "shift");
    l->flight->logits_gradient = dtp_draft_new(l, &draft, "logits gradient in fp32", DTP_OWNER_LOGITS, wide, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, logits * 12, 2);
    dtp_draft_end(l, &draft);
}
