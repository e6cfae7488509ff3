/* One plan for people: does it fit, what does it send, how long does a step take, what does it cost, what would help.
 */
#include "record/report.h"

#include "base/append.h"
#include "plan/runtime.h"

#include <math.h>
#include <inttypes.h>
#include <string.h>

#define BAR_COLUMNS 40
#define NARROWEST_BAR 8 /* one shorter than that compares nothing and is left out */
#define LABEL_COLUMNS 28
#define BAR_STARTS 46 /* behind label, figure and unit */
#define BAR_WORDS 10  /* what stands behind a bar: "  42.2 %" */
#define GAUGE_COLUMNS 26
#define SHOWN_PART 1e-3 /* of forward and backward: less of it beside its kernels is not worth a word */

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Narrower where figure and unit would not stand beside it otherwise. */
static int label_columns(const struct dtp_page *page)
{
    int room = dtp_page_columns(page) - (BAR_STARTS - LABEL_COLUMNS);
    return room < LABEL_COLUMNS ? room : LABEL_COLUMNS;
}

static int bar_columns(const struct dtp_page *page)
{
    int room = dtp_page_columns(page) - BAR_STARTS - BAR_WORDS;
    return room > BAR_COLUMNS ? BAR_COLUMNS : room < NARROWEST_BAR ? 0 : room;
}

/* Words stand two columns right of where the longest bar ends; no blanks where there are none. */
static void end_row(const struct dtp_page *page, int left, const char *words)
{
    if (*words)
        fprintf(page->file, "%*s%s", left + 2, "", words);
    fputc('\n', page->file);
}

static void print_bytes_row(const struct dtp_page *page, const char *label, uint64_t bytes, uint64_t whole,
                            struct dtp_unit unit, const char *words)
{
    int left = 0;
    fprintf(page->file, "  %-*s %9.2f %s", label_columns(page), label, (double)bytes / unit.divisor, unit.name);
    if (whole > 0) {
        int bar = bar_columns(page);
        fputs(bar ? "  " : "", page->file);
        left = dtp_page_bar(page, (double)bytes / (double)whole, bar);
    }
    end_row(page, left, words);
}

static void print_share(const struct dtp_page *page, const char *words, uint64_t bytes, uint64_t whole,
                        struct dtp_unit unit)
{
    char share[16];
    if (bytes == 0)
        return;
    snprintf(share, sizeof share, "%4.1f %%", 100.0 * (double)bytes / (double)whole);
    print_bytes_row(page, words, bytes, whole, unit, share);
}

/* A simulated allocator hands out more than was asked for; an estimate knows tensors only. */
static void print_owners(const struct dtp_memory *m, const struct dtp_page *page, struct dtp_unit unit)
{
    uint64_t whole = m->allocated_peak_bytes, tensors = m->phase_total_bytes[m->peak_phase];
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        print_share(page, dtp_owner_words((enum dtp_owner)owner), m->phase_bytes[m->peak_phase][owner], whole, unit);
    print_share(page, "rounded up by the allocator", whole > tensors ? whole - tensors : 0, whole, unit);
}

