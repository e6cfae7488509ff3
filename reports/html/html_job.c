/* The page on one job: decision and breakdowns. */
#include "html/html.h"
#include "html/html_report.h"
#include "base/append.h"
#include "base/number.h"
#include "html/svg_step.h"
#include "record/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- decision ---------------------------------------------------------------------------------------------------- */

static void verdict_sentence(const struct dtp_memory *m, FILE *file)
{
    static const char *const starts[] = {
        [DTP_VERDICT_FITS] = "It fits", [DTP_VERDICT_TIGHT] = "It is tight", [DTP_VERDICT_OOM] = "It does not fit"};
    char words[128];
    dtp_memory_words(m, words, sizeof words);
    fprintf(file, "<p class=\"verdict %s\">%s: %.1f of %.1f GiB on each GPU, ", dtp_verdict_text(m->verdict),
            starts[m->verdict], (double)m->device_peak_bytes / 0x1p30, (double)m->capacity_bytes / 0x1p30);
    dtp_html_text(file, words);
    fputs(".</p>\n", file);
}

static void limits_sentence(const struct dtp_training_cost *t, FILE *file)
{
    if (t->known && (t->late || t->over_budget || t->goodput.hopeless))
        fprintf(file, "<p class=\"verdict oom\">The training is %s%s%s.</p>\n",
                t->late || t->goodput.hopeless ? "later than the deadline" : "",
                (t->late || t->goodput.hopeless) && t->over_budget ? " and " : "",
                t->over_budget ? "over the budget" : "");
}

static void card(FILE *file, const char *figure, const char *words)
{
    dtp_html_format(file, "<li><b>%s</b> <span>%s</span></li>\n", figure, words);
}

static void throughput_card(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_throughput *t = &job->report->prediction.throughput;
    char figure[64], low[32], high[32], words[200];
    dtp_page_figure(t->tokens_per_s, figure, sizeof figure);
    strcat(figure, " tokens/s");
    if (job->like_runs && job->like_runs->count) {
        snprintf(words, sizeof words, "%s to %s if it is as far off as formulas are in 80 of 100 like runs",
                 dtp_page_figure(t->tokens_per_s * job->like_runs->low_ratio, low, sizeof low),
                 dtp_page_figure(t->tokens_per_s * job->like_runs->high_ratio, high, sizeof high));
        card(file, figure, words);
    } else {
        card(file, figure, "of the whole job");
    }
}

static void duration_card(const struct dtp_report *r, FILE *file)
{
    const struct dtp_training_cost *t = &r->training;
    char figure[64], quantile[64], words[200];
    if (!t->known) {
        card(file, dtp_number_format_duration(1e12 / r->prediction.throughput.tokens_per_s, figure, sizeof figure),
             "for 10^12 tokens, nothing failing");
    } else if (t->goodput.hopeless) {
        card(file, "never", "GPUs fail faster than the job gets on");
    } else {
        snprintf(words, sizeof words, "for all tokens, with failures and checkpoints; below %s in 95 of 100 runs",
                 dtp_number_format_duration(t->trials.quantile_s, quantile, sizeof quantile));
        card(file, dtp_number_format_duration(t->goodput.expected_s, figure, sizeof figure), words);
    }
}

