/* Every figure that is predicted of a job, by name: what frozen jobs are held to.
 *
 * Bytes and counts are exact, seconds and rates have seven digits. What is too much to keep one by one, memory by phase
 * and owner, is a digest, and so is the text of the step program. */
#ifndef TEST_FROZEN_FIGURES_H
#define TEST_FROZEN_FIGURES_H

#include "base/crc64.h"
#include "job/estimate.h"
#include "decide/money.h"
#include "decide/scaling.h"
#include "decide/training_cost.h"
#include "program/program_text.h"
#include "sim/simulated.h"

#include "lib/frozen_jobs.h"

#include <inttypes.h>

#define FROZEN_MAX_FIGURES 128
#define FROZEN_OP_LIMIT 12000u /* longer programs say nothing that shorter ones do not */

struct frozen_figure {
    char name[64];
    bool real;
    char value[24]; /* "" for 0 */
};

struct frozen_figures {
    size_t count;
    struct frozen_figure figure[FROZEN_MAX_FIGURES];
};

static inline struct frozen_figure *frozen_add(struct frozen_figures *f, const char *group, const char *name)
{
    struct frozen_figure *figure = &f->figure[f->count++];
    assert_true(f->count <= FROZEN_MAX_FIGURES);
    snprintf(figure->name, sizeof figure->name, "%s%s", group, name);
    figure->real = false;
    figure->value[0] = '\0';
    return figure;
}

static inline void frozen_whole(struct frozen_figures *f, const char *group, const char *name, uint64_t value)
{
    struct frozen_figure *figure = frozen_add(f, group, name);
    if (value)
        snprintf(figure->value, sizeof figure->value, "%" PRIu64, value);
}

static inline void frozen_digest(struct frozen_figures *f, const char *group, const char *name, uint64_t value)
{
    struct frozen_figure *figure = frozen_add(f, group, name);
    if (value)
        snprintf(figure->value, sizeof figure->value, "%" PRIx64, value);
}

static inline void frozen_real(struct frozen_figures *f, const char *group, const char *name, double value)
{
    struct frozen_figure *figure = frozen_add(f, group, name);
    figure->real = true;
    if (value < 0 || value > 0 || value != value)
        snprintf(figure->value, sizeof figure->value, "%.7g", value);
}

/* ---- memory, traffic, time --------------------------------------------------------------------------------------- */

static inline void frozen_memory(struct frozen_figures *f, const char *group, const struct dtp_memory *m)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"allocated_bytes", m->allocated_peak_bytes},
                {"reserved_bytes", m->reserved_peak_bytes},
                {"device_bytes", m->device_peak_bytes},
                {"params_bytes", m->params_bytes},
                {"grads_bytes", m->grads_bytes},
                {"optimizer_bytes", m->optimizer_bytes},
                {"activations_bytes", m->activations_bytes},
                {"temporary_bytes", m->temporary_bytes},
                {"peak_phase", m->peak_phase},
                {"verdict", m->verdict}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        frozen_whole(f, group, rows[i].name, rows[i].value);
    uint64_t all = dtp_crc64(0, m->phase_bytes, sizeof m->phase_bytes);
    frozen_digest(f, group, "phases", m->allocated_peak_bytes ? all & UINT32_MAX : 0);
}

/* What a simulation takes over from the estimate. */
static inline void frozen_other_memory(struct frozen_figures *f, const char *group, const struct dtp_memory *m)
{
    frozen_whole(f, group, "after_init_bytes", m->after_init_bytes);
    frozen_whole(f, group, "context_bytes", m->context_bytes);
    frozen_whole(f, group, "nccl_bytes", m->nccl_bytes);
    frozen_whole(f, group, "host_bytes", m->host_bytes);
    frozen_whole(f, group, "nvme_bytes", m->nvme_bytes);
}

static inline void frozen_communication(struct frozen_figures *f, const char *group, const struct dtp_communication *c)
{
    char name[40];
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        snprintf(name, sizeof name, "%s_bytes", dtp_collective_text((enum dtp_collective)i));
        frozen_whole(f, group, name, c->bytes[i]);
        snprintf(name, sizeof name, "%s_count", dtp_collective_text((enum dtp_collective)i));
        frozen_whole(f, group, name, c->count[i]);
    }
    frozen_whole(f, group, "narrow_gather_bytes", c->narrow_gather_bytes);
    frozen_whole(f, group, "narrow_exchange_bytes", c->narrow_exchange_bytes);
    frozen_whole(f, group, "gather_scales_bytes", c->gather_scales.bytes);
    frozen_whole(f, group, "exchange_scales_bytes", c->exchange_scales.bytes);
    frozen_whole(f, group, "host_to_device_bytes", c->host_to_device_bytes);
    frozen_whole(f, group, "device_to_host_bytes", c->device_to_host_bytes);
    frozen_whole(f, group, "network_bytes", c->network_bytes);
}

