/* From words to a checked triple of transformer, cluster and plan.
 *
 * One table of keys serves the command line (--micro-batch 4), scenario files (micro_batch = 4, INI by inih) and the
 * backtest's rows, so that a key means the same wherever it is written. Later settings override earlier ones; what
 * depends on others (shape from --params, machine from GPU) is resolved once, at the end. */
#ifndef DTP_SCENARIO_H
#define DTP_SCENARIO_H

#include "machine/catalog.h"
#include "plan/plan.h"

struct dtp_scenario; /* opaque: settings with the place each came from */

/* Of a training where no key says otherwise. GPU hours between failures: Llama 3 paper, 3.3.4: 419 unexpected
 * interruptions in 54 days on 16,384 H100, one in 50,677. Detection: PyTorch gives a collective that hangs up after 10
 * minutes (NCCL watchdog). Restart, assumed: new node, processes, NCCL, compilation. Storage: of one GPU's share of the
 * checkpoint storage; Llama 3 paper, 3.3.1: 2 TB/s sustained for a cluster of 24K GPUs. */
#define DTP_DEFAULT_GPU_MTBF_H 50000
#define DTP_DEFAULT_DETECTION_S 600
#define DTP_DEFAULT_RESTART_S 300
#define DTP_DEFAULT_STORAGE_BYTES_PER_S_PER_GPU 83e6
/* Of elastic runs, both assumed. Rejoin: ten seconds of silence (rank_loss.h), then processes and NCCL anew,
 * of ranks whose nodes are there. Repair: until a node that failed, or another one, takes part again. */
#define DTP_DEFAULT_REJOIN_S 60
#define DTP_DEFAULT_REPAIR_S 14400

/* What the whole training is: for its time, failures and money. */
struct dtp_training {
    double tokens;     /* 0: not given */
    double deadline_s; /* 0: none; so is budget_usd */
    double budget_usd;
    double gpu_mtbf_s; /* mean time between failures of one GPU and its share of everything else */
    double detection_s, restart_s;
    double rejoin_s, repair_s;  /* the same of elastic runs; until what failed is back */
    double storage_bytes_per_s; /* of checkpoints, over all nodes; 0: the default */
};

/* A resolved job, ready for the closed form. */
struct dtp_job {
    struct dtp_transformer transformer;
    struct dtp_cluster cluster;
    struct dtp_plan plan;  /* after dtp_plan_resolve */
    struct dtp_plan asked; /* before it: the solvers change this copy and resolve again, so that what follows by
                              rule (shard_group 0, ...) follows the change too */
    struct dtp_training training;
    uint32_t node_gpus;     /* GPUs a node offers the job: --gpus-per-node, else the machine's; cluster.gpus_per_node
                               is smaller when the job fills only part of one node */
    char shape_note[200];   /* how the shape was chosen when only --params was given, else "" */
    char model_note[400];   /* what of the model is not used, or asked beyond what it states, else "" */
    char cluster_note[256]; /* keys of a network that one node has no use for, else "" */
    char plan_note[512];    /* what was read into the plan's words (zero3 under torch, the runtime of zero2, words that
                               people type for others), else "" */
    bool by_nodes;          /* the number of GPUs was given as nodes */
};

/* The cluster that the settings make, whatever else they say; false where they make none. */
bool dtp_scenario_cluster(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                          struct dtp_cluster *out);
/* The same with its faults; keys of other sections are not read. */
enum dtp_status dtp_scenario_resolve_cluster(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                             struct dtp_cluster *out, struct dtp_faults *faults);
/* Sequences of an optimizer step over all GPUs: micro_batch * accumulate * data-parallel ranks. */
uint64_t dtp_job_batch_sequences(const struct dtp_job *job);

/* One key of the table. */
struct dtp_scenario_key {
    const char *key;     /* "micro_batch"; the flag is --micro-batch */
    const char *section; /* model | cluster | plan | money: section in INI files and in --help */
    const char *value;   /* "N", "NAME", ... or NULL for a switch */
    const char *words;   /* one line of help with its default */
};
const struct dtp_scenario_key *dtp_scenario_keys(size_t *count);
/* The key of that name or of another word for it ('-' and '_' alike), or NULL. */
const struct dtp_scenario_key *dtp_scenario_key_of(const char *name);
/* Another word for a key, or for one of its values: what people type elsewhere. It means the same wherever the key
 * does: as a flag, in a file, in a list. */
struct dtp_scenario_alias {
    const char *key;   /* "micro_batch" */
    const char *word;  /* "batch_size"; or, for a value, "fp16" */
    const char *value; /* NULL: a word for the key itself; else the value it stands for, "" where that depends */
    const char *words; /* what it means */
};
const struct dtp_scenario_alias *dtp_scenario_aliases(size_t *count);
/* Value and help of a key as shown to people, with the words for its values: "none|optimizer|params|nvme|cpu" (NULL for
 * a switch), "...; cpu: params under FSDP, ...". Both return `out`. */
const char *dtp_scenario_key_choices(const struct dtp_scenario_key *key, char *out, size_t bytes);
const char *dtp_scenario_key_words(const struct dtp_scenario_key *key, char *out, size_t bytes);

