/* What runs said, as refit_observe.c takes it from them and refit.c fits it; private to those. */
#ifndef DTP_REFIT_PARTS_H
#define DTP_REFIT_PARTS_H

#include "runs/refit.h"

/* One shape in one run: median of its operations with nothing beside them. */
struct dtp_refit_time {
    struct dtp_measured_row row; /* results empty */
    size_t run;
    double seconds, total_s; /* of one; of all of them in a step */
};

/* One collective of one group in one run. */
struct dtp_refit_beside {
    struct dtp_measured_row row; /* contention NAME, ranks, stride, nodes */
    size_t run;
    bool chosen;                /* the plan says how it is carried: not as the rows of a machine file are */
    double beside_s, extra_s;   /* kernels: seconds with it beside them, and by how much longer they took */
    double in_place_s, alone_s; /* itself, where kernels ran beside more than half of it */
};

/* What a run's steps took beyond their operations. */
struct dtp_refit_rest {
    size_t run;
    bool graph;
    double rest_s, kernels;
};

struct dtp_refit {
    struct dtp_refit_time *time;
    size_t time_count, time_room;
    struct dtp_refit_beside *beside;
    size_t beside_count, beside_room;
    struct dtp_refit_rest *rest;
    size_t rest_count, rest_room;
    size_t run_count;
};

#endif
