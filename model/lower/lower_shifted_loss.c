/* Cross entropy as Transformers' models have it (dtp_plan_shifts_logits): of a copy in fp32, of which a second one
 * leaves out each sequence's last token, beside the 16-bit logits. */
#include "lower/lowering.h"

#include "base/bytes.h"

/* What backward reads is log-softmax; or, of one kernel, what it read, with the gradient in its place. Forward of the
 * model returns then, and lets go what the head read. */
void dtp_lower_shifted_loss(struct dtp_lowering *l, uint64_t tokens, bool drops_input)
{
    double logits = (double)tokens * (double)l->transformer->vocab;
    uint64_t wide = dtp_bytes_product(tokens, 4 * l->transformer->vocab);
    bool eager = l->loss == DTP_LOSS_EAGER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "");
    dtp_draft_new(l, &draft, "logits in fp32", DTP_OWNER_LOGITS, l->compute == 4 ? 0 : wide, DTP_UPDATE | DTP_FREE);
    if (eager)
        dtp_draft_new(l, &draft, "shifted logits", DTP_OWNER_LOGITS, wide, DTP_UPDATE | DTP_FREE);
    l->flight->loss_state =
        dtp_draft_new(l, &draft, eager ? "log-softmax" : "shifted logits", DTP_OWNER_LOGITS, wide, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->logits, DTP_READ | DTP_FREE);
    if (drops_input) {
        dtp_draft_use(&draft, l->flight->final_norm, DTP_FREE);
        l->flight->final_norm = DTP_NO_BUFFER;
    }
    l->flight->logits = DTP_NO_BUFFER;
    dtp_draft_memory(l, &draft, logits * (double)(l->compute + (eager ? 20 : 16)), eager ? 4 : 3);
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