enum dtp_status dtp_scenario_create(struct dtp_scenario **out, struct dtp_faults *faults);
void dtp_scenario_destroy(struct dtp_scenario *scenario);
/* The same settings, changed apart from now on. Caller destroys *out; NULL after a failure. */
enum dtp_status dtp_scenario_copy(const struct dtp_scenario *scenario, struct dtp_scenario **out,
                                  struct dtp_faults *faults);
/* Sets one key ('-' and '_' alike); an unknown key is a fault that names the nearest known ones, a value that is none
 * of the key's a fault that says what is. NULL sets a switch. Text is copied. */
enum dtp_status dtp_scenario_set(struct dtp_scenario *scenario, const char *key, const char *value, const char *where,
                                 size_t line, struct dtp_faults *faults);
/* As if the key had never been set. */
void dtp_scenario_unset(struct dtp_scenario *scenario, const char *key);
/* From now on a job on cores that nobody measured resolves too: for who runs it, and says no time of it
 * (dtp_cluster_has_times). */
void dtp_scenario_without_times(struct dtp_scenario *scenario);
/* Reads an INI file with the sections [model] [cluster] [plan] [money]; comments start with ';' or '#'. All faults at
 * once; keys that are in order are set even then. Refused: a key twice in one file, in another section than its own or
 * without a value, NUL bytes, lines beyond inih's limit (200 bytes), files beyond 1 MiB or without any key. */
enum dtp_status dtp_scenario_read(struct dtp_scenario *scenario, const char *path, struct dtp_faults *faults);
enum dtp_status dtp_scenario_parse(struct dtp_scenario *scenario, const char *name, const char *text, size_t bytes,
                                   struct dtp_faults *faults);
/* Text a key was last set to, or NULL. Borrowed. */
const char *dtp_scenario_get(const struct dtp_scenario *scenario, const char *key);
/* Where a key was last set, and on which line; NULL where it was not, or nobody said. Borrowed. */
const char *dtp_scenario_place(const struct dtp_scenario *scenario, const char *key, size_t *line);
/* The word that a key was last set by: its own name where it was not. Constant. */
const char *dtp_scenario_word(const struct dtp_scenario *scenario, const char *key);
/* The same as tables write it: numbers in digits ("8k" of seq as 8192), switches as 0 or 1. False when it is not set.
 */
bool dtp_scenario_plain(const struct dtp_scenario *scenario, const char *key, char *out, size_t bytes);
/* Whether somebody reads the key in the plan that the settings ask for, before anything is resolved. */
bool dtp_scenario_reads(const struct dtp_scenario *scenario, const char *key);
/* The strategies that a value of the key strategy names: one, several with commas between, or all. 0 when one of them
 * is none or named twice. */
size_t dtp_scenario_strategies(const char *text, enum dtp_strategy list[DTP_STRATEGY_COUNT]);
/* Resolves everything against the catalogues, checks all, fills `job`. All faults at once, each with the place where
 * its key was set.
 *
 *   model    --model (a preset, or a path: it ends in .json or holds a '/') with dimensions given beside it on top; or
 *            layers, hidden, heads and vocab at least; or --params alone. --params beside a shape must agree with its
 *            count within 2 %.
 *   machine  --machine, else the GPU's usual one. GPU: --gpu, else the machine's, else h100-sxm.
 *   gpus     nodes x gpus_per_node where nodes are given, one machine's when --machine is, else 1. gpus_per_node: the
 *            machine's, at most gpus. Nodes and gpus that contradict each other are a fault.
 *   runtime  torch; deepspeed for zero2, which PyTorch does not have.
 *   seq      2048, or the learned position table where that is shorter.
 *   dtypes   the recipe of --precision as the runtime means it, then each dtype given; a master that is no extra copy
 *            follows param_dtype, and so does what DDP reduces.
 * A scenario that names several strategies has none to resolve, a fault: set one of them first.
 * A switch given as what the runtime never does (accumulate_sync = true under megatron) is a fault. */
enum dtp_status dtp_scenario_resolve(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                     struct dtp_job *job, struct dtp_faults *faults);
/* The same again and again of one scenario by one catalogue, where most often only keys of the plan change in between:
 * model and cluster are kept in `base` while nothing is set that they follow from. Without notes on the plan; with
 * `faults` NULL no words are made of a refusal. For whoever compares many plans and resolves the few it shows as above.
 */
struct dtp_resolved_base; /* opaque */
enum dtp_status dtp_resolved_base_create(struct dtp_resolved_base **out, struct dtp_faults *faults);
void dtp_resolved_base_destroy(struct dtp_resolved_base *base);
enum dtp_status dtp_scenario_resolve_again(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                           struct dtp_resolved_base *base, struct dtp_job *job,
                                           struct dtp_faults *faults);
/* Of a scenario that some keys were refused of: whether the GPU, machine and preset it names exist, so that a misspelt
 * name is reported together with the other faults. Resolving it would report what only follows from them. */
enum dtp_status dtp_scenario_check_names(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                                         struct dtp_faults *faults);

#endif
