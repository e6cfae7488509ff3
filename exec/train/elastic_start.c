#include "train/elastic_start.h"

#include "base/append.h"
#include "base/crc64.h"
#include "ranks/generations.h"
#include "snapshot/store.h"
#include "train/train_events.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static uint64_t step_sequences(const struct dtp_job *job)
{
    return (uint64_t)job->plan.micro_batch * job->plan.accumulate * job->cluster.gpus;
}

static enum dtp_status check_parallel(const struct dtp_job *job, struct dtp_faults *faults)
{
    return job->plan.pp == 1 && job->plan.tp == 1 && job->plan.cp == 1
               ? DTP_OK
               : dtp_fault(
                     faults, DTP_BAD_INPUT, NULL, 0,
                     "--elastic: ranks of a pipeline, or that share a model's layers otherwise, cannot be spared; "
                     "leave out --pp, --tp and --cp, or --elastic");
}

enum dtp_status dtp_elastic_job(struct dtp_scenario *scenario, const struct dtp_catalog *catalog, uint32_t ranks,
                                struct dtp_job *job, struct dtp_faults *faults)
{
    char gpus[16], sequences[24];
    enum dtp_status status = check_parallel(job, faults);
    if (status != DTP_OK || ranks == job->cluster.gpus)
        return status;
    if (job->plan.comm_hook == DTP_COMM_HOOK_POWERSGD)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--elastic: what comm_hook powersgd lost of gradients is of %" PRIu32
                         " ranks, and no other number goes on with it; use --elastic %" PRIu32 ":%" PRIu32
                         " --on-loss wait, or comm_hook fp16 or bf16",
                         job->cluster.gpus, job->cluster.gpus, job->cluster.gpus);
    if (job->plan.precision.fp8_recipe == DTP_FP8_DELAYED)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--elastic: the amaxes that fp8_recipe delayed makes scales of are of %" PRIu32
                         " ranks, and no other number goes on with them; use --elastic %" PRIu32 ":%" PRIu32
                         " --on-loss wait, or precision fp8-tensorwise",
                         job->cluster.gpus, job->cluster.gpus, job->cluster.gpus);
    snprintf(gpus, sizeof gpus, "%" PRIu32, ranks);
    snprintf(sequences, sizeof sequences, "%" PRIu64, step_sequences(job));
    const char *const derived[] = {"accumulate", "global_batch_tokens", "nodes"};
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++)
        dtp_scenario_unset(scenario, derived[i]);
    status = dtp_scenario_set(scenario, "gpus", gpus, "--elastic", 0, faults);
    if (status == DTP_OK)
        status = dtp_scenario_set(scenario, "global_batch", sequences, "--elastic", 0, faults);
    return status == DTP_OK ? dtp_scenario_resolve(scenario, catalog, job, faults) : status;
}

/* ---- the run's memory -------------------------------------------------------------------------------------------- */

/* Launchers' own names for a run, which its restarts share. */
static const char *const run_variables[] = {"DTPLAN_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"};

static const char *run_name(void)
{
    for (size_t i = 0; i < sizeof run_variables / sizeof *run_variables; i++)
        if (getenv(run_variables[i]))
            return getenv(run_variables[i]);
    return "run";
}

static bool root_folder(const struct dtp_settings *settings, char *out, size_t bytes)
{
    int wrote = settings->snapshots ? snprintf(out, bytes, "%s", settings->snapshots)
                                    : snprintf(out, bytes, "/dev/shm/dtplan-%ld-", (long)getuid());
    for (const char *c = run_name(); !settings->snapshots && *c && wrote > 0 && (size_t)wrote + 2 < bytes; c++)
        out[wrote++] = isalnum((unsigned char)*c) ? *c : '-', out[wrote] = '\0';
    return wrote > 0 && (size_t)wrote + 1 < bytes;
}

bool dtp_elastic_folder(const struct dtp_settings *settings, const struct dtp_ranks *ranks, char *out, size_t bytes)
{
    const char *slot = getenv("DTPLAN_SLOT");
    char root[DTP_SNAPSHOT_PATH_BYTES - 64];
    (void)ranks;
    if (!root_folder(settings, root, sizeof root))
        return false;
    int wrote = slot ? snprintf(out, bytes, "%s/slot-%s", root, slot) : snprintf(out, bytes, "%s/memory", root);
    return wrote > 0 && (size_t)wrote < bytes;
}

