/* Tensor and pipeline parallelism in the closed form, as Megatron-LM does them and others after it.
 *
 * Rank order is the plan's, by default Megatron's: tensor parallel ranks are neighbours, then data parallel ones, then
 * stages. A rank then holds a slice of the model: L/pp layers with 1/tp of the heads, of the MLP's width and of the
 * vocabulary. The ranks with the same slice train it data-parallel, which is what everything else here predicts:
 * memory, gradients and the optimizer are those of the slice on its own gpus/(tp pp) GPUs, of which a node has 1/tp as
 * many with 1/tp of the network. What comes on top:
 *
 * tensor: per layer two all-reduces of B = T h w bytes forward and two backward, two more where all is recomputed; with
 * sequence parallelism each is a reduce-scatter and an all-gather of the same bytes, norms and residual stream are
 * spread over the tp ranks too, and so are their activations (Shoeybi 2019; Korthikanti 2022). They stand between
 * matmuls: nothing hides them but tp_overlap.
 *
 * pipeline: the schedule's passes are walked with what each stage takes (pipeline_time.h), of equal stages 1F1B's
 * bubble is (p-1)/m of the work, with v chunks of the model per GPU (p-1)/(v m) (Narayanan 2021, 2.2). A boundary sends
 * B/tp bytes each way per micro-step and chunk, at the network's rate where its stages share no node.
 *
 * memory: of the fullest of the first rank, with micro-steps in flight (1F1B min(m, p), interleaved 1 + (p-1)/(p v)
 * times as many: Korthikanti 2022, 4.2.3; others: dtp_schedule_kept), at a layer and at the embedding; the one behind
 * it, without an end of the model; the one with the head, at a loss; the one where most weight gradients wait for their
 * pass, of which each holds what it reads, however little checkpointing keeps until backward (dtp_schedule_waiting).
 * Each with its own layers and tables, by share of the slice's states.
 *
 * A slice is one rank, so what ranks have of each other is added to it: rows that who gathers once keeps whole; of a
 * loss over parts of the vocabulary its tensors in fp32; of a table whose rows' gradients each rank makes those of the
 * others. And it is no stage: gradients that stand in its backward are not there yet at a stage's first, casts of
 * weights and gradients of weights that it lets go stay there, columns of weights gathered in fp8 for each micro-batch
 * (model_parallel_memory.c, kept_of, ranks_of). By GPipe and by looped BFS, and where there is but one, all m losses
 * come before the first backward. The head's rank then has at a loss, with n layers of a last stage whose layers and
 * head keep K of a micro-batch and have gradients G, the more of two instants: of the first backward, m micro-batches
 * and no gradient; of the second, m micro-batches less K, and G, n layers' with the head's, for its other stages'
 * backwards come later. By interleaved 1F1B that is so of the first round: until its losses are made the last stage
 * alone has run backward (add_first_gradients). PyTorch's stages alone make gradients anew; of DDP's the buckets stand
 * and the sums beside them are made anew.
 *
 * experts: rows go between layers, as what tensor parallel ranks exchange; sums and gathers of the weights that ranks
 * divide are waited for behind the passes, but FSDP2's gathers, which a stage's first forward waits for (gathers_s in
 * pipeline_time.c): their host reads counts of rows in each layer and is no further ahead.
 *
 * What a runtime's stages hold besides is a property of it (copies_passes, holds_passes). Not modelled: offload.
 */
#ifndef DTP_MODEL_PARALLEL_H
#define DTP_MODEL_PARALLEL_H

#include "closed/closed_form_hooks.h"
#include "plan/rules.h"
#include "schedule/stages.h"

void dtp_slice_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                  const struct dtp_plan *plan, struct dtp_slice *out);

/* What a layer takes of a micro-batch, and head with loss, and a transfer between stages: of a plan with a pipeline,
 * however its stages are cut. The passes share a layer's time as its matmuls, attention and the rest do. What a layer
 * keeps is in bytes, of head and loss it is not counted. */
void dtp_part_costs_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_part_cost *layer, struct dtp_part_cost *head,
                             double *send_s);

/* From the prediction of a slice to that of the plan: traffic, time and throughput; memory. DTP_ENVIRONMENT: no memory
 * for the passes of a pipeline. */
enum dtp_status dtp_stages_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_prediction *out);
void dtp_stages_memory_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, struct dtp_memory *memory);

#endif
