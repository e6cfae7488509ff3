/* The activation of an MLP, or of experts, forward. */
#include "lower/lower_graphs.h"
#include "lower/block_forward.h"

#include "plan/gelu_chain.h"

/* A compiler writes a result over the last tensor that its kernel reads of that size (inductor's reuse of buffers). */
static bool takes_room(const struct pass *pass, const struct dtp_layer_activation *at)
{
    const struct dtp_lowering *l = pass->l;
    bool goes = exists(pass, at->up) && !(pass->save & UINT64_C(1) << at->up);
    return l->compiled && l->gated && goes && made_bytes(pass, at->up) == made_bytes(pass, at->product);
}

static void write_over(const struct pass *pass, struct dtp_draft *draft, enum dtp_layer_tensor from,
                       enum dtp_layer_tensor to)
{
    dtp_draft_use(draft, pass->module->tensor[from], DTP_UPDATE);
    pass->module->tensor[to] = pass->module->tensor[from];
    pass->module->alive |= UINT64_C(1) << to;
    drop(pass, from);
}

/* eager SwiGLU: silu reads and writes f, the product reads two and writes one; fused: two in, one out; GELU one in, one
 * out, or a chain of operators; eager squared ReLU does that twice. Clamped, eager: two clamps, a multiple, a sigmoid,
 * up plus one of 2 f each and two products of 3 f. */
void dtp_forward_activation(const struct pass *pass, uint64_t makes)
{
    struct dtp_lowering *l = pass->l;
    struct dtp_layer_activation at = dtp_layer_activation(makes);
    if (!wanted(pass, at.product) && !wanted(pass, at.silu))
        return;
    double f = (double)dtp_lower_product_bytes(l, at.product);
    bool chains = l->tensors.kind.chains_gelu;
    struct dtp_gelu_chain chain = dtp_gelu_chain_of(l->plan, l->tensors.kind.widens_gelu);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION, "");
    make(pass, &draft, at.silu);
    if (chains)
        dtp_draft_new(l, &draft, "GELU in fp32", DTP_OWNER_WORKSPACE,
                      l->tokens * chain.forward_room * l->tensors.kind.ffn, DTP_UPDATE | DTP_FREE);
    if (takes_room(pass, &at))
        write_over(pass, &draft, at.up, at.product);
    else
        make(pass, &draft, at.product);
    if ((l->gated || chains) && !l->compiled && !pass->replay && !(pass->save & UINT64_C(1) << at.silu) &&
        exists(pass, at.silu))
        read(pass, &draft, at.silu, true);
    read(pass, &draft, at.gate, true);
    read(pass, &draft, at.up, true);
    bool fused = l->fused || dtp_layer_activates_in_one(&l->tensors.kind, makes);
    bool squares = l->tensors.kind.squares, two = (l->gated || squares) && !fused;
    bool clamps = l->tensors.kind.clamps && !fused;
    double passes = clamps ? 16 : l->gated ? (fused ? 3 : 5) : two ? 4 : 2;
    bool within = dtp_lower_activates_within(l, at.product);
    uint32_t calls = at.product == DTP_TENSOR_PRODUCT ? (uint32_t)dtp_layer_calls(&l->tensors.kind) : 1;
    uint32_t kernels = clamps ? 7 : two ? 2 : 1;
    double strided = !fused && l->tensors.kind.packs_up ? 2 : 0; /* halves of rows, for silu and for the product */
    double elements = strided * f / (double)l->results;
    if (chains)
        passes = chain.forward / (double)l->results, kernels = chain.forward_kernels,
        elements = chain.forward_elements * f / (double)l->results;
    dtp_draft_pass(l, &draft, within ? 0 : per_token(l, passes * f), per_token(l, elements),
                   within ? 0 : calls * kernels);
    dtp_draft_end(l, &draft);
}