/* torchrun counts restarts after failures only, and not those after nodes came or went, but names runs apart unless
 * told not to; a Slurm job has a number. Other launchers do not start ranks again. */
bool dtp_elastic_restarted(const struct dtp_settings *settings, const struct dtp_ranks *ranks)
{
    const char *generation = getenv("DTPLAN_GENERATION"), *again = getenv("TORCHELASTIC_RESTART_COUNT");
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    if (settings->resume)
        return true;
    if (generation)
        return atoi(generation) > 0;
    if (strcmp(ranks->launcher, "torchrun") == 0)
        return (again && atoi(again) > 0) || (run && strcmp(run, "none") != 0);
    return strcmp(ranks->launcher, "srun") == 0;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

struct launching {
    const struct dtp_elastic_start *of;
    bool possible[DTP_SLOTS_MAX + 1];
    char root[DTP_SNAPSHOT_PATH_BYTES - 64]; /* of the memories of all slots */
};

static bool possible(void *launching, uint32_t ranks)
{
    return ((const struct launching *)launching)->possible[ranks];
}

/* Memory outlives the rank that wrote it, and that of a slot which stays out is on this machine still: its files go to
 * a slot that takes part and has none of that name. */
static void hand_over(const char *root, uint32_t slot, const struct dtp_generation *g)
{
    char from[DTP_SNAPSHOT_PATH_BYTES], path[DTP_SNAPSHOT_PATH_BYTES + 300], to[DTP_SNAPSHOT_PATH_BYTES + 300];
    snprintf(from, sizeof from, "%s/slot-%" PRIu32, root, slot);
    DIR *files = opendir(from);
    for (const struct dirent *file; files && (file = readdir(files));) {
        bool moved = file->d_name[0] == '.';
        snprintf(path, sizeof path, "%s/%s", from, file->d_name);
        for (uint32_t i = 0; i < g->ranks && !moved; i++) {
            snprintf(to, sizeof to, "%s/slot-%" PRIu32 "/%s", root, g->slots[i], file->d_name);
            moved = access(to, F_OK) != 0 && rename(path, to) == 0;
        }
    }
    if (files)
        closedir(files);
}

static void hand_over_all(const struct launching *l, const struct dtp_generation *g)
{
    for (uint32_t slot = 0; slot < l->of->settings->elastic_max; slot++) {
        bool used = false;
        for (uint32_t i = 0; i < g->ranks; i++)
            used = used || g->slots[i] == slot;
        if (!used && g->number > 0)
            hand_over(l->root, slot, g);
    }
}

static void say(void *launching, const struct dtp_generation *g)
{
    const struct launching *l = launching;
    if (g->ranks == 0)
        fprintf(stderr, "dtplan: %s; fewer than %" PRIu64 " ranks are left, the run waits for %" PRIu64 " s at most\n",
                g->why, l->of->settings->elastic_min, l->of->settings->return_after);
    else if (g->number > 0)
        fprintf(stderr, "dtplan: %s; generation %" PRIu32 " goes on with %" PRIu32 " ranks\n", g->why, g->number,
                g->ranks);
    if (g->ranks == 0)
        return;
    hand_over_all(l, g);
    dtp_event_generation(l->of->events, g);
}

static enum dtp_status try_plans(struct launching *l, struct dtp_faults *faults)
{
    const struct dtp_elastic_start *s = l->of;
    uint32_t most = (uint32_t)s->settings->elastic_max, least = (uint32_t)s->settings->elastic_min, fewer = 0;
    char left_out[256] = "";
    if (most != s->job->cluster.gpus || most > DTP_SLOTS_MAX)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "--elastic: at most %" PRIu32 " ranks, but the plan has %" PRIu32
                         " GPUs; the larger number is that of --gpus, %u at most on one machine",
                         most, s->job->cluster.gpus, DTP_SLOTS_MAX);
    enum dtp_status status = check_parallel(s->job, faults);
    for (uint32_t ranks = least; ranks < most && status == DTP_OK; ranks++) {
        struct dtp_job job = *s->job;
        struct dtp_faults why = {0};
        l->possible[ranks] = dtp_elastic_job(s->scenario, s->catalog, ranks, &job, &why) == DTP_OK;
        fewer += l->possible[ranks];
        if (!l->possible[ranks] && !left_out[0])
            snprintf(left_out, sizeof left_out, "%" PRIu32 " ranks: %.200s", ranks, why.count ? why.text[0] : "");
    }
    l->possible[most] = true;
    if (status == DTP_OK && least < most && fewer == 0 && !s->settings->waits)
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "--elastic: no plan of fewer than %" PRIu32 " ranks has the %" PRIu64
                           " sequences of a step (%s); take another batch, or --on-loss wait",
                           most, step_sequences(s->job), left_out);
    if (status == DTP_OK && left_out[0] && !s->settings->waits)
        fprintf(stderr, "dtplan: --elastic: numbers of ranks that cannot be planned are left out, such as %s\n",
                left_out);
    return status;
}

