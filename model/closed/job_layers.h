/* A job's layers by kind, for whoever asks for one plan after the other: the tensors of each and its parameters, those
 * of all layers, those that are trained. Micro-batches and micro-steps change none of them, and a sweep or a search
 * mostly changes these alone. */
#ifndef DTP_JOB_LAYERS_H
#define DTP_JOB_LAYERS_H

#include "closed/sharding.h"
#include "plan/layer_tensors.h"

struct dtp_job_layers {
    struct dtp_transformer transformer, own; /* own: of experts that ranks divide, their part */
    struct dtp_cluster cluster;
    struct dtp_plan plan;
    bool uniform;                                     /* all are of one kind, which is number 0 here */
    struct dtp_layer_tensors tensors[DTP_LAYER_MLPS]; /* by enum dtp_layer_mlp where there are two kinds */
    struct dtp_units alike[DTP_LAYER_MLPS];           /* of the model if all its layers were of that kind */
    uint64_t wide[DTP_LAYER_MLPS]; /* bytes that those which stay in bf16 keep of a token; 0: none do */
    uint64_t shapes; /* elements of one tensor of each shape of matrices, the head's and that of the projection of what
                        predicts further ahead apart, which Transformer Engine hands autograd (get_dummy_wgrad); of
                        others 0 */
    struct dtp_units mixed, trained; /* of a model of two kinds; of a plan with adapters what these train */
};
/* Of the model. */
static inline const struct dtp_units *dtp_job_units(const struct dtp_job_layers *layers)
{
    return layers->uniform ? &layers->alike[0] : &layers->mixed;
}

/* The layers of a resolved job. `kept` is the caller's, of one thread, zeros before the first call: if it has layers of
 * a job that differs in batches alone (micro_batch, accumulate) they are returned as they are, else it gets these.
 * NULL: `here` gets them. */
const struct dtp_job_layers *dtp_job_layers_of(const struct dtp_transformer *transformer,
                                               const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                                               struct dtp_job_layers *kept, struct dtp_job_layers *here);

#endif