static void print_phases(const struct dtp_memory *m, const struct dtp_page *page, struct dtp_unit unit)
{
    char line[400] = "";
    if (m->bound) /* of the peak alone */
        return;
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        dtp_append_part(line, sizeof line, ", ", "%s %.2f", dtp_phase_words((enum dtp_phase)phase),
                        (double)m->phase_total_bytes[phase] / unit.divisor);
    fprintf(page->file, "  ");
    dtp_page_ink(page, DTP_INK_DIM);
    fprintf(page->file, "allocated by phase, %s: ", unit.name);
    dtp_page_wrap(page, 2 + 20 + 2 + (int)strlen(unit.name), 4, line);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

/* Where the step was too long to simulate, and is no plan of which formulas were asked for. */
static void say_by_formulas(const struct dtp_report *report, const struct dtp_page *page)
{
    if (*report->not_simulated_because)
        dtp_page_say(page, 2, 4,
                     "by formulas, which may be far off here: the step is not simulated (STEP TIME says why); dtplan "
                     "simulate takes memory from its program");
}

/* How full the GPU is, as a gauge before the words. */
static void print_verdict(const struct dtp_memory *m, const struct dtp_page *page)
{
    static const enum dtp_ink inks[] = {
        [DTP_VERDICT_FITS] = DTP_INK_GREEN, [DTP_VERDICT_TIGHT] = DTP_INK_YELLOW, [DTP_VERDICT_OOM] = DTP_INK_RED};
    static const char *const labels[] = {
        [DTP_VERDICT_FITS] = "FITS", [DTP_VERDICT_TIGHT] = "TIGHT", [DTP_VERDICT_OOM] = "OUT OF MEMORY"};
    double used = (double)m->device_peak_bytes / (double)m->capacity_bytes;
    int gauge = dtp_page_columns(page) / 3 < GAUGE_COLUMNS ? dtp_page_columns(page) / 3 : GAUGE_COLUMNS;
    int filled = used >= 1 ? gauge : (int)(used * gauge + 0.5);
    char words[128];
    dtp_memory_words(m, words, sizeof words);
    fputs("  ", page->file);
    dtp_page_ink(page, inks[m->verdict]);
    for (int i = 0; i < gauge; i++)
        fputs(page->utf8 ? (i < filled ? "█" : "░") : (i < filled ? "#" : "."), page->file);
    fprintf(page->file, " %.0f %%  %s: %s", 100 * used, labels[m->verdict], words);
    dtp_page_ink(page, DTP_INK_PLAIN);
    fputc('\n', page->file);
}

static void print_node(const struct dtp_memory *m, const struct dtp_page *page)
{
    if (m->host_bytes == 0 && m->nvme_bytes == 0)
        return;
    fprintf(page->file, "  each node also holds %.1f GiB in host memory", (double)m->host_bytes / 0x1p30);
    if (m->host_capacity_bytes)
        fprintf(page->file, " of %.0f", (double)m->host_capacity_bytes / 0x1p30);
    if (m->nvme_bytes > 0)
        fprintf(page->file, " and %.1f GiB on NVMe", (double)m->nvme_bytes / 0x1p30);
    if (m->nvme_bytes > 0 && m->nvme_capacity_bytes)
        fprintf(page->file, " of %.0f", (double)m->nvme_capacity_bytes / 0x1p30);
    fputc('\n', page->file);
}

static void print_memory(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_memory *m = &report->prediction.memory;
    struct dtp_unit unit = dtp_unit_memory(m->device_peak_bytes);
    char words[128];
    dtp_page_heading(page, "MEMORY", "of each GPU at its peak: %s (GiB = 2^30 bytes)",
                     m->bound ? "a bound, for this plan has no step program" : dtp_phase_words(m->peak_phase));
    print_owners(m, page, unit);
    print_bytes_row(page, "= allocated", m->allocated_peak_bytes, 0, unit, "tensors");
    print_bytes_row(page, "  reserved", m->reserved_peak_bytes, 0, unit, "the allocator's segments");
    snprintf(words, sizeof words, "with CUDA context %.2f, NCCL %.2f", (double)m->context_bytes / unit.divisor,
             (double)m->nccl_bytes / unit.divisor);
    print_bytes_row(page, "  device", m->device_peak_bytes, 0, unit, words);
    print_bytes_row(page, "  capacity", m->capacity_bytes, 0, unit, "");
    print_verdict(m, page);
    say_by_formulas(report, page);
    print_phases(m, page, unit);
    print_node(m, page);
}

/* ---- communication ---------------------------------------------------------------------------------------------- */

static const char *const collective_words[DTP_COLLECTIVE_COUNT] = {
    [DTP_ALL_GATHER] = "all-gather",  [DTP_REDUCE_SCATTER] = "reduce-scatter", [DTP_ALL_REDUCE] = "all-reduce",
    [DTP_SEND_RECV] = "send/receive", [DTP_ALL_TO_ALL] = "all-to-all",
};

static void print_sent(const struct dtp_page *page, const char *label, uint64_t bytes, struct dtp_unit unit,
                       const char *words)
{
    fprintf(page->file, "  %-*s %9.2f %s%s%s\n", label_columns(page), label, (double)bytes / unit.divisor, unit.name,
            *words ? "   " : "", words);
}

static void print_total_sent(const struct dtp_report *report, const struct dtp_page *page, struct dtp_unit unit)
{
    const struct dtp_communication *c = &report->prediction.communication;
    char words[128];
    if (c->network_bytes == 0)
        snprintf(words, sizeof words, "all inside the node");
    else
        snprintf(words, sizeof words, "%.2f inside the node, %.2f over the network",
                 (double)c->link_bytes / unit.divisor, (double)c->network_bytes / unit.divisor);
    print_sent(page, "= total", c->total_bytes, unit, words);
}

static void print_communication(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_communication *c = &report->prediction.communication;
    const struct dtp_time *t = &report->prediction.time;
    uint64_t host =
        c->host_to_device_bytes > c->device_to_host_bytes ? c->host_to_device_bytes : c->device_to_host_bytes;
    struct dtp_unit unit = dtp_unit_traffic(c->total_bytes > host ? c->total_bytes : host);
    struct dtp_unit time_unit = dtp_unit_time(t->step_s);
    char words[128], number[32];
    dtp_page_heading(page, "COMMUNICATION", "sent by each GPU per optimizer step (1 GB = 10^9 bytes)");
    if (c->total_bytes == 0 && host == 0) {
        fputs("  none: one GPU\n", page->file);
        return;
    }
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        if (c->count[i] == 0)
            continue;
        snprintf(words, sizeof words, "%s operation%s, %.*f %s alone",
                 dtp_page_grouped(c->count[i], number, sizeof number), dtp_plural(c->count[i]),
                 time_unit.divisor < 1 ? 1 : 3, t->collective_s[i] / time_unit.divisor, time_unit.name);
        print_sent(page, collective_words[i], c->bytes[i], unit, words);
    }
    if (c->total_bytes > 0)
        print_total_sent(report, page, unit);
    if (c->host_to_device_bytes > 0)
        print_sent(page, "host to GPU (PCIe)", c->host_to_device_bytes, unit, "");
    if (c->device_to_host_bytes > 0)
        print_sent(page, "GPU to host (PCIe)", c->device_to_host_bytes, unit, "");
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

static void print_seconds(const struct dtp_page *page, const char *label, double seconds, double whole,
                          struct dtp_unit unit, const char *words)
{
    int left = 0;
    fprintf(page->file, "  %-*s %9.*f %s", label_columns(page), label, unit.divisor < 1 ? 1 : 3, seconds / unit.divisor,
            unit.name);
    if (whole > 0 && (seconds > 0 || *words)) {
        fprintf(page->file, "%*s", 5 - (int)strlen(unit.name), ""); /* bars start where the memory's do */
        left = dtp_page_bar(page, seconds / whole, bar_columns(page));
    }
    end_row(page, left, words);
}

/* What fills the compute part: device work by kind, as far as it is named, and launch gaps. */
static void print_compute_words(const struct dtp_time *t, const struct dtp_page *page, struct dtp_unit unit)
{
    int digits = unit.divisor < 1 ? 1 : 3;
    char line[300], recompute[64] = "", wait[128] = "";
    const struct {
        const char *words;
        double seconds;
    } others[] = {{"kernels of other streams", t->beside_s}, {"waiting for the host's launches", t->launch_wait_s}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].seconds >= SHOWN_PART * t->compute_s)
            dtp_append(wait, sizeof wait, ", %s %.*f", others[i].words, digits, others[i].seconds / unit.divisor);
    if (t->recompute_s > 0)
        snprintf(recompute, sizeof recompute, "; %.*f of it recomputed", digits, t->recompute_s / unit.divisor);
    snprintf(line, sizeof line, "matmuls %.*f, attention %.*f, memory-bound kernels %.*f, loss %.*f%s%s", digits,
             t->matmul_s / unit.divisor, digits, t->attention_s / unit.divisor, digits,
             t->memory_bound_s / unit.divisor, digits, t->loss_s / unit.divisor, wait, recompute);
    fputs("    ", page->file);
    dtp_page_ink(page, DTP_INK_DIM);
    dtp_page_wrap(page, 4, 4, line);
    if (t->host_launch_s >= t->compute_s * (1 - 1e-9))
        fputs("    launch bound: the host cannot issue kernels as fast as the GPU finishes them\n", page->file);
    dtp_page_ink(page, DTP_INK_PLAIN);
}