static void cards(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_report *r = job->report;
    char figure[64], words[200], low[32], high[32];
    fputs("<ul class=\"cards\">\n", file);
    snprintf(figure, sizeof figure, "%.1f GiB", (double)r->prediction.memory.device_peak_bytes / 0x1p30);
    snprintf(words, sizeof words, "device memory at the peak, %.0f %% of the card",
             100.0 * (double)r->prediction.memory.device_peak_bytes / (double)r->prediction.memory.capacity_bytes);
    card(file, figure, words);
    throughput_card(job, file);
    duration_card(r, file);
    if (r->training.known && !r->training.goodput.hopeless && r->money.known) {
        snprintf(figure, sizeof figure, "$%s", dtp_page_figure(r->training.usd[DTP_PRICE_TYPICAL], low, sizeof low));
        snprintf(words, sizeof words, "for the training ($%s to $%s by offer), $%s an hour",
                 dtp_page_figure(r->training.usd[DTP_PRICE_LOW], low, sizeof low),
                 dtp_page_figure(r->training.usd[DTP_PRICE_HIGH], high, sizeof high),
                 dtp_page_figure(r->money.job_hour_usd[DTP_PRICE_TYPICAL], (char[32]){0}, 32));
        card(file, figure, words);
    } else if (r->money.known) {
        snprintf(figure, sizeof figure, "$%s",
                 dtp_page_figure(r->money.billion_tokens_usd[DTP_PRICE_TYPICAL], low, sizeof low));
        snprintf(words, sizeof words, "for 10^9 tokens (%s to %s by offer), $%s an hour",
                 dtp_page_figure(r->money.billion_tokens_usd[DTP_PRICE_LOW], low, sizeof low),
                 dtp_page_figure(r->money.billion_tokens_usd[DTP_PRICE_HIGH], high, sizeof high),
                 dtp_page_figure(r->money.job_hour_usd[DTP_PRICE_TYPICAL], (char[32]){0}, 32));
        card(file, figure, words);
    } else {
        card(file, "no price", "known for this GPU; give one with --price");
    }
    snprintf(figure, sizeof figure, "%.1f %% MFU", 100 * r->prediction.throughput.mfu);
    snprintf(words, sizeof words, "model FLOPs over the peak; with recomputation %.1f %%",
             100 * r->prediction.throughput.hfu);
    card(file, figure, words);
    fputs("</ul>\n", file);
}

/* ---- what can go wrong ------------------------------------------------------------------------------------------- */

static void memory_risk(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_memory *m = &job->report->prediction.memory;
    double spare_pct = 100 * ((double)m->capacity_bytes / (double)m->device_peak_bytes - 1);
    char spare[64] = "there is no room for more";
    if (spare_pct >= 0.5)
        snprintf(spare, sizeof spare, "there is room for %.0f %% more", spare_pct);
    if (!job->like_runs || job->like_runs->memory_count == 0) {
        fprintf(file, "<li>Memory: no measured run like this one says how far off the prediction may be; %s.</li>\n",
                spare);
        return;
    }
    double largest = job->like_runs->memory_largest_under_pct;
    fprintf(file,
            "<li>Memory: of %zu measured runs %s the one most above its prediction took %.0f %% more (median error "
            "%.1f %%); here %s%s.</li>\n",
            job->like_runs->memory_count, dtp_likeness_words(job->like_runs->memory_likeness), largest,
            job->like_runs->memory_median_abs_pct, spare, spare_pct < largest ? ", which is less" : "");
}

static void failure_risk(const struct dtp_report *r, FILE *file)
{
    const struct dtp_training_cost *t = &r->training;
    char count[32], every[64];
    if (!t->known || t->goodput.hopeless)
        return;
    fprintf(file,
            "<li>Failures: %s expected in the training, one every %s; they and the checkpoints cost %.1f %% of its "
            "time.</li>\n",
            dtp_page_figure(t->goodput.failures_count, count, sizeof count),
            dtp_number_format_duration(t->inputs.mtbf_s, every, sizeof every), 100 * (1 - t->goodput.fraction));
    if (t->batch_tokens > t->critical_batch_tokens)
        fprintf(file,
                "<li>Batch: %.3g tokens a step are more than the %.3g beyond which a larger batch saves few steps (an "
                "order of magnitude, Kaplan et al. 2020).</li>\n",
                t->batch_tokens, t->critical_batch_tokens);
}