static inline void frozen_time(struct frozen_figures *f, const char *group, const struct dtp_time *t)
{
    const struct {
        const char *name;
        double value;
    } rows[] = {{"step_s", t->step_s},
                {"perfect_overlap_s", t->step_perfect_overlap_s},
                {"no_overlap_s", t->step_no_overlap_s},
                {"matmul_s", t->matmul_s},
                {"attention_s", t->attention_s},
                {"memory_bound_s", t->memory_bound_s},
                {"loss_s", t->loss_s},
                {"recompute_s", t->recompute_s},
                {"compute_s", t->compute_s},
                {"optimizer_s", t->optimizer_s},
                {"exposed_communication_s", t->exposed_communication_s},
                {"exposed_offload_s", t->exposed_offload_s},
                {"bubble_s", t->bubble_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        frozen_real(f, group, rows[i].name, rows[i].value);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s_s", dtp_collective_text((enum dtp_collective)i));
        frozen_real(f, group, name, t->collective_s[i]);
    }
}

/* ---- who predicts ------------------------------------------------------------------------------------------------ */

static inline void frozen_money(struct frozen_figures *f, const struct dtp_job *job,
                                const struct dtp_catalog *catalogue, const struct dtp_prediction *closed)
{
    struct dtp_scaling scaling = {0};
    struct dtp_money money = {0};
    struct dtp_training_cost training = {0};
    if (closed->time.step_s > 0) {
        dtp_scaling_of(job, closed, &scaling);
        dtp_money_of(job, &closed->throughput, dtp_catalog_price(catalogue, job->cluster.gpu.key), &money);
        dtp_training_cost_of(job, &closed->throughput, 0, &money, false, &training);
    }
    frozen_real(f, "plan.", "weak_scaling", scaling.efficiency);
    frozen_real(f, "plan.", "strong_scaling", scaling.strong_efficiency);
    frozen_real(f, "plan.", "usd_per_1e9_tokens", money.billion_tokens_usd[DTP_PRICE_TYPICAL]);
    frozen_real(f, "plan.", "training_s", training.goodput.expected_s);
    frozen_real(f, "plan.", "training_usd", training.usd[DTP_PRICE_TYPICAL]);
    frozen_real(f, "plan.", "training_j", training.site_energy_j);
    frozen_real(f, "plan.", "checkpoint_bytes", training.checkpoint_bytes);
}

static inline void frozen_closed(struct frozen_figures *f, const struct dtp_job *job, bool resolved,
                                 const struct dtp_catalog *catalogue)
{
    struct dtp_prediction closed;
    memset(&closed, 0, sizeof closed);
    if (resolved)
        assert_int_equal(dtp_estimate(&job->transformer, &job->cluster, &job->plan, &closed, NULL), DTP_OK);
    frozen_memory(f, "closed.", &closed.memory);
    frozen_other_memory(f, "closed.", &closed.memory);
    frozen_communication(f, "closed.", &closed.communication);
    frozen_time(f, "closed.", &closed.time);
    frozen_real(f, "closed.", "host_launch_s", closed.time.host_launch_s);
    frozen_real(f, "closed.", "offload_s", closed.time.offload_s);
    frozen_real(f, "closed.", "tokens_per_s", closed.throughput.tokens_per_s);
    frozen_real(f, "closed.", "mfu", closed.throughput.mfu);
    frozen_real(f, "closed.", "hfu", closed.throughput.hfu);
    frozen_money(f, job, catalogue, &closed);
}

static inline uint64_t frozen_text_digest(const struct dtp_program *program)
{
    uint64_t digest;
    assert_int_equal(dtp_program_digest(program, &digest, NULL), DTP_OK);
    return digest;
}

static inline void frozen_simulated(struct frozen_figures *f, const struct dtp_job *job, bool resolved)
{
    static struct dtp_faults faults;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated s;
    memset(&s, 0, sizeof s);
    memset(&faults, 0, sizeof faults);
    options.op_limit = FROZEN_OP_LIMIT;
    enum dtp_status status = resolved ? dtp_simulated_create(job, &options, &s, &faults) : DTP_BAD_INPUT;
    for (size_t i = 0; resolved && i < faults.count && i < DTP_FAULTS_KEPT; i++) /* no plan that resolves may */
        assert_null(strstr(faults.text[i], "deadlock"));
    frozen_whole(f, "simulated.", "status", status);
    frozen_whole(f, "program.", "operations", s.timeline.op_count);
    frozen_digest(f, "program.", "text", s.program ? frozen_text_digest(s.program) : 0);
    frozen_whole(f, "program.", "arena_bytes", s.placement.arena_bytes);
    frozen_memory(f, "simulated.", &s.prediction.memory);
    frozen_time(f, "simulated.", &s.prediction.time);
    frozen_real(f, "simulated.", "host_bound_s", s.timeline.host_bound_s);
    frozen_real(f, "simulated.", "matmul_speedup", s.timeline.matmul_speedup);
    frozen_real(f, "simulated.", "tokens_per_s", s.prediction.throughput.tokens_per_s);
    if (s.program)
        dtp_simulated_release(&s);
}

/* All figures of a frozen job, the same names in the same order for each. A job that is refused has its status and
 * nothing else. */
static inline void frozen_predict(const struct frozen_job *frozen, const struct dtp_catalog *catalogue,
                                  struct dtp_job *job, struct frozen_figures *out)
{
    static struct dtp_faults faults;
    char words[4096];
    memset(&faults, 0, sizeof faults);
    out->count = 0;
    frozen_words(frozen, words, sizeof words);
    frozen_digest(out, "", "words", dtp_crc64(0, words, strlen(words)) & UINT32_MAX);
    enum dtp_status status = frozen_resolve(frozen, catalogue, job, &faults);
    frozen_whole(out, "", "status", status);
    frozen_closed(out, job, status == DTP_OK, catalogue);
    frozen_simulated(out, job, status == DTP_OK);
}

#endif
