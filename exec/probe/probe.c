#include "probe/prober.h"

#include "base/clock.h"
#include "machine/host_machine.h"
#include "machine/measured.h"
#include "machine/measured_least.h"
#include "device/open_device.h"
#include "device/pace.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_S 240.0               /* of one measurement: the slowest take a tenth of that */
#define STEPS_SHARE 0.6                /* of the seconds that a host is measured; then come collectives and copies */
#define TOGETHER_SHARE 0.15            /* for programs that shard */
#define MEMORY_SHARE 0.9               /* of what is free: libraries and NCCL take some */
#define FIRST_PACE_S 0.05              /* of a loop by which all else is said */
#define IDLE_BYTES (UINT64_C(3) << 30) /* a context and its libraries; more is somebody else's */

/* ---- shared by all measurements ---------------------------------------------------------------------------------- */

bool dtp_prober_next(struct dtp_prober *p, const char *words, enum dtp_status *status)
{
    struct dtp_world_sums sums = {.stops = p->of->stop && *p->of->stop};
    if (p->world.control)
        *status = dtp_world_sum(&p->world, &sums, p->faults);
    p->stop = p->stop || sums.stops > 0;
    if (p->stop || *status != DTP_OK)
        return false;
    dtp_world_deadline(&p->world, DEADLINE_S);
    const struct dtp_probe_pass *pass = &p->of->pass; /* of about as many measurements each */
    dtp_probe_say_progress(p->events, pass->index * p->count + p->done++, pass->count * p->count, words);
    return true;
}

enum dtp_status dtp_prober_gather(struct dtp_prober *p, const double *mine, uint32_t count, double *all)
{
    if (p->world.control)
        return dtp_control_gather(p->world.control, mine, count * (uint32_t)sizeof *mine, all, p->faults);
    memcpy(all, mine, count * sizeof *mine);
    return DTP_OK;
}

enum dtp_status dtp_prober_least(struct dtp_prober *p, double *values, uint32_t count)
{
    if (!p->world.control)
        return DTP_OK;
    double *all = malloc(p->ranks * count * sizeof *all);
    if (!all)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_prober_gather(p, values, count, p->first_rank ? all : NULL);
    for (uint32_t r = 1; r < p->ranks && p->first_rank && status == DTP_OK; r++)
        for (uint32_t i = 0; i < count; i++)
            values[i] = fmin(values[i], all[r * count + i]);
    free(all);
    if (status != DTP_OK)
        return status;
    return dtp_control_broadcast(p->world.control, values, count * (uint32_t)sizeof *values, p->faults);
}

double dtp_prober_slowed(struct dtp_prober *p, double seconds)
{
    if (p->device->asynchronous)
        return 1;
    double loop_s = dtp_pace_loop_s(seconds);
    p->least_loop_s = fmin(p->least_loop_s, loop_s);
    return loop_s / p->loop_s;
}

enum dtp_status dtp_prober_add(struct dtp_prober *p, const struct dtp_measured_row *row, const double *samples,
                               uint32_t count)
{
    double *all = malloc(p->ranks * count * sizeof *all);
    if (!all)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_prober_gather(p, samples, count, p->first_rank ? all : NULL);
    for (uint32_t i = 0; i < p->ranks * count && p->first_rank && status == DTP_OK; i++)
        if (isfinite(all[i]))
            status = dtp_prober_keep(p, row, all[i]);
    free(all);
    return status;
}

enum dtp_status dtp_prober_keep(struct dtp_prober *p, const struct dtp_measured_row *row, double seconds)
{
    struct dtp_measured_row timed = *row;
    if (seconds >= dtp_measured_least_s(row, &p->gpu))
        return dtp_probe_rows_add(&p->rows, row, seconds, p->faults);
    timed.number[DTP_MEASURED_seconds] = seconds;
    if (p->left_out++ == 0)
        dtp_measured_too_fast(&timed, &p->gpu, p->left_out_first, sizeof p->left_out_first);
    return DTP_OK;
}