static void time_risks(const struct dtp_report *r, FILE *file)
{
    const struct dtp_time *t = &r->prediction.time;
    double exposed = 100 * t->exposed_communication_s / t->step_s, offload = 100 * t->exposed_offload_s / t->step_s;
    if (exposed >= 10)
        fprintf(
            file,
            "<li>Communication: %.0f %% of a step waits for it. With everything overlapped a step takes %.3g s, with "
            "nothing overlapped %.3g s (estimate %.3g s): a slower network than stated costs most here.</li>\n",
            exposed, t->step_perfect_overlap_s, t->step_no_overlap_s, t->step_s);
    if (offload >= 10)
        fprintf(file,
                "<li>Offload: %.0f %% of a step waits for copies to the host and work there, which depends on the "
                "host\u2019s memory and cores.</li>\n",
                offload);
    if (t->host_launch_s >= t->compute_s * (1 - 1e-9))
        fputs("<li>Launch bound: the host cannot issue kernels as fast as the GPU finishes them; a slower CPU makes "
              "each step longer.</li>\n",
              file);
    if (r->scaling.efficiency < 0.8)
        fprintf(file, "<li>Scaling: each GPU does %.0f %% of what it does in a job of %u GPU%s.</li>\n",
                100 * r->scaling.efficiency, r->scaling.reference_gpus, dtp_plural(r->scaling.reference_gpus));
    if (r->money.known && !r->money.given)
        fprintf(file, "<li>Price: offers of %s go from $%.2f to $%.2f a GPU-hour.</li>\n", r->money.date,
                r->money.gpu_hour_usd[DTP_PRICE_LOW], r->money.gpu_hour_usd[DTP_PRICE_HIGH]);
}

/* Figures of the catalogue that nobody measured or published. */
static void assumed_risk(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_cluster *c = &job->report->job.cluster;
    bool any = false;
    for (size_t i = 0; i < job->catalog->provenance_count; i++) {
        const struct dtp_provenance *p = &job->catalog->provenance[i];
        bool ours = strcmp(p->key, c->gpu.key) == 0 || strcmp(p->key, c->machine.key) == 0;
        if (!ours || strcmp(p->kind, "assumed") != 0)
            continue;
        fputs(any ? ", " : "<li>Assumed, neither measured nor published: ", file);
        dtp_html_format(file, "%s of %s", p->quantity, p->key);
        any = true;
    }
    if (any)
        fputs(".</li>\n", file);
}

static void advice(const struct dtp_report *r, FILE *file)
{
    static const char *const words[] = {
        [DTP_ADVICE_NONE] = "No single change makes it faster and still fits.",
        [DTP_ADVICE_FASTER] = "The one change that helps most:",
        [DTP_ADVICE_MAKES_FIT] = "The change with which it fits and is fastest:",
        [DTP_ADVICE_MORE_GPUS] = "No change on these GPUs makes it fit; more of them do:",
        [DTP_ADVICE_HOPELESS] = "Neither a change nor more GPUs of this kind make it fit.",
    };
    dtp_html_format(file, "<p>%s", words[r->advice.kind]);
    if (r->advice.count > 0) {
        const struct dtp_change *change = &r->advice.changes[0];
        char gain[32];
        snprintf(gain, sizeof gain, "%+.0f %%", 100 * change->gain);
        dtp_html_format(file, " <code>%s</code>", change->flags);
        if (r->advice.kind == DTP_ADVICE_FASTER)
            dtp_html_format(file, " (%s tokens/s%s%s)", gain, change->note[0] ? "; " : "", change->note);
        fputs(".", file);
    }
    fputs("</p>\n", file);
}

void dtp_html_decision(const struct dtp_html_job *job, FILE *file)
{
    dtp_html_section(file, "decision", "Decision");
    verdict_sentence(&job->report->prediction.memory, file);
    limits_sentence(&job->report->training, file);
    cards(job, file);
    advice(job->report, file);
    fprintf(file,
            "<p class=\"soft\">By %s, as <code>dtplan plan</code> has it; <a href=\"#alternatives\">alternatives</a> "
            "and changes are compared by formulas.</p>\n",
            job->report->simulated ? "<a href=\"#simulated\">a simulation of the step</a>" : "formulas");
    fputs("<h3>What can go wrong</h3>\n<ul>\n", file);
    memory_risk(job, file);
    time_risks(job->report, file);
    failure_risk(job->report, file);
    assumed_risk(job, file);
    fputs(job->report->training.known ? "<li>Not in the figures: reading data and evaluation.</li>\n</ul>\n"
                                      : "<li>Not in the figures: failures, restarts and checkpoints (give --tokens), "
                                        "reading data, evaluation.</li>\n</ul>\n",
          file);
    dtp_html_section_end(file);
}

/* ---- breakdowns -------------------------------------------------------------------------------------------------- */