/* A line started again finds what it left: its name is made of its words, but for those of this very start. */
static void name_run(char *const *argv)
{
    static const char *const of_a_start[] = {"--program", "--op-times", "--events", "--matmul-choices"};
    char text[24], folder[4096] = "";
    uint64_t crc = 0;
    for (; *argv; argv++) {
        bool skip = strcmp(*argv, "--resume") == 0;
        for (size_t i = 0; i < sizeof of_a_start / sizeof *of_a_start; i++)
            if (strcmp(*argv, of_a_start[i]) == 0 && argv[1])
                skip = true, argv++;
        if (!skip)
            crc = dtp_crc64(crc, *argv, strlen(*argv) + 1);
    }
    if (getcwd(folder, sizeof folder))
        crc = dtp_crc64(crc, folder, strlen(folder));
    snprintf(text, sizeof text, "%016" PRIx64, crc);
    setenv("DTPLAN_RUN", text, 1);
}

/* Below `root` all memories of slots, and itself. */
static void forget_all(const char *root)
{
    DIR *slots = opendir(root);
    for (const struct dirent *slot; slots && (slot = readdir(slots));) {
        char path[DTP_SNAPSHOT_PATH_BYTES];
        int wrote = snprintf(path, sizeof path, "%s/%s", root, slot->d_name);
        if (strncmp(slot->d_name, "slot-", 5) == 0 && wrote > 0 && (size_t)wrote < sizeof path)
            dtp_snapshot_forget(path, 0);
    }
    if (slots) {
        unlinkat(dirfd(slots), "owner", 0);
        closedir(slots);
    }
    rmdir(root);
}

/* Two runs do not share a memory: whoever has its lock has it for as long as he lives. */
static int own(const char *root, struct dtp_faults *faults)
{
    char path[DTP_SNAPSHOT_PATH_BYTES];
    mkdir(root, 0700);
    snprintf(path, sizeof path, "%s/owner", root);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0)
        return file;
    bool taken = file >= 0 && errno == EWOULDBLOCK;
    dtp_fault(faults, DTP_ENVIRONMENT, root, 0,
              taken ? "another run keeps its snapshots there; name another folder of memory with --snapshots"
                    : "snapshots cannot be kept there: %s; name another folder of memory with --snapshots",
              strerror(errno));
    if (file >= 0)
        close(file);
    return -1;
}

enum dtp_status dtp_elastic_launch(const struct dtp_elastic_start *start, struct dtp_faults *faults)
{
    const struct dtp_settings *s = start->settings;
    struct launching l = {.of = start};
    enum dtp_status status = try_plans(&l, faults);
    if (status != DTP_OK)
        return status;
    name_run(start->argv);
    if (!root_folder(s, l.root, sizeof l.root))
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--snapshots: too long a name");
    int owner = own(l.root, faults);
    if (owner < 0)
        return DTP_ENVIRONMENT;
    const struct dtp_elastic_launch launch = {.argv = start->argv,
                                              .least = (uint32_t)s->elastic_min,
                                              .most = (uint32_t)s->elastic_max,
                                              .waits = s->waits,
                                              .return_after_s = (double)s->return_after,
                                              .possible = possible,
                                              .say = say,
                                              .context = &l};
    status = dtp_launch_elastic(&launch, faults);
    forget_all(l.root);
    close(owner);
    return status;
}
