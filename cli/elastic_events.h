/* What events tell of an elastic run's time, as they come: which steps count, which are done again, and how long no
 * step ends. Times are this process's clock; a run that is not elastic says nothing of it. */
#ifndef DTP_ELASTIC_EVENTS_H
#define DTP_ELASTIC_EVENTS_H

#include "record/run_report.h"

struct dtp_elastic_listener {
    struct dtp_elastic_outcome *out;
    double launched_s, began_s, last_s; /* the first ranks' launch; their first step's begin; the last step's end */
    double *step_s;                     /* of each step that counts, from the first on */
    uint64_t first_step, last_step, room;
    uint32_t number;  /* of the generation that was heard of last */
    double lost_at_s; /* when it was, first: a lost one's ranks had all ended */
    bool answers;     /* it follows on a failure */
    bool waits;       /* no step has ended since ranks were started */
};

/* A generation is to be started, for the reason that `why` gives. */
struct dtp_elastic_heard {
    uint32_t number, ranks;
    char why[256];
    unsigned how;              /* the one before was noticed to have lost a rank: enum dtp_rank_loss, if it is one */
    double noticed_s, ended_s; /* behind its last step; NAN: nobody knew */
};
void dtp_elastic_hear_generation(struct dtp_elastic_listener *listener, const struct dtp_elastic_heard *heard);
void dtp_elastic_hear_start(struct dtp_elastic_listener *listener, uint64_t first_step);
void dtp_elastic_hear_step(struct dtp_elastic_listener *listener, uint64_t step, double seconds);
void dtp_elastic_hear_snapshot(struct dtp_elastic_listener *listener, double stall_s);
/* Frees what it holds; the outcome stays. */
void dtp_elastic_listener_finish(struct dtp_elastic_listener *listener);

#endif