static void print_why_not_simulated(const struct dtp_report *report, const struct dtp_page *page)
{
    if (!*report->not_simulated_because)
        return;
    dtp_page_say(page, 2, 2, "not simulated: %s", report->not_simulated_because);
}

/* Of PowerSGD that begins later. */
static void print_before(const struct dtp_report *report, const struct dtp_page *page)
{
    struct dtp_unit unit = dtp_unit_time(report->plain_step_s);
    if (report->plain_step_s > 0)
        dtp_page_say(page, 2, 2, "up to step %" PRIu32 " gradients are summed as they are: %.3f %s a step, %.2f GiB",
                     report->job.plan.powersgd_start_step, report->plain_step_s / unit.divisor, unit.name,
                     report->plain_device_bytes / 0x1p30);
}

/* What compression is known to cost (CHANGES has the runs): AdamW divides away what error feedback brings late. */
static void warn_of_loss(const struct dtp_plan *plan, const struct dtp_page *page)
{
    const bool adamw = plan->optimizer == DTP_ADAMW_FUSED || plan->optimizer == DTP_ADAMW_FOREACH;
    if (plan->comm_hook != DTP_COMM_HOOK_POWERSGD || !adamw)
        return;
    dtp_page_say(
        page, 2, 2,
        "powersgd costs AdamW loss: 4 to 32 %% after 500 steps on text, at 1.3B 11 %%, 4 %% begun at step 300 and "
        "1 %% at 400 (--powersgd-start-step); SGD with momentum, of small models, 0.5 %% at most");
}