/* The least of what all ranks measured decides, on all of them. */
static enum dtp_status is_possible(struct dtp_prober *p, const struct dtp_measured_row *row, const double *samples,
                                   uint32_t count, bool *out)
{
    double least_s = (double)NAN;
    for (uint32_t i = 0; i < count; i++)
        least_s = fmin(least_s, samples[i]);
    enum dtp_status status = dtp_prober_least(p, &least_s, 1);
    *out = !(least_s < dtp_measured_least_s(row, &p->gpu));
    return status;
}

enum dtp_status dtp_prober_sample(struct dtp_prober *p, const struct dtp_measured_row *row, uint32_t count,
                                  dtp_probe_once once, void *of, double *samples)
{
    enum dtp_status status = DTP_OK;
    bool possible = false;
    for (int tries = 0; tries < DTP_PROBE_TRIES && !possible && status == DTP_OK; tries++) {
        for (uint32_t i = 0; i < count && status == DTP_OK; i++)
            status = once(of, &samples[i]);
        if (status == DTP_OK)
            status = is_possible(p, row, samples, count, &possible);
    }
    return status;
}

enum dtp_status dtp_prober_barrier(struct dtp_prober *p)
{
    return p->world.control ? dtp_control_barrier(p->world.control, p->faults) : DTP_OK;
}

enum dtp_status dtp_prober_device_failed(struct dtp_prober *p, int code, const char *what)
{
    return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "%s: %s", what,
                     p->device->verbs->error_text(p->device, code));
}

int dtp_prober_fill(struct dtp_prober *p, void *values, uint64_t count, uint64_t first, uint32_t tensor,
                    enum dtp_element element)
{
    struct dtp_initialise_args a = {.values = values,
                                    .count = count,
                                    .first_element = first,
                                    .seed = 1,
                                    .tensor = tensor,
                                    .deviation = 1,
                                    .element = element};
    return p->device->kernels.initialise(p->device->kernels.self, &a,
                                         p->device->verbs->stream(p->device, DTP_STREAM_COMPUTE));
}

bool dtp_probe_both_ways_of_sharing(const struct dtp_prober *p)
{
    return p->ranks > 1 && p->device->asynchronous;
}

/* ---- this machine ------------------------------------------------------------------------------------------------ */

static bool typed(const struct dtp_prober *p, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < p->of->key_count; i++)
        if (strncmp(p->of->keys[i], key, length) == 0 && p->of->keys[i][length] == '=')
            return true;
    return false;
}

static const char *device_kind(const struct dtp_prober *p)
{
    return p->device->asynchronous ? "cuda" : "host";
}

/* The row of the catalogue that is measured: named by the line, or by the driver. */
static enum dtp_status find_row(struct dtp_prober *p, const struct dtp_device_memory *memory)
{
    const struct dtp_gpu *gpu = NULL;
    const char *key = typed(p, "gpu") ? "gpu" : typed(p, "machine") ? "machine" : NULL;
    if (key && !p->device->asynchronous)
        return dtp_fault(p->faults, DTP_BAD_INPUT, NULL, 0,
                         "--%s: --device host measures the cores of this machine, which ranks share, and all of what "
                         "they do; leave it out",
                         key);
    if (key)
        return DTP_OK;
    if (p->device->asynchronous)
        gpu = dtp_catalog_gpu_named(p->of->catalog, p->device->name, memory->total_bytes);
    else
        gpu = &p->of->catalog->host_gpu;
    if (!gpu)
        return dtp_fault(p->faults, DTP_BAD_INPUT, NULL, 0,
                         "--gpu KEY is needed: %s is no GPU that the catalogue has a row of; name the one to refine "
                         "(dtplan catalog gpus), or add a row with --catalog",
                         p->device->name);
    snprintf(p->gpu_key, sizeof p->gpu_key, "%s", gpu->key);
    return DTP_OK;
}

/* A machine file is probed further on the kind of GPU that it is of: kernels of one and collectives of another are no
 * machine. */
