/* Search: of all combinations of GPU kind, number and plan, those that train a number of tokens soonest, cheapest and
 * with most room to spare.
 *
 * The closed form predicts every combination, but for those that a bound rules out:
 *   - time and money: no step is shorter than its matmul FLOPs at the sustained rate of the GPU with the largest clock
 *     gain; a group of combinations whose bound misses the deadline or the budget is left out (dtp_search_bound_s);
 *   - memory: tensors only grow with the micro-batch, so that where they alone exceed a GPU, larger ones are left out.
 * Accumulating without reducing (no_sync) keeps gradients whole; sharded plans that have surely no room for these
 * reduce in every micro-step instead, unless accumulate_sync is given.
 *
 * Of every group (GPUs, division of the model, precision) the fastest few survive; the best of these are simulated
 * where they have a step program, and what comes first then, too: their time then is the simulation's, and one whose
 * allocator replay or placement does not fit is dropped. Those of too many micro-steps to be simulated whole have their
 * time from shorter steps, where it follows from them.
 *
 * What is only tight (dtp_memory_judge) comes after all that fits, and is recommended only where nothing within the
 * limits fits.
 *
 * Risk is the share of memory that stays free, in steps of DTP_SEARCH_RISK_STEP, and failures, whose cost is in time
 * and money already. */
#ifndef DTP_SEARCH_H
#define DTP_SEARCH_H

#include "job/axes.h"
#include "decide/training_cost.h"
#include "job/variant.h"

#define DTP_SEARCH_RISK_STEP 0.05
/* The cheapest plan of all is a single slow GPU for decades. Where neither deadline nor budget says how long is too
 * long, what ends within a year goes before what does not. */
#define DTP_SEARCH_PATIENCE_S (365.0 * 86400)

/* The axes in this order vary from slowest to fastest: what a group is, up to the precision, then what it chooses from.
 * A key that is not here goes before them. Values are those of a search that does not name the key; of the layout
 * where a runtime that divides models and the kind of GPU are given. */
#define DTP_SEARCH_AXES(X)                                                                                             \
    X("gpu", "any")                                                                                                    \
    X("gpus", NULL) /* 1, 2, 4, ... up to the largest allowed */                                                       \
    X("tp", "1,2,4,8")                                                                                                 \
    X("pp", "1,2,4,8,16")                                                                                              \
    X("cp", "1,2,4,8")          /* of a sequence that leaves each rank enough tokens */                                \
    X("ep", "1,2,4,8,16,32,64") /* of models with experts alone */                                                     \
    X("precision", "bf16-mixed,bf16,fp8-tensorwise")                                                                   \
    X("virtual_stages", "1,2,3,4,5,6,8,10")                                                                            \
    X("strategy", "ddp,zero1,zero2,full_shard,shard_grad_op,hybrid_shard") /* zero3 is full_shard, or DeepSpeed's */   \
    X("offload", "none,optimizer,params")                                                                              \
    X("checkpointing", "none,full,selective,selective-attention,every-2,every-4")                                      \
    X("compile", "true,false")                                                                                         \
    X("accumulate", NULL) /* 1, 2, 4, 8; by the global batch where one is given */                                     \
    X("micro_batch", "1,2,3,4,6,8,12,16,24,32,48,64")

/* What dtp_search_thin made of the numbers of GPUs that were asked for; all 0: it left them as they were. */
struct dtp_search_thinned {
    size_t asked, rented, tried; /* rented: part of a node or whole nodes of each of the GPUs */
};

struct dtp_search_question {
    const struct dtp_scenario *base; /* scenario files; axes go over it */
    const struct dtp_axes *axes;
    const struct dtp_catalog *catalog;
    bool precision_pinned; /* else other number formats than bf16-mixed are shown, and recommended only without rival */
    uint32_t simulate_count;           /* candidates to simulate at first; half as many more for who comes first then */
    uint32_t max_nodes;                /* no plan has more; 0: any number */
    struct dtp_search_thinned thinned; /* for the report */
    unsigned threads;                  /* 0: all cores */
    uint32_t queue_places; /* of a group's fastest, before it is scanned again for more; 0: as many as mostly suffice */
    void *watch_context;
    bool (*watch)(void *context, uint64_t done, uint64_t count); /* see parallel.h; may be NULL */
};