/* Lines of "label  words", `indent` columns in, with words that go on further in: a list of labels and words. Lines
 * further out are headings, which the page has its own of. Spoils `text`. */
static void write_lines(char *text, size_t indent, FILE *file)
{
    bool open = false;
    fputs("<dl>", file);
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        char *words = line + strspn(line, " "), *gap = strstr(words, "  ");
        if ((size_t)(words - line) < indent)
            continue;
        if ((size_t)(words - line) == indent && gap) {
            *gap = '\0';
            fputs(open ? "</dd>\n" : "\n", file);
            dtp_html_format(file, "<dt>%s</dt><dd>", words);
            words = gap + 1 + strspn(gap + 1, " ");
            open = true;
        }
        if (open)
            dtp_html_format(file, "%s ", words);
    }
    fputs(open ? "</dd></dl>\n" : "</dl>\n", file);
}

static void training_section(const struct dtp_html_job *job, FILE *file)
{
    char *text = NULL;
    size_t bytes = 0;
    struct dtp_page page = {.file = open_memstream(&text, &bytes), .utf8 = true, .columns = DTP_PAGE_PROSE_COLUMNS};
    if (job->report->training.known && page.file) {
        dtp_html_section(file, "training", "The training");
        dtp_training_text(job->report, &page);
        fflush(page.file);
        write_lines(text, 2, file);
        dtp_html_section_end(file);
    }
    if (page.file)
        fclose(page.file);
    free(text);
}

static void plan_section(const struct dtp_html_job *job, FILE *file)
{
    char *text = NULL;
    size_t bytes = 0;
    struct dtp_page page = {.file = open_memstream(&text, &bytes), .utf8 = true, .columns = DTP_PAGE_PROSE_COLUMNS};
    dtp_html_section(file, "plan", "The plan");
    if (page.file) {
        dtp_report_head(&job->report->job, DTP_HEAD_PLAN, &page);
        fclose(page.file);
    }
    write_lines(text, 0, file);
    free(text);
    dtp_html_section_end(file);
}

static void memory_table(const struct dtp_memory *m, FILE *file)
{
    static const char *const names[DTP_PHASE_COUNT + 1] = {"Owner",           ">End of forward", ">Loss",
                                                           ">Early backward", ">Late backward",  ">Optimizer"};
    dtp_html_table(file, "memory-table",
                   "Allocated by owner at five instants of a step, GiB (2^30 bytes) on the fullest GPU", names,
                   DTP_PHASE_COUNT + 1, false);
    for (int owner = 0; owner <= DTP_OWNER_COUNT; owner++) {
        uint64_t largest = owner == DTP_OWNER_COUNT;
        for (int phase = 0; phase < DTP_PHASE_COUNT && owner < DTP_OWNER_COUNT; phase++)
            largest |= m->phase_bytes[phase][owner];
        if (!largest)
            continue;
        dtp_html_row(file);
        dtp_html_head_cell(file, owner == DTP_OWNER_COUNT ? "all" : dtp_owner_words((enum dtp_owner)owner));
        for (int phase = 0; phase < DTP_PHASE_COUNT; phase++) {
            uint64_t held = owner == DTP_OWNER_COUNT ? m->phase_total_bytes[phase] : m->phase_bytes[phase][owner];
            dtp_html_figure_cell(file, (double)held, "%.2f", (double)held / 0x1p30);
        }
    }
    dtp_html_table_end(file);
}

static void memory_section(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_memory *m = &job->report->prediction.memory;
    dtp_html_section(file, "memory", "Memory of each GPU");
    dtp_html_chart(DTP_CHART_STRATEGIES, job->plan, "memory-figures", file);
    fprintf(file,
            "<p>Tensors take %.2f GiB at the peak (%s), the runtime\u2019s allocator reserves %.2f GiB, and with CUDA "
            "context and NCCL the driver shows %.2f of %.2f GiB.",
            (double)m->allocated_peak_bytes / 0x1p30, dtp_phase_words(m->peak_phase),
            (double)m->reserved_peak_bytes / 0x1p30, (double)m->device_peak_bytes / 0x1p30,
            (double)m->capacity_bytes / 0x1p30);
    if (m->host_bytes || m->nvme_bytes)
        fprintf(file, " Each node also holds %.1f GiB in host memory and %.1f GiB on NVMe.",
                (double)m->host_bytes / 0x1p30, (double)m->nvme_bytes / 0x1p30);
    fputs("</p>\n", file);
    memory_table(m, file);
    dtp_html_section_end(file);
}