static enum dtp_status check_known(const struct dtp_prober *p)
{
    const struct dtp_measured_machine *known = p->of->known;
    const char *gpu = known ? dtp_measured_about(known->times, "gpu") : NULL;
    if (!gpu || strcmp(gpu, p->device->name) == 0)
        return DTP_OK;
    return dtp_fault(p->faults, DTP_BAD_INPUT, known->path, 0,
                     "was measured on %s, this is %s: what one does by itself says nothing of the other; leave "
                     "--machine out and measure all",
                     gpu, p->device->name);
}

static void say_machine(const struct dtp_prober *p, const struct dtp_cluster *cluster,
                        const struct dtp_device_memory *memory)
{
    char processor[200];
    dtp_host_processor(processor, sizeof processor);
    dtp_probe_say_start(p->events, p->device, p->ranks, p->nodes);
    dtp_probe_say_about(p->events, "gpu_key", "%s", cluster->gpu.key);
    dtp_probe_say_about(p->events, "machine_key", "%s", cluster->machine.key);
    dtp_probe_say_about(p->events, "gpu", "%s", p->device->name);
    dtp_probe_say_about(p->events, "gpus", "%" PRIu32, p->ranks);
    dtp_probe_say_about(p->events, "gpus_per_node", "%" PRIu32, p->ranks / p->nodes);
    dtp_probe_say_about(p->events, "gpu_memory_bytes", "%" PRIu64, memory->total_bytes);
    dtp_probe_say_about(p->events, "device", "%s", device_kind(p));
    dtp_probe_say_about(p->events, "libraries", "%s", p->device->libraries);
    dtp_probe_say_about(p->events, "host_cpu", "%s", processor);
    dtp_probe_say_about(p->events, "host_cores", "%" PRIu32, dtp_host_cores());
    /* probe_steps.c; rows that are taken over from a file are as that file has them */
    if (p->device->asynchronous && (!p->of->known || dtp_measured_sustained(p->of->known->times)))
        dtp_probe_say_about(p->events, "power", DTP_MEASURED_SUSTAINED);
}

/* Of what was measured DTP_PROBE_TRIES times over and is left out. Only the first rank, which receives, needs memory,
 * so that each of the others meets it; where it has none, it gives up for all (dtp_world_give_up). */
static enum dtp_status warn_of_left_out(struct dtp_prober *p)
{
    char words[480];
    double own = (double)p->left_out, count = 0, *all = p->first_rank ? malloc(p->ranks * sizeof *all) : NULL;
    if (p->first_rank && !all)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_prober_gather(p, &own, 1, all);
    for (uint32_t i = 0; i < p->ranks && p->first_rank && status == DTP_OK; i++)
        count += all[i];
    free(all);
    snprintf(words, sizeof words, "%.0f of all ranks' times, each taken %d times over: " DTP_MEASURED_LEFT_OUT, count,
             DTP_PROBE_TRIES, p->left_out > 0 ? ": first " : ", none of the first rank's",
             p->left_out > 0 ? p->left_out_first : "");
    if (count > 0 && status == DTP_OK)
        dtp_probe_say_warning(p->events, words);
    return status;
}

