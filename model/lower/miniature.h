/* The live bytes of a step from miniatures: two step programs of few layers instead of one of all.
 *
 * A net of equal layers makes a step that repeats. Let T layers be its period (every N-th one checkpointed, units of W:
 * the least common multiple). One miniature has p layers, p = L modulo T, the other p + 2 T, both too few to matter and
 * enough for what is different at the ends: prefetches, units not gathered yet, the first and last of each kind. Both
 * are lowered as whole steps are, by the runtime's own rules, and cut into runs (program/live_runs.h). Then
 *
 *     miniature         X  Y             X: the first layers' runs, Y: the last ones', W: one period
 *     two periods more  X  W  W  Y
 *     the step          X  W  W  W ...  W  Y       (L - p) / T periods more than the miniature
 *
 * in each stretch between two marks: forward, loss, backward of each micro-step, and the optimizer. That the second
 * miniature is the first with a period and its repetition inserted is not assumed but compared, run by run: what each
 * allocates and frees in which order, and of layers its bytes too. Sizes that depend on the number of layers (lists of
 * an optimizer, flat buffers) are taken as linear from one miniature to the other. Of many micro-steps three are
 * lowered, those between the second and the last repeat; where each reduces its gradients two, for then the last one is
 * as those before it, or one, where no state comes or goes. That it leaves nothing behind is compared as well.
 *
 * All of these lowerings share what is known of blocks, so that most of them are repeated (lower/lower_again.c).
 *
 * Where no layer's part need differ at the ends, the miniatures are as small as they can be: p is a period or a little
 * more, the larger one has one period more, and what is inserted must be what stands before it. Parameters that are not
 * gathered layer by layer, or by the sum, are so, of LLaMA-7B one layer and two. Else all is as above.
 *
 *     miniature         X  W  Y          either end may be none
 *     a period more     X  W  W  Y
 *
 * Of three the larger miniature has but the first and the last. What the one between does in a run of its layers is
 * read off the small one: it does the same wherever the first micro-step does, to the byte, what it does there. That
 * is given up where the first does it nowhere in the small one, where its runs outside of layers grow with the net,
 * and where what comes in the whole step does not go again; then the larger one has all three.
 *
 * DeepSpeed's buckets end anywhere in a layer. Of ZeRO-1 and -2 the miniatures only say when gradients come, and what a
 * full bucket takes is added where the sum over all layers finds it full (program/live_runs.h). ZeRO-3 fetches five
 * layers of LLaMA-7B ahead, so that miniatures with all that is different at the ends would be as long as the net: they
 * tell when parameters are used and gradients made, and the sum moves what is fetched, kept and reduced.
 *
 * Where runs do not line up (ZeRO++, buckets under a compressing hook of DDP), or where the net is
 * hardly larger than its miniatures, all layers are lowered, of many micro-steps again as few where the last of
 * them leaves nothing behind. So the answer is that of the program, but for some bytes where the padding of
 * tensors does not grow linearly with layers: 0.003 % at most of what was drawn. */
#ifndef DTP_MINIATURE_H
#define DTP_MINIATURE_H

#include "plan/plan.h"
#include "program/live_runs.h"

struct dtp_miniature {
    struct dtp_live_bytes live;
    uint64_t layers; /* of the larger miniature; 0: all layers were lowered */
    uint32_t
        micro_steps; /* that were lowered: fewer than the step has, and any larger number has the same live bytes */
};

/* How small: what a scan shortens a step to that it simulates. */
struct dtp_miniature_size {
    uint64_t period;      /* layers that one layer's part of the step repeats after */
    uint64_t layers;      /* of the smaller miniature, the net's modulo the period; 0: too few layers to shorten, or no
                             layer's part of the step need repeat another's */
    uint32_t micro_steps; /* the first, one between, the last */
};
/* `pattern`: layers after which their kind repeats in what is read off, 1 where all are alike. */
struct dtp_miniature_size dtp_miniature_size_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                                uint64_t pattern);

/* Live bytes of a step of two micro-steps: of one of three or more without those between the first and the last. */
struct dtp_miniature_shorter {
    bool known; /* three were lowered, and the second leaves nothing behind, or fewer that stand for any number */
    struct dtp_live_bytes live;
};

/* Inputs as for dtp_lower, whose faults are returned; `op_limit` is that of a step that is lowered whole. */
enum dtp_status dtp_miniature_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                 const struct dtp_plan *plan, uint32_t op_limit, struct dtp_miniature *out,
                                 struct dtp_faults *faults);
/* The same, and of the same lowering what a step of two micro-steps has live: of three and more the first and the last
 * do what those of two do. */
enum dtp_status dtp_miniature_of_many(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan, uint32_t op_limit, struct dtp_miniature *out,
                                      struct dtp_miniature_shorter *shorter, struct dtp_faults *faults);
/* For whoever must see the buffers themselves: the program of all layers with as few micro-steps as have the same live
 * bytes. The caller destroys *out. */
enum dtp_status dtp_miniature_whole(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_program **out, struct dtp_faults *faults);

#endif