static void print_time(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_time *t = &report->prediction.time;
    struct dtp_unit unit = dtp_unit_time(t->step_s);
    int digits = unit.divisor < 1 ? 1 : 3;
    char words[128];
    if (report->simulated)
        dtp_page_heading(page, "STEP TIME", "of one optimizer step, simulated; the closed form says %.*f %s", digits,
                         report->closed_step_s / unit.divisor, unit.name);
    else
        dtp_page_heading(page, "STEP TIME", "of one optimizer step, by the closed form");
    print_why_not_simulated(report, page);
    print_seconds(page, "forward and backward", t->compute_s, t->step_s, unit, "");
    print_compute_words(t, page, unit);
    if (t->optimizer_s > 0) /* on the host it is part of the offload */
        print_seconds(page, "optimizer", t->optimizer_s, t->step_s, unit, "");
    if (t->communication_s > 0) {
        snprintf(words, sizeof words, "of %.*f", digits, t->communication_s / unit.divisor);
        print_seconds(page, "exposed communication", t->exposed_communication_s, t->step_s, unit, words);
        dtp_page_print(page, DTP_INK_DIM, "    counts how much compute slows down beside hidden collectives\n");
    }
    if (t->offload_s > 0) {
        snprintf(words, sizeof words, "of %.*f", digits, t->offload_s / unit.divisor);
        print_seconds(page, "exposed offload", t->exposed_offload_s, t->step_s, unit, words);
    }
    if (t->bubble_s > 0) {
        print_seconds(page, "pipeline bubble", t->bubble_s, t->step_s, unit, "");
        dtp_page_print(page, DTP_INK_DIM, "    each of these the mean of the ranks\n");
    }
    double rest =
        t->step_s - t->compute_s - t->optimizer_s - t->exposed_communication_s - t->exposed_offload_s - t->bubble_s;
    if (rest > 1e-3 * t->step_s)
        print_seconds(page, "waiting for the slowest rank", rest, t->step_s, unit, "");
    if (t->step_no_overlap_s <= t->step_perfect_overlap_s * (1 + 1e-9)) { /* nothing that could overlap */
        print_seconds(page, "= step", t->step_s, 0, unit, "best estimate");
        print_before(report, page);
        return;
    }
    snprintf(words, sizeof words, "best estimate; %.*f to %.*f", digits, t->step_perfect_overlap_s / unit.divisor,
             digits, t->step_no_overlap_s / unit.divisor);
    print_seconds(page, "= step", t->step_s, 0, unit, words);
    dtp_page_print(page, DTP_INK_DIM, "    to either side: computing and sending overlap perfectly, or not at all\n");
    print_before(report, page);
    warn_of_loss(&report->job.plan, page);
}