static void warn_if_busy(const struct dtp_prober *p, const struct dtp_device_memory *memory)
{
    char words[320];
    uint64_t used = memory->total_bytes - memory->free_bytes;
    if (!p->device->asynchronous || used < IDLE_BYTES)
        return;
    snprintf(words, sizeof words,
             "%s has %.1f GiB in use by others: what runs there as well makes every figure of this file too slow",
             p->device->name, (double)used / 0x1p30);
    dtp_probe_say_warning(p->events, words);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What every rank can have. */
static enum dtp_status find_budget(struct dtp_prober *p, const struct dtp_device_memory *memory, uint64_t *out)
{
    double free_bytes = (double)memory->free_bytes;
    enum dtp_status status = dtp_prober_least(p, &free_bytes, 1);
    *out = (uint64_t)(MEMORY_SHARE * free_bytes / (p->device->asynchronous ? 1 : p->ranks));
    return status;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Drops programs that do not fit, and takes one arena for the largest that does. */
static enum dtp_status make_arenas(struct dtp_prober *p, struct dtp_probe_step *steps, size_t *count, uint64_t budget)
{
    size_t kept = 0;
    enum dtp_status status = DTP_OK;
    uint64_t more = larger(dtp_probe_collective_bytes(p), dtp_probe_copy_bytes(p));
    p->host_bytes = dtp_probe_copy_bytes(p);
    for (size_t i = 0; i < *count && status == DTP_OK; i++) {
        uint64_t device_bytes = 0, host_bytes = 0;
        if (p->of->known && steps[i].way != DTP_PROBE_TOGETHER)
            continue;
        status = dtp_probe_program_bytes(&steps[i].job, &device_bytes, &host_bytes, p->faults);
        if (status != DTP_OK || device_bytes > budget)
            continue;
        steps[kept++] = steps[i];
        p->device_bytes = larger(p->device_bytes, device_bytes);
        p->host_bytes = larger(p->host_bytes, host_bytes);
    }
    *count = kept;
    if (status == DTP_OK && kept == 0 && p->of->known && p->ranks == 1)
        return dtp_fault(p->faults, DTP_BAD_INPUT, NULL, 0,
                         "--machine: one GPU has nothing to measure beyond what that file says; take more GPUs, or "
                         "leave it out and measure all");
    if (status == DTP_OK && kept == 0)
        return dtp_fault(p->faults, DTP_NO, NULL, 0,
                         "%.2f GiB of %s are free, too little for the smallest step; end what else runs there",
                         (double)budget / MEMORY_SHARE / 0x1p30, p->device->name);
    p->device_bytes = larger(p->device_bytes, more < budget ? more : budget);
    if (status == DTP_OK)
        status = p->device->verbs->allocate(p->device, p->device_bytes, (void **)&p->device_base, p->faults);
    p->world.choice = (struct dtp_communicator_choice){
        .arena = p->device_base, .arena_bytes = p->device_bytes, .apart = p->of->settings->pretend_nodes};
    return status == DTP_OK
               ? p->device->verbs->allocate_host(p->device, p->host_bytes, (void **)&p->host_base, p->faults)
               : status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* All ranks hear of the latest. */
static bool is_late(struct dtp_prober *p, double begin_s, double share, enum dtp_status *status)
{
    double left_s = (double)p->of->settings->seconds * share / p->of->pass.count - (dtp_now_s() - begin_s);
    if (p->device->asynchronous)
        return false;
    *status = dtp_prober_least(p, &left_s, 1);
    return left_s < 0;
}

static enum dtp_status measure_steps(struct dtp_prober *p, const struct dtp_probe_step *steps, size_t count,
                                     bool together)
{
    enum dtp_status status = DTP_OK;
    double begin_s = dtp_now_s();
    for (size_t i = 0; i < count && status == DTP_OK; i++) {
        if ((steps[i].way == DTP_PROBE_TOGETHER) != together)
            continue;
        if (steps[i].may_wait && is_late(p, begin_s, together ? TOGETHER_SHARE : STEPS_SHARE, &status)) {
            p->done += 1;
            continue;
        }
        if (!dtp_prober_next(p, steps[i].words, &status))
            break;
        /* What runs beside each other is a question to a GPU; of a host it is a step program like others. */
        status =
            together && p->device->asynchronous ? dtp_probe_step_together(p, &steps[i]) : dtp_probe_step(p, &steps[i]);
    }
    return status;
}

/* All ranks have stopped at the same place. */
static enum dtp_status say_stopped(const struct dtp_prober *p)
{
    return p->first_rank ? dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0,
                                     "stopped after %" PRIu64 " of %" PRIu64 " measurements", p->done, p->count)
                         : DTP_ENVIRONMENT;
}

static bool is_last_pass(const struct dtp_prober *p)
{
    return p->of->pass.index + 1 == p->of->pass.count;
}

static enum dtp_status measure(struct dtp_prober *p, const struct dtp_probe_step *steps, size_t count)
{
    /* nodes that share one say nothing of a node's copies */
    bool own_host = !p->of->settings->pretend_nodes || !p->device->asynchronous;
    bool whole = is_last_pass(p);
    p->count = count + (whole ? dtp_probe_collective_count(p) : 0);
    p->count += own_host ? dtp_probe_copy_count(p) + dtp_probe_host_count(p) : 0;
    enum dtp_status status = measure_steps(p, steps, count, false);
    if (status == DTP_OK && !p->stop && whole)
        status = dtp_probe_collectives(p);
    if (status == DTP_OK && !p->stop)
        status = measure_steps(p, steps, count, true);
    if (status == DTP_OK && !p->stop && own_host)
        status = dtp_probe_copies(p);
    if (status == DTP_OK && !p->stop && own_host)
        status = dtp_probe_host(p);
    return status == DTP_OK && p->stop ? say_stopped(p) : status;
}

static enum dtp_status set_up(struct dtp_prober *p, struct dtp_probe_step **steps, size_t *count)
{
    struct dtp_device_memory memory;
    uint64_t budget = 0;
    enum dtp_status status = dtp_take_cores(p->of->settings, &p->world, p->faults);
    if (status == DTP_OK)
        status = dtp_open_device(p->of->settings, &p->of->ranks, NULL, &p->device, p->faults);
    if (status == DTP_OK)
        status = p->device->verbs->memory(p->device, &memory, p->faults);
    if (status == DTP_OK)
        status = find_row(p, &memory);
    if (status == DTP_OK)
        status = check_known(p);
    if (status == DTP_OK)
        status = dtp_probe_table(p, steps, count);
    status = dtp_world_begin_together(&p->world, status, p->faults);
    if (status != DTP_OK)
        return status;
    p->gpu = (*steps)[0].job.cluster.gpu;
    if (p->first_rank && is_last_pass(p)) {
        say_machine(p, &(*steps)[0].job.cluster, &memory);
        warn_if_busy(p, &memory);
    }
    if (!p->device->asynchronous) {
        p->loop_s = p->least_loop_s = dtp_pace_loop_s(FIRST_PACE_S);
        status = dtp_prober_least(p, &p->loop_s, 1);
    }
    if (status == DTP_OK)
        status = find_budget(p, &memory, &budget);
    if (status == DTP_OK)
        status = make_arenas(p, *steps, count, budget);
    return dtp_world_begin_together(&p->world, status, p->faults);
}

static void tear_down(struct dtp_prober *p)
{
    if (p->device_base)
        p->device->verbs->release(p->device, p->device_base);
    if (p->host_base)
        p->device->verbs->release_host(p->device, p->host_base);
    if (p->device)
        p->device->verbs->destroy(p->device);
    dtp_world_leave(&p->world);
    dtp_probe_rows_release(&p->rows);
}

enum dtp_status dtp_probe(const struct dtp_probe_job *job, struct dtp_faults *faults)
{
    struct dtp_prober p = {.of = job, .faults = faults, .first_rank = job->ranks.rank == 0, .ranks = job->ranks.world};
    struct dtp_probe_step *steps = NULL;
    size_t count = 0;
    uint32_t local = job->ranks.local_world;
    p.nodes = local > 0 && p.ranks % local == 0 ? p.ranks / local : 1;
    p.events = p.first_rank ? job->events : NULL;
    enum dtp_status status = dtp_world_join(&job->ranks, NULL, &p.world, faults);
    if (status == DTP_OK)
        status = set_up(&p, &steps, &count);
    if (status == DTP_OK)
        status = measure(&p, steps, count);
    if (status == DTP_OK)
        status = warn_of_left_out(&p);
    if (status == DTP_OK)
        dtp_probe_rows_say(&p.rows, p.events);
    if (status == DTP_OK && !p.device->asynchronous)
        dtp_probe_say_pace(p.events, p.loop_s, p.least_loop_s);
    if (is_last_pass(&p))
        dtp_probe_say_end(p.events, p.stop);
    if (status != DTP_OK && !p.stop)
        dtp_world_give_up(&p.world, status, faults);
    free(steps);
    tear_down(&p);
    return status;
}