static void communication_section(const struct dtp_html_job *job, FILE *file)
{
    static const char *const names[] = {"Collective", ">Sent, GB", ">Operations", ">Alone, ms"};
    const struct dtp_communication *c = &job->report->prediction.communication;
    dtp_html_section(file, "communication", "Communication");
    if (c->total_bytes == 0 && c->host_to_device_bytes == 0 && c->device_to_host_bytes == 0) {
        fputs("<p>None: no GPU sends anything.</p>\n", file);
        dtp_html_section_end(file);
        return;
    }
    fprintf(file,
            "<p>Each GPU sends %.2f GB (10^9 bytes) per optimizer step, %.2f inside its node and %.2f over the "
            "network; host copies %.2f GB up and %.2f down.</p>\n",
            (double)c->total_bytes / 1e9, (double)c->link_bytes / 1e9, (double)c->network_bytes / 1e9,
            (double)c->host_to_device_bytes / 1e9, (double)c->device_to_host_bytes / 1e9);
    dtp_html_table(file, "communication-table", "Sent by each GPU per optimizer step (ring accounting)", names, 4,
                   false);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        if (c->count[i] == 0)
            continue;
        dtp_html_row(file);
        dtp_html_head_cell(file, dtp_collective_text((enum dtp_collective)i));
        dtp_html_figure_cell(file, (double)c->bytes[i], "%.2f", (double)c->bytes[i] / 1e9);
        dtp_html_figure_cell(file, (double)c->count[i], "%llu", (unsigned long long)c->count[i]);
        dtp_html_figure_cell(file, job->report->prediction.time.collective_s[i], "%.1f",
                             1e3 * job->report->prediction.time.collective_s[i]);
    }
    dtp_html_table_end(file);
    dtp_html_section_end(file);
}

static void simulated_section(const struct dtp_html_job *job, FILE *file)
{
    struct dtp_faults faults = {0};
    dtp_html_section(file, "simulated", "One step, simulated");
    if (job->simulated) {
        fprintf(file,
                "<p>The step\u2019s operations run in time: %.4g s, where formulas say %.4g s; tensors at the peak "
                "%.2f GiB, by the formulas %.2f GiB.</p>\n<figure class=\"step\">\n",
                job->simulated->timeline.step_s, job->simulated->closed.time.step_s,
                (double)job->simulated->prediction.memory.allocated_peak_bytes / 0x1p30,
                (double)job->simulated->closed.memory.allocated_peak_bytes / 0x1p30);
        dtp_svg_lanes(job->simulated, file);
        fputs("</figure>\n<figure>\n", file);
        dtp_svg_memory(job->simulated, file, &faults);
        fputs("</figure>\n", file);
    } else {
        dtp_html_format(file, "<p>Not simulated: %s.</p>\n", job->not_simulated ? job->not_simulated : "not asked for");
    }
    dtp_html_section_end(file);
}

static void step_section(const struct dtp_html_job *job, FILE *file)
{
    const struct dtp_time *t = &job->report->prediction.time;
    dtp_html_section(file, "step", "Time of a step");
    dtp_html_chart(DTP_CHART_STEP, job->plan, "step-figures", file);
    fprintf(file,
            "<p>%.4g s, between %.4g s with everything overlapped and %.4g s with nothing overlapped. Collectives take "
            "%.4g s alone, of which %.4g s are exposed: the step waits for them or computes slower beside them.</p>\n",
            t->step_s, t->step_perfect_overlap_s, t->step_no_overlap_s, t->communication_s, t->exposed_communication_s);
    dtp_html_section_end(file);
}

void dtp_html_breakdowns(const struct dtp_html_job *job, FILE *file)
{
    plan_section(job, file);
    memory_section(job, file);
    step_section(job, file);
    simulated_section(job, file);
    dtp_html_pipeline(job, file);
    communication_section(job, file);
    training_section(job, file);
}