/* ---- throughput and money --------------------------------------------------------------------------------------- */

/* Of a model with experts what its FLOPs, and so MFU, count: a token meets few of its weights. */
static void print_active(const struct dtp_job *job, const struct dtp_page *page)
{
    const struct dtp_transformer *m = &job->transformer;
    char weights[32], line[240];
    if (!m->experts)
        return;
    snprintf(line, sizeof line,
             "%.4g GFLOP a token, forward and backward: 6 for each of %s weights that it meets, experts "
             "it does not go to left out, and attention",
             dtp_transformer_model_flops_per_token(m, job->plan.sequence) / 1e9,
             dtp_page_grouped(dtp_transformer_count(m).matmul, weights, sizeof weights));
    dtp_page_say(page, 4, 4, "%s", line);
}

#define TEN_YEARS_S (3652.5 * 86400)

static void print_throughput(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_throughput *t = &report->prediction.throughput;
    const struct dtp_scaling *s = &report->scaling;
    char total[32], each[32], days[32], flops[32];
    bool adapts = dtp_plan_adapts(&report->job.plan);
    dtp_page_heading(page, "THROUGHPUT",
                     adapts ? "MFU counts 4 FLOPs a frozen weight, 6 a trained one; HFU what is recomputed too"
                            : "MFU counts what the model needs, HFU what is recomputed too");
    fprintf(page->file, "  %-*s %9s tokens/s, %s per GPU\n", label_columns(page), "tokens",
            dtp_page_figure(t->tokens_per_s, total, sizeof total),
            dtp_page_figure(t->tokens_per_s_per_gpu, each, sizeof each));
    bool few = 1e12 / t->tokens_per_s > TEN_YEARS_S; /* nobody waits for: fine-tuning, single GPUs */
    fprintf(page->file, "  %-*s %9s days\n", label_columns(page), few ? "10^9 tokens take" : "10^12 tokens take",
            dtp_page_figure((few ? 1e9 : 1e12) / t->tokens_per_s / 86400.0, days, sizeof days));
    fprintf(page->file, "  %-*s %9s TFLOP/s per GPU: MFU %.1f %%, HFU %.1f %%\n", label_columns(page),
            "model arithmetic", dtp_page_figure(t->flops_per_s_per_gpu / 1e12, flops, sizeof flops), 100 * t->mfu,
            100 * t->hfu);
    print_active(&report->job, page);
    if (report->job.cluster.gpus == 1)
        return;
    fprintf(page->file, "  %-*s %9.1f %% of ", label_columns(page), "scaling efficiency", 100 * s->efficiency);
    if (s->reference_gpus == report->job.cluster.gpus)
        fputs("itself: it fits on no smaller number of GPUs\n", page->file);
    else
        fprintf(page->file, "%u GPU%s%s\n", s->reference_gpus, dtp_plural(s->reference_gpus),
                !s->reference_fits       ? " of unlimited memory"
                : s->reference_gpus == 1 ? ""
                                         : ", the fewest that fit");
    /* Shards of the optimizer shrink with the number of GPUs, which can gain more than communication costs. */
    if (s->efficiency > 1.0005)
        fputs("    above 100 %: each GPU updates a smaller share of the parameters\n", page->file);
}