/* What the search chooses itself where no axis does. */
struct dtp_search_choice {
    uint32_t shard_group; /* for hybrid_shard; 0: the rule's, or the user's */
    bool reduce_always;   /* accumulate_sync: whole gradients of no_sync surely do not fit */
};

struct dtp_candidate {
    struct dtp_variant variant; /* prediction: simulated where `simulated`, else the closed form's */
    bool simulated;
    bool estimated;   /* its time is that of a simulation, from shorter steps (miniature_time.h), its memory is not */
    char reason[160]; /* why it was not simulated, "" where it was or was not tried */
    double closed_step_s;
    struct dtp_money money;
    struct dtp_training_cost cost;
    double headroom;   /* share of the GPU's memory that stays free */
    bool valid;        /* within deadline and budget */
    bool fits;         /* with the margin that dtp_memory_judge asks for; else tight */
    bool patient;      /* ends within DTP_SEARCH_PATIENCE_S, or a deadline or a budget says what is wanted instead */
    bool batch_free;   /* no global batch was given: it differs between candidates */
    bool usual_format; /* bf16-mixed, or one of the formats that were asked for */
    bool front; /* no other of the best class there is (valid, fits, ...) is better in time, money or headroom and
                   worse in none */
    uint64_t combination;
    struct dtp_search_choice choice;
};

/* combinations is the sum of refused, pruned and predicted ones; every group of hybrid_shard counts. Of the predicted
 * ones fits, tight and out_of_memory are by the bound, but for those whose memory was estimated. scanned_again: groups
 * whose fastest by the bound did not suffice. */
struct dtp_search_counts {
    uint64_t combinations, refused, too_many_nodes, pruned_time, pruned_memory, predicted, fits, tight, out_of_memory,
        simulated, dropped, estimated, scanned_again;
};

/* How far a limit would have to move for a plan to exist. */
struct dtp_search_relax {
    bool any_fits;        /* false: no combination fits into memory */
    bool any_ends;        /* false: whatever fits fails faster than it gets on */
    double missing_bytes; /* where nothing fits: what the nearest lacks */
    double deadline_s;    /* earliest end within the budget (whatever it costs where none is); 0: none or not asked */
    double budget_usd;    /* least money within the deadline; 0: likewise */
    double free_deadline_s, free_budget_usd; /* earliest whatever it costs, cheapest however late */
    char refusal[DTP_FAULT_TEXT_BYTES];      /* where every combination is refused: the first reason */
};

struct dtp_search {
    struct dtp_search_counts counts;
    size_t count;
    struct dtp_candidate *candidates; /* by the objective, best first */
    long recommended, runner_up;      /* indices, or -1 */
    long other_format;                /* the best in another number format, where it beats the recommended one; or -1 */
    struct dtp_search_relax relax;    /* where nothing is recommended */
};

/* Whether a deadline or a budget was given. */
bool dtp_search_has_limits(const struct dtp_job *job);
/* A lower bound of the seconds that `tokens` take on the job's GPUs. */
double dtp_search_bound_s(const struct dtp_job *job, double tokens);

/* Where the combinations of `axes` are more than are computed (1..1024 of any GPU): takes from its numbers of GPUs
 * those in which not all of them come, then all but as many as there is room for, evenly by their ratio. question->axes
 * is `axes`.
 */
enum dtp_status dtp_search_thin(const struct dtp_search_question *question, struct dtp_axes *axes,
                                struct dtp_search_thinned *out, struct dtp_faults *faults);
/* DTP_OK with a recommended plan, DTP_NO without, DTP_ENVIRONMENT without a fault where `watch` ended it. The
 * objective: the cheapest within deadline and budget; the fastest where only a budget is given. Caller releases *out,
 * which is empty after other failures. */
enum dtp_status dtp_search(const struct dtp_search_question *question, struct dtp_search *out,
                           struct dtp_faults *faults);
void dtp_search_release(struct dtp_search *search);

/* Sets the keys of a choice, or unsets them again. */
enum dtp_status dtp_search_choose(const struct dtp_search_choice *choice, struct dtp_scenario *scenario,
                                  struct dtp_faults *faults);
void dtp_search_take_back(const struct dtp_search_choice *choice, struct dtp_scenario *scenario);
/* Sets `scenario` to what a candidate is: the combination's keys and the choice. Faults are those of setting keys. */
enum dtp_status dtp_search_apply(const struct dtp_search_question *question, const struct dtp_candidate *candidate,
                                 struct dtp_scenario *scenario, struct dtp_faults *faults);

#endif
