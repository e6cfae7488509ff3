/* A run: what was predicted of it beside what was measured. Schema of the JSON: dtplan.run/1. */
#ifndef DTP_RUN_REPORT_H
#define DTP_RUN_REPORT_H

#include "base/rank_loss.h"
#include "page/page.h"
#include "program/program_set.h"
#include "program/program_text.h"
#include "sim/compare.h"
#include "sim/pipeline_stages.h"

#define DTP_ELASTIC_FAILURES_TOLD 16 /* one by one; of more there are sums alone */

/* What the executor said of a run. 0 and NAN: it did not say. */
struct dtp_run_outcome {
    char program[DTP_PROGRAM_DIGEST_BYTES]; /* digest of the text that ran */
    char device[128], libraries[256], data[256];
    char collectives[512]; /* how NCCL carries them, where the plan chose; "": as it likes */
    char reason[512];      /* the first fault it named, "": none */
    bool gpu;              /* a GPU's times can be compared with the prediction's, a host's cannot */
    uint64_t ranks_a_gpu;  /* that share one; beyond 1 times mean nothing, and the driver says no rank's memory */
    bool interrupted;
    uint64_t operations, device_arena_bytes, host_arena_bytes, used_bytes, gpu_bytes;
    uint64_t owner_bytes[DTP_OWNER_COUNT];        /* at the peak of the arena, as counted while the step ran */
    struct dtp_reference_bytes {                  /* of a run by its framework's own program: what its allocator said */
        uint64_t after_init, allocated, reserved; /* before the first step; peaks of steps */
        uint64_t parameters, gradients, optimizer; /* what a rank keeps of each */
    } reference;
    uint64_t first_step, last_step, tokens_per_step, skipped_steps, timed_steps;
    uint64_t sent_bytes[DTP_COLLECTIVE_COUNT], host_to_device_bytes, device_to_host_bytes;
    double entropy, first_loss, last_loss; /* nats per token; the last is the mean of the last ten */
    double last_rate;                      /* learning rate of the last step; 0: not said */
    double step_s;                         /* median of the timed steps */
    double undisturbed_s; /* the same on cores that nothing disturbs: exec/device/pace.h; 0: not said */
    uint32_t role_count;  /* of a set: what each role's ranks did in a step */
    struct dtp_role_outcome {
        double busy_s, step_s; /* with a kernel, of how many */
    } * roles;                 /* NULL: they were not measured */
    uint32_t rank_count;       /* of a set: what each rank took and sent in so many steps */
    struct dtp_rank_outcome {
        uint64_t role, device_arena_bytes, steps, sent_bytes[DTP_COLLECTIVE_COUNT];
        uint64_t used_bytes, host_to_device_bytes, device_to_host_bytes; /* of its GPU, 0: not said; copied */
    } * ranks;                                                           /* NULL: they did not say */
    uint32_t expert_layers, experts;
    uint64_t *expert_rows; /* [expert_layers, experts] of tokens, in all steps, where ranks divide experts; else NULL */
    double *alone_s, *start_s, *end_s; /* per operation; NULL where no step was measured */
    struct dtp_kept {                  /* copies of the state, whole on all ranks */
        uint64_t count;
        double stall_s, longest_s;    /* that training stood still for, of all and of one */
        uint64_t host_bytes;          /* of memory of a rank's host, which they were copied to; 0: written at once */
    } checkpoints, beside, snapshots; /* checkpoints written while it waited, and while it went on; in memory */
    struct dtp_elastic_outcome {
        bool known;                      /* it was an elastic run; else nothing here is set */
        uint32_t generations, ranks;     /* ranks of the last */
        uint32_t failures;               /* generations that ended without being asked to */
        uint64_t snapshots, again;       /* whole ones; steps that were done again */
        double wall_s, useful_s;         /* since the first ranks began; of that the steps that count */
        double again_s, down_s, stall_s; /* steps done again; from a failure to the next step; copies for snapshots */
        double first_start_s;            /* from the launch of the first ranks to their first step */
        uint64_t steps;                  /* that count */
        struct dtp_elastic_failure {     /* of the first of `failures` */
            char why[96];                /* who was lost and how, as the launcher says */
            uint64_t steps_again;        /* that were lost and done again */
            enum dtp_rank_loss how;      /* it was noticed */
            double noticed_s, ended_s;   /* from the last step's end until a rank knew, and to all ranks' */
            double rejoin_s;             /* from there to the begin of the next step, waits for ranks included */
        } failure[DTP_ELASTIC_FAILURES_TOLD];
    } elastic;
};

/* Largest sum of `each` neighbours of so many experts' rows, over the mean of such sums; 0: there are no rows. */
double dtp_run_fullest(const uint64_t *rows, uint32_t experts, uint32_t each);
/* Rows that the fullest of `ranks` got over the mean of ranks, the mean of the layers with experts; NAN: not heard. */
double dtp_run_expert_imbalance(const struct dtp_run_outcome *measured, uint32_t ranks);

