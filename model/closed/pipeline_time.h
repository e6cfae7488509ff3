/* Seconds of a pipeline's step by formulas: what each stage takes of a micro-batch, by the layers and ends that it
 * holds, and the schedule's passes walked with that (dtp_schedule_steps).
 *
 * Three numbers say what a stage takes: its kernels, its host's launches of them, and what its ranks exchange between
 * matmuls. Hosts launch one pass behind the other and wait for nobody (but for experts' rows), so a pass ends when its
 * kernels and exchanges are through and it has been launched; what a stage exchanges hides where it waits for its
 * launches. */
#ifndef DTP_PIPELINE_TIME_H
#define DTP_PIPELINE_TIME_H

#include "closed/time_parts.h"
#include "schedule/stages.h"

/* Of a micro-batch. */
struct dtp_stage_time {
    double device_s, launched_s, exchanged_s;
};

struct dtp_pipeline_parts {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_part_cost shares;              /* what F, B and W are of a layer's kernels; they add up to 1 */
    struct dtp_stage_time layer, first, ends; /* first: what one without experts takes besides; ends: head
                                                 and loss */
    struct dtp_stage_time table;              /* of the embedding */
    double gathered_s;                        /* of all that a stage has received */
    double layer_gather_s, experts_gather_s; /* FSDP's of a layer's weights: once in a step, of divided experts apart */
    double last_layer_s, last_table_s;       /* of the sums of gradients that a stage's last backward waits for */
    uint64_t sent_bytes;                     /* of a transfer between stages */
};

struct dtp_pipeline_time {
    double computing_s;               /* the step's passes, were nothing exchanged or sent */
    double passes_s;                  /* the step's passes */
    struct dtp_stage_time mean;       /* of a rank in the step */
    double launch_wait_s, exchange_s; /* of that: kernels' waits for launches; what these do not hide of exchanges */
    double sent_s;                    /* of a stage, all that goes to its neighbours in the step */
};

/* Of a plan with a pipeline. DTP_ENVIRONMENT: no memory for its passes. */
enum dtp_status dtp_pipeline_time_of(const struct dtp_pipeline_parts *parts, struct dtp_pipeline_time *out);

/* What the passes of head and loss take of their seconds: three products, of a frozen head two. */
struct dtp_part_cost dtp_passes_of_head(const struct dtp_plan *plan, double head_s);

/* Ranks that two neighbouring stages are apart; seconds of a transfer from each rank of a stage to one of another. */
uint32_t dtp_stages_apart(const struct dtp_cluster *cluster, const struct dtp_plan *plan);
double dtp_stage_transfer_s(const struct dtp_cluster *cluster, const struct dtp_plan *plan, uint32_t from, uint32_t to,
                            uint64_t bytes);

#endif