static void print_price_row(const struct dtp_page *page, const char *label, const double *usd, bool given)
{
    char low[32], typical[32], high[32];
    fprintf(page->file, "  %-*s %9s", label_columns(page), label,
            dtp_page_figure(usd[DTP_PRICE_TYPICAL], typical, sizeof typical));
    if (!given)
        fprintf(page->file, "   (%s to %s)", dtp_page_figure(usd[DTP_PRICE_LOW], low, sizeof low),
                dtp_page_figure(usd[DTP_PRICE_HIGH], high, sizeof high));
    fputc('\n', page->file);
}

static void print_money(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_money *m = &report->money;
    if (!m->known) {
        dtp_page_heading(page, "COST", "no price known for this GPU; give one with --price");
        return;
    }
    if (m->given)
        dtp_page_heading(page, "COST", "US dollars, at the price given");
    else
        dtp_page_heading(page, "COST", "US dollars, typical (low to high) of %s", m->date);
    print_price_row(page, "a GPU-hour", m->gpu_hour_usd, m->given);
    print_price_row(page, "an hour of the job", m->job_hour_usd, m->given);
    print_price_row(page, "10^9 tokens", m->billion_tokens_usd, m->given);
}

/* ---- advice and solver ------------------------------------------------------------------------------------------ */

static void print_change(const struct dtp_report *report, const struct dtp_change *change, int at,
                         const struct dtp_page *page)
{
    char line[800], gain[48] = "";
    const struct dtp_memory *m = &change->variant.prediction.memory;
    double percent = 100 * change->gain;
    bool fits_now = report->prediction.memory.verdict == DTP_VERDICT_FITS;
    double step_ratio = 1 + change->gain;
    if (fits_now)
        snprintf(gain, sizeof gain, "%+.0f %% tokens/s", percent);
    else
        snprintf(gain, sizeof gain, "%s at %s tokens/s", m->verdict == DTP_VERDICT_FITS ? "fits" : "tight",
                 dtp_page_grouped((uint64_t)llround(step_ratio * report->prediction.throughput.tokens_per_s),
                                  (char[32]){0}, 32));
    /* Where the allocator's cache would outgrow the GPU, what counts is that the tensors fit. */
    bool overgrown = m->device_peak_bytes > m->capacity_bytes;
    snprintf(line, sizeof line, "%s: %s, %s %.1f GiB%s%s", change->flags, gain, overgrown ? "tensors" : "device memory",
             (double)(overgrown ? m->allocated_peak_bytes : m->device_peak_bytes) / 0x1p30, change->note[0] ? "; " : "",
             change->note);
    dtp_page_wrap(page, at, 7, line);
}

