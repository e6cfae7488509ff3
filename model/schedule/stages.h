/* Which parts of a model each stage of a pipeline holds.
 *
 * A model is a row of parts: embedding, layers, perhaps layers that predict further tokens (MTP), head with loss.
 * Stages cut it in order; stage i of p ranks is chunk i / p of rank i % p where chunks loop (schedule.h). There are
 * four ways to cut it: even, by cost as nanotron does, as a Megatron layout text says, and best, so that the slowest
 * stage, or a schedule's step, is as short as it can be. */
#ifndef DTP_STAGES_H
#define DTP_STAGES_H

#include "schedule/schedule_time.h"

#define DTP_STAGES_MAX 65536u
#define DTP_STAGES_MAX_LAYERS 262144u

struct dtp_stage_parts {
    uint32_t first_layer, layers; /* of the model's layers, from 0 */
    uint32_t mtp_layers;
    bool embedding, head;
};

struct dtp_stages {
    uint32_t count;
    struct dtp_stage_parts *parts; /* in the order in which a micro-batch goes through them */
};
void dtp_stages_destroy(struct dtp_stages *stages);

/* What a model consists of. */
struct dtp_stages_model {
    uint32_t layers, mtp_layers;
};

/* The same number of layers in each, as Megatron-LM cuts: where embedding or head count, each takes the place of a
 * layer in the first or the last stage. MTP layers go to the last stage and count for nothing. DTP_BAD_INPUT: what is
 * to be cut is no multiple of `count`; the nearest numbers of layers are said. Of all that make stages: caller
 * destroys, and after a failure *out is empty. */
enum dtp_status dtp_stages_even(const struct dtp_stages_model *model, uint32_t count, bool embedding_counts,
                                bool head_counts, struct dtp_stages *out, struct dtp_faults *faults);

/* As even as any number of layers goes, as torchtitan cuts (generate_llm_fqn_per_model_part): what does not divide goes
 * to the first stages, one each; where ends count, embedding and head take the place of a layer each. DTP_BAD_INPUT:
 * there are more stages than layers, or than layers and ends. */
enum dtp_status dtp_stages_spread(const struct dtp_stages_model *model, uint32_t count, bool ends_count,
                                  struct dtp_stages *out, struct dtp_faults *faults);

/* What a layout text consists of. */
#define DTP_STAGES_LETTERS "EtmL|()*,0123456789"
/* A Megatron layout text, as of --pipeline-model-parallel-layout: E embedding, t a layer, m an MTP layer, L head and
 * loss, | between stages, x*3 three times x, (xy)*3 three times xy, commas for readers alone. "Et*3|(tt|)*29m|L": E and
 * three layers, 29 times two, an MTP layer, the loss. Empty stages are allowed. DTP_BAD_INPUT with the place in the
 * text, or the rule of Megatron-LM that it breaks: parts in order, as many as the model has, a multiple of `ranks`
 * stages, MTP layers all in one stage, in the last chunk of a rank. */
enum dtp_status dtp_stages_parse(const char *text, const struct dtp_stages_model *model, uint32_t ranks,
                                 struct dtp_stages *out, struct dtp_faults *faults);
/* The text of stages, which parses to the same where the head is in the last one. Caller frees; NULL: no memory. */
char *dtp_stages_text(const struct dtp_stages *stages);

/* What one micro-batch costs in one part. */
struct dtp_part_cost {
    double forward_s, backward_s, weight_s, kept, kept_for_weight;
};
struct dtp_model_cost {
    struct dtp_part_cost embedding, head, mtp_layer;
    const struct dtp_part_cost *layers; /* one each layer of the model */
    double send_s;                      /* of a boundary between stages of two ranks */
    uint32_t delayed_layers; /* of a stage, from its first on: their W is behind what a whole backward sends */
};
/* What each stage costs: the sum of its parts. */
void dtp_stages_cost(const struct dtp_stages *stages, const struct dtp_model_cost *cost, struct dtp_stage_cost *out);

/* As nanotron cuts (models/base.py, build_model): parts go to a stage until what has been given out reaches that
 * stage's share of the whole, the part that reaches it included. `layer` and `head` are costs of any unit; nanotron
 * takes 4 hidden^2 + 3 hidden ffn and vocabulary x hidden, and 0 for the embedding. The head is in the last stage, with
 * the loss, and where its share is that of several stages those before it are left empty. The code as published gives
 * the head to the stage whose share it reaches, and lets the cast to fp32 and the loss move on by one each. Its sweep
 * on H100 does not: of 8.86B on 16 stages that one would take as long as 3.6 layers and took 3, and 1.34B on 8 would
 * send 1 GiB of logits a micro-batch, yet is as fast where that crosses nodes. */
enum dtp_status dtp_stages_by_cost(const struct dtp_stages_model *model, uint32_t count, double layer, double head,
                                   struct dtp_stages *out, struct dtp_faults *faults);

/* The slowest stage as fast as possible, exactly, in O(count x layers): by dynamic programming over where stages end.
 * Each stage has a layer at least. */
enum dtp_status dtp_stages_best(const struct dtp_stages_model *model, const struct dtp_model_cost *cost, uint32_t count,
                                struct dtp_stages *out, struct dtp_faults *faults);
/* The same for a schedule's step: from there, and from even cuts, layers are moved over single boundaries as long as
 * the timer's makespan gets shorter. No proof of the shortest, but never longer than any of these. *makespan_s is that
 * of the result. Each move is judged by sweeps over all passes: DTP_BAD_INPUT also where they are too many for that. */
enum dtp_status dtp_stages_best_step(const struct dtp_stages_model *model, const struct dtp_model_cost *cost,
                                     const struct dtp_schedule *schedule, struct dtp_schedule_timer *timer,
                                     double pair_fraction, struct dtp_stages *out, double *makespan_s,
                                     struct dtp_faults *faults);

#endif