/* Whether what a collective sends is known on average alone: rows of tokens to experts that ranks divide. */
static inline bool dtp_run_expects(uint64_t ep, enum dtp_collective collective)
{
    return ep > 1 && collective == DTP_ALL_TO_ALL;
}

struct dtp_run_report {
    const struct dtp_simulated *simulated; /* the prediction */
    const struct dtp_run_outcome *measured;
    bool split_known;
    struct dtp_error_split split;
    struct dtp_class_times classes[DTP_CLASS_STORAGE + 1];
    struct dtp_phase_times phases[DTP_COMPARE_PHASE_COUNT];
    double exposed_tensor_s;  /* measured: collectives of tensor parallel ranks that nothing hides */
    double exposed_context_s; /* the same of context parallel ones */
    struct dtp_loss_beside {  /* of the log of another run */
        const char *path;     /* NULL: none was asked for */
        double last_loss;     /* the mean of as many losses, up to the same step */
    } beside;
};
/* Bytes that the program sends in a step of the run, the mean of its steps: those before PowerSGD begins
 * (powersgd_start_step) send gradients as they are. */
uint64_t dtp_run_sent_bytes(const struct dtp_run_report *report, enum dtp_collective collective);

/* Whether the times that were measured are of what was predicted: a GPU's of a GPU, which no other rank shares; a
 * host's of its cores, once they were probed. */
bool dtp_run_report_comparable(const struct dtp_run_report *report);
/* Whether ranks shared GPUs, and what is said then. */
bool dtp_run_shares(const struct dtp_run_outcome *outcome);
void dtp_run_say_sharing(const struct dtp_run_outcome *outcome, const struct dtp_page *page);
/* The loss beside that of another run, where one was asked for. */
void dtp_run_say_beside(const struct dtp_loss_beside *beside, double last_loss, const struct dtp_page *page);

/* Of an elastic run: the share of its time that steps took which count; and what was to be expected of as many failures
 * spread evenly, where each costs half of what lies between two snapshots and as long as the first start took. */
double dtp_elastic_goodput(const struct dtp_elastic_outcome *outcome);
double dtp_elastic_expected(const struct dtp_elastic_outcome *outcome);
/* Of one failure: steps that are done again, half of those between two snapshots. */
double dtp_elastic_expected_steps(const struct dtp_elastic_outcome *outcome);
/* Of all steps that count. */
double dtp_elastic_step_s(const struct dtp_elastic_outcome *outcome);
void dtp_elastic_text(const struct dtp_elastic_outcome *outcome, const struct dtp_page *page);

/* What training stands still for at each, predicted: copied over PCIe, or else written to storage. NAN: not of GPUs
 * whose times are compared. And as it was, on average; NAN: there was none. */
double dtp_run_stall_s(const struct dtp_run_report *report, const struct dtp_kept *kept, bool beside);
double dtp_kept_mean_s(const struct dtp_kept *kept);
void dtp_run_stalls_text(const struct dtp_run_report *report, const struct dtp_page *page);

void dtp_run_text(const struct dtp_run_report *report, const struct dtp_page *page);
enum dtp_status dtp_run_json(const struct dtp_run_report *report, FILE *file, struct dtp_faults *faults);

/* A program set: what was predicted of each role beside what was measured. Schema of the JSON: dtplan.roles/1. */
struct dtp_roles_report {
    const char *name; /* of the file */
    const struct dtp_program_set *set;
    const struct dtp_cluster *cluster;
    const struct dtp_timeline *timelines;   /* one a role; NULL: nobody measured these cores, so no time is predicted */
    const uint64_t *arena_bytes;            /* of each role: of its device's memory */
    const struct dtp_run_outcome *measured; /* NULL: it was only simulated */
};

void dtp_roles_text(const struct dtp_roles_report *report, const struct dtp_page *page);

/* The stages of a job's pipeline: each predicted beside measured. Schema of the JSON: dtplan.stages/1. */
struct dtp_stages_report {
    const struct dtp_simulated *simulated;
    const struct dtp_run_outcome *measured;
    const struct dtp_pipeline_stages *predicted, *ran; /* the latter NULL: no step was measured */
    bool comparable;                                   /* as dtp_run_report_comparable */
    const struct dtp_loss_beside *beside;
};
/* What must be the same to the byte: how many ranks' arena, and bytes of one kind that they sent a step, are not what
 * their role's program says; UINT32_MAX: ranks did not say. */
uint32_t dtp_stages_arenas_off(const struct dtp_stages_report *report);
uint32_t dtp_stages_sent_off(const struct dtp_stages_report *report, enum dtp_collective collective);
void dtp_stages_run_text(const struct dtp_stages_report *report, const struct dtp_page *page);
enum dtp_status dtp_stages_run_json(const struct dtp_stages_report *report, FILE *file, struct dtp_faults *faults);
/* A row an operation, role by role; there are timelines. */
void dtp_roles_write_timeline(const struct dtp_roles_report *report, FILE *file);
enum dtp_status dtp_roles_json(const struct dtp_roles_report *report, FILE *file, struct dtp_faults *faults);

#endif