static void print_advice(const struct dtp_report *report, const struct dtp_page *page)
{
    const struct dtp_advice *advice = &report->advice;
    static const char *const words[] = {
        [DTP_ADVICE_NONE] = "",
        [DTP_ADVICE_FASTER] = "one change: the fastest of those that fit",
        [DTP_ADVICE_MAKES_FIT] = "the change with which it fits and is fastest",
        [DTP_ADVICE_MORE_GPUS] = "no change on these GPUs makes it fit; more of them do",
        [DTP_ADVICE_HOPELESS] = "none found: neither a change nor more GPUs of this kind make it fit",
    };
    if (advice->kind == DTP_ADVICE_NONE)
        return;
    bool tight = advice->count > 0 && advice->changes[0].variant.prediction.memory.verdict == DTP_VERDICT_TIGHT;
    dtp_page_heading(page, "WHAT WOULD HELP MOST", "%s",
                     tight && advice->kind == DTP_ADVICE_MAKES_FIT
                         ? "none leaves a margin; the fastest change that is tight"
                         : words[advice->kind]);
    for (size_t i = 0; i < advice->count; i++) {
        dtp_page_ink(page, i == 0 ? DTP_INK_BOLD : DTP_INK_DIM);
        fputs(i == 0 ? "  " : "  or ", page->file);
        print_change(report, &advice->changes[i], i == 0 ? 2 : 5, page);
        dtp_page_ink(page, DTP_INK_PLAIN);
    }
    const struct dtp_plan *plan = &report->job.plan;
    bool divisible = !plan->adapters.rank && report->job.cluster.gpu.architecture != DTP_GPU_HOST;
    if (advice->kind == DTP_ADVICE_HOPELESS && divisible && plan->tp * plan->pp == 1)
        dtp_page_say(page, 2, 2,
                     "no layer was divided: dtplan search --runtime megatron, with this model, one --gpu and --tokens, "
                     "tries tp, pp and, of experts, ep");
    if (report->simulated && advice->count > 0)
        dtp_page_print(page, DTP_INK_DIM,
                       "  by formulas, this plan's figures too; dtplan whatif simulates each change\n");
}

static const char *verdict_of_neighbour(enum dtp_verdict verdict)
{
    switch (verdict) {
    case DTP_VERDICT_FITS: return "fits too"; /* not monotone here */
    case DTP_VERDICT_TIGHT: return "is tight";
    case DTP_VERDICT_OOM: return "is out of memory";
    }
    return "";
}

/* "; 6 is tight (73.1 GiB); up to 7 is tight" */
static void add_neighbours(const struct dtp_solution *s, char *line, size_t bytes)
{
    if (s->next_value > 0 && s->next_device_bytes > 0)
        dtp_append(line, bytes, "; %llu %s (%.1f GiB)", (unsigned long long)s->next_value,
                   verdict_of_neighbour(s->next_verdict), (double)s->next_device_bytes / 0x1p30);
    else if (s->next_value > 0)
        dtp_append(line, bytes, "; %llu is refused: %s", (unsigned long long)s->next_value, s->next_reason);
    if (s->tight_value > 0 && s->tight_value != s->next_value)
        dtp_append(line, bytes, "; tight %s %llu", s->goal == DTP_SOLVE_MIN_GPUS ? "from" : "up to",
                   (unsigned long long)s->tight_value);
}

static void print_solution(const struct dtp_report *report, const struct dtp_page *page)
{
    static const char *const goals[] = {
        [DTP_SOLVE_MAX_MICRO_BATCH] = "largest micro batch that fits",
        [DTP_SOLVE_MAX_SEQUENCE] = "longest sequence that fits",
        [DTP_SOLVE_MIN_GPUS] = "fewest GPUs that fit",
    };
    const struct dtp_solution *s = &report->solution;
    char line[DTP_FAULT_TEXT_BYTES + 256];
    if (s->found)
        snprintf(line, sizeof line, "%s: %llu%s", goals[s->goal], (unsigned long long)s->value,
                 s->tight ? ", though tight: none leaves a margin" : "");
    else
        snprintf(line, sizeof line, "%s: none; the plan with %llu is below", goals[s->goal],
                 (unsigned long long)s->value);
    add_neighbours(s, line, sizeof line);
    dtp_page_ink(page, s->found ? DTP_INK_BOLD : DTP_INK_RED);
    dtp_page_wrap(page, 0, 2, line);
    dtp_page_ink(page, DTP_INK_PLAIN);
    fputc('\n', page->file);
}

void dtp_report_plan_text(const struct dtp_report *report, const struct dtp_page *page)
{
    if (report->solved)
        print_solution(report, page);
    dtp_report_head(&report->job, DTP_HEAD_PLAN, page);
    print_memory(report, page);
    print_communication(report, page);
    print_time(report, page);
    dtp_pipeline_text(&report->stages, page);
    print_throughput(report, page);
    print_money(report, page);
    dtp_training_text(report, page);
    print_advice(report, page);
}
