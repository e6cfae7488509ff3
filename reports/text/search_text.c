#include "record/search_report.h"

#include "page/grid.h"
#include "plan/rules.h"
#include "base/append.h"
#include "base/number.h"
#include "record/report.h"
#include "decide/whatif.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_COLUMNS 12
#define FRONT_ROWS 14 /* a page of them; --csv has all */

typedef char text[DTP_NUMBER_TEXT_BYTES];

static const char *duration(double s, char *out)
{
    return dtp_number_format_duration(s, out, DTP_NUMBER_TEXT_BYTES);
}

static double usd_of(const struct dtp_candidate *c)
{
    return c->cost.usd[DTP_PRICE_TYPICAL];
}

static void label(const struct dtp_page *page, const char *words)
{
    fprintf(page->file, "  %-*s ", LABEL_COLUMNS, words);
}

/* "full_shard, torch FSDP2 compiled, bf16-mixed, 2 x 4, checkpointing full". */
static void describe(const struct dtp_candidate *c, char *out, size_t bytes)
{
    const struct dtp_plan *p = &c->variant.job.plan;
    char runtime[48], checkpointing[64] = ", checkpointing ", offload[32] = "", group[32] = "", slices[48] = "";
    dtp_report_runtime_words(p, runtime, sizeof runtime);
    size_t used = strlen(checkpointing);
    dtp_checkpointing_text(p, checkpointing + used, sizeof checkpointing - used);
    if (p->checkpointing == DTP_CHECKPOINT_NONE)
        checkpointing[0] = '\0';
    if (p->strategy == DTP_HYBRID_SHARD)
        snprintf(group, sizeof group, " of %u", p->shard_group);
    if (dtp_plan_model_parallel(p))
        snprintf(slices, sizeof slices, p->virtual_stages > 1 ? "tp %u pp %u x %u, " : "tp %u pp %u, ", p->tp, p->pp,
                 p->virtual_stages);
    if (p->ep > 1)
        snprintf(slices + strlen(slices), sizeof slices - strlen(slices), "ep %u, ", p->ep);
    if (p->offload != DTP_OFFLOAD_NONE)
        snprintf(offload, sizeof offload, ", offload %s", dtp_offload_text(p->offload));
    const char *reduced = p->accumulate > 1 && p->accumulate_sync ? " reduced each time" : "";
    snprintf(out, bytes, "%s%s%s, %s, %s, %u x %u%s%s%s", slices, dtp_strategy_text(p->strategy), group, runtime,
             dtp_precision_name(&p->precision), p->micro_batch, p->accumulate, reduced, checkpointing, offload);
}

/* "1,024 numbers of GPUs were asked for, 135 are ...; of those 17 were tried: 1, 2, 4, ..." */
static void print_thinned(const struct dtp_search_question *question, const struct dtp_page *page)
{
    const struct dtp_search_thinned *t = &question->thinned;
    char words[1024], a[32], b[32];
    if (t->asked == t->tried)
        return;
    snprintf(words, sizeof words, "of %s numbers of GPUs %s are part of a node or whole nodes of each kind; tried: ",
             dtp_page_grouped(t->asked, a, sizeof a), dtp_page_grouped(t->rented, b, sizeof b));
    for (size_t i = 0; i < question->axes->count; i++) {
        const struct dtp_axis *axis = &question->axes->axes[i];
        if (strcmp(axis->key, "gpus") != 0)
            continue;
        for (size_t k = 0; k < axis->count && strlen(words) < sizeof words - 160; k++)
            dtp_append(words, sizeof words, "%s%s", k ? ", " : "", axis->values[k]);
    }
    if (t->rented > t->tried)
        dtp_append(words, sizeof words, "; name fewer GPUs or a shorter range around the plan above for those between");
    dtp_page_say(page, 2, 2, "%s", words);
}

/* Whether the model itself was divided, or asked not to be. */
static bool varies(const struct dtp_search_question *question, const char *key)
{
    bool found = dtp_scenario_get(question->base, key) != NULL;
    for (size_t i = 0; i < question->axes->count; i++)
        found |= strcmp(question->axes->axes[i].key, key) == 0;
    return found;
}

static void print_searched(const struct dtp_search_question *question, const struct dtp_search_counts *n,
                           const struct dtp_page *page)
{
    char a[32], b[32], c[32], words[512];
    snprintf(words, sizeof words, "%s combinations: %s refused by the rules, %s ruled out by the time and money bound",
             dtp_page_grouped(n->combinations, a, sizeof a), dtp_page_grouped(n->refused, b, sizeof b),
             dtp_page_grouped(n->pruned_time, c, sizeof c));
    dtp_append(words, sizeof words, ", %s by the memory bound", dtp_page_grouped(n->pruned_memory, a, sizeof a));
    dtp_append(words, sizeof words, "; %s predicted (memory of %s by step program, else by bound)",
               dtp_page_grouped(n->predicted, a, sizeof a), dtp_page_grouped(n->estimated, b, sizeof b));
    dtp_append(words, sizeof words, ", of which %s fit and %s are tight", dtp_page_grouped(n->fits, b, sizeof b),
               dtp_page_grouped(n->tight, c, sizeof c));
    dtp_append(words, sizeof words, "; %s candidates simulated", dtp_page_grouped(n->simulated, a, sizeof a));
    if (n->dropped)
        dtp_append(words, sizeof words, ", %s of them did not fit after all",
                   dtp_page_grouped(n->dropped, a, sizeof a));
    if (n->too_many_nodes)
        dtp_append(words, sizeof words, "; %s have more than %u nodes",
                   dtp_page_grouped(n->too_many_nodes, a, sizeof a), question->max_nodes);
    dtp_page_heading(page, "SEARCHED", "");
    dtp_page_say(page, 2, 2, "%s", words);
    if (!varies(question, "tp") && !varies(question, "pp"))
        dtp_page_say(page, 2, 2,
                     "no layer was divided: with --runtime %s and one --gpu, tp, pp and, of experts, ep are tried too",
                     varies(question, "base") ? "dtplan" : "megatron"); /* which has no packed weights */
    print_thinned(question, page);
}

static bool is_timed(const struct dtp_candidate *c)
{
    return c->simulated || c->estimated;
}

static bool timed_alike(const struct dtp_candidate *a, const struct dtp_candidate *b)
{
    return is_timed(a) == is_timed(b);
}

static const char *fidelity_words(const struct dtp_candidate *c)
{
    return c->simulated ? "simulated" : c->estimated ? "simulated from shorter steps" : "by the closed form";
}

static void print_memory(const struct dtp_candidate *c, const struct dtp_page *page)
{
    const struct dtp_memory *m = &c->variant.prediction.memory;
    text used, capacity;
    char words[128], share[160], line[320];
    dtp_memory_words(m, words, sizeof words);
    if (c->fits)
        snprintf(share, sizeof share, "%.0f %% free", 100 * c->headroom);
    else
        snprintf(share, sizeof share, "TIGHT: %s", words);
    snprintf(line, sizeof line, "%s of %s, %s, %s", dtp_number_format_memory(m->device_peak_bytes, used, sizeof used),
             dtp_number_format_memory(m->capacity_bytes, capacity, sizeof capacity), share,
             !c->simulated                        ? "by the closed form"
             : c->variant.job.plan.runtime->arena ? "placed in the program's arena"
                                                  : "by replaying the allocator");
    label(page, "memory");
    dtp_page_wrap(page, LABEL_COLUMNS + 3, LABEL_COLUMNS + 3, line);
}

/* How far a batch of another size takes another learning rate: in proportion for SGD (Goyal et al. 2017), by the square
 * root with Adam (Malladi et al. 2022), both only below the critical batch. */
static void print_batch(const struct dtp_candidate *c, const struct dtp_page *page)
{
    text batch, critical;
    label(page, "batch");
    fprintf(page->file, "%s tokens a step; critical near %s%s\n",
            dtp_number_format_count(c->cost.batch_tokens, batch, sizeof batch),
            dtp_number_format_count(c->cost.critical_batch_tokens, critical, sizeof critical),
            c->cost.batch_tokens > 2 * c->cost.critical_batch_tokens ? ": beyond it, more tokens may be needed" : "");
    if (c->batch_free) {
        label(page, "");
        dtp_page_wrap(
            page, LABEL_COLUMNS + 3, LABEL_COLUMNS + 3,
            "no batch was asked for (--global-batch-tokens), so it follows from speed: of a batch k times as large the "
            "learning rate grows by about the square root of k with Adam, up to the critical batch");
    }
}

static void print_candidate(const struct dtp_search_question *question, const struct dtp_candidate *c,
                            const struct dtp_page *page)
{
    const struct dtp_job *job = &c->variant.job;
    text wall, work;
    char words[256], low[32], typical[32], high[32];
    describe(c, words, sizeof words);
    label(page, "GPUs");
    fprintf(page->file, "%u %s %s\n", job->cluster.gpus, dtp_page_times(page), job->cluster.gpu.name);
    label(page, "plan");
    dtp_page_wrap(page, LABEL_COLUMNS + 3, LABEL_COLUMNS + 3, words);
    if (job->model_note[0]) {
        label(page, "model");
        dtp_page_wrap(page, LABEL_COLUMNS + 3, LABEL_COLUMNS + 3, job->model_note);
    }
    label(page, "time");
    fprintf(page->file, "%s with failures and checkpoints, %s of computing; MFU %.1f %%, %s\n",
            duration(c->cost.goodput.expected_s, wall), duration(c->cost.inputs.work_s, work),
            100 * c->variant.prediction.throughput.mfu, fidelity_words(c));
    if (c->cost.trials.quantile_s > 0) {
        double deadline_s = job->training.deadline_s;
        label(page, "risk");
        fprintf(page->file, "%.3g failures expected; below %s in 95 of 100 runs%s\n", c->cost.goodput.failures_count,
                duration(c->cost.trials.quantile_s, wall),
                deadline_s > 0 && c->cost.trials.quantile_s > deadline_s ? ": some runs miss the deadline" : "");
    }
    if (c->money.known) {
        label(page, "money");
        fprintf(page->file, "$%s typical ($%s to $%s)\n", dtp_page_figure(c->cost.usd[1], typical, sizeof typical),
                dtp_page_figure(c->cost.usd[0], low, sizeof low), dtp_page_figure(c->cost.usd[2], high, sizeof high));
    }
    print_memory(c, page);
    print_batch(c, page);
    char *command = dtp_search_command(question, c);
    label(page, "command");
    dtp_page_wrap_command(page, LABEL_COLUMNS + 3, LABEL_COLUMNS + 3, command ? command : "out of memory");
    free(command);
}

/* By what it is the best. */
static const char *objective_words(const struct dtp_candidate *c)
{
    const struct dtp_training *t = &c->variant.job.training;
    if (t->budget_usd > 0)
        return t->deadline_s > 0 ? "the cheapest within deadline and budget" : "the fastest within the budget";
    if (t->deadline_s > 0)
        return "the cheapest within the deadline";
    return c->patient ? "the cheapest that ends within a year; --deadline or --budget ask for more speed"
                      : "the cheapest; nothing ends within a year";
}

static void print_recommended(const struct dtp_search_question *question, const struct dtp_search *search,
                              const struct dtp_page *page)
{
    const struct dtp_candidate *c = &search->candidates[search->recommended];
    dtp_page_heading(page, "RECOMMENDED", "%s%s",
                     c->fits ? "" : "though TIGHT, for nothing leaves a margin of memory: ", objective_words(c));
    print_candidate(question, c, page);
}

/* Sorted by time for reading. */
static int earlier(const void *left, const void *right)
{
    const struct dtp_candidate *a = *(const struct dtp_candidate *const *)left;
    const struct dtp_candidate *b = *(const struct dtp_candidate *const *)right;
    double x = a->cost.goodput.expected_s, y = b->cost.goodput.expected_s;
    return (x > y) - (x < y);
}

static void add_front_row(struct dtp_grid *grid, const struct dtp_search *search, const struct dtp_candidate *c)
{
    text wall;
    char words[256], usd[32];
    bool recommended = search->recommended >= 0 && c == &search->candidates[search->recommended];
    describe(c, words, sizeof words);
    dtp_grid_row(grid, recommended ? DTP_INK_BOLD : DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", recommended ? "*" : "");
    dtp_grid_cell(grid, "%s", duration(c->cost.goodput.expected_s, wall));
    dtp_grid_cell(grid, "%s", c->money.known ? dtp_page_figure(usd_of(c), usd, sizeof usd) : "?");
    dtp_grid_cell(grid, "%.0f", 100 * c->headroom);
    dtp_grid_cell(grid, "%.1f", 100 * c->variant.prediction.throughput.mfu);
    dtp_grid_cell(grid, "%u", c->variant.job.cluster.gpus);
    dtp_grid_cell(grid, "%s", c->variant.job.cluster.gpu.key);
    dtp_grid_cell(grid, "%s%s%s", c->fits ? "" : "TIGHT: ", words,
                  c->simulated   ? ""
                  : c->estimated ? " (estimated)"
                                 : " (closed form)");
}

static void print_front(const struct dtp_search *search, const struct dtp_page *page)
{
    const struct dtp_candidate **front = calloc(search->count + 1, sizeof *front);
    struct dtp_grid grid;
    size_t count = 0;
    for (size_t i = 0; i < search->count && front; i++)
        if (search->candidates[i].front)
            front[count++] = &search->candidates[i];
    if (count)
        qsort(front, count, sizeof *front, earlier);
    dtp_page_heading(page, "FRONT", "of time, money and free memory: no other plan is better in one and worse in none");
    dtp_grid_create(&grid, "lrrrrrll");
    dtp_grid_row(&grid, DTP_INK_DIM);
    static const char *const titles[] = {"",      "time", "$", "free %",
                                         "MFU %", "GPUs", "",  "plan, micro batch x accumulate"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        dtp_grid_cell(&grid, "%s", titles[i]);
    for (size_t i = 0; i < count; i++) {
        bool recommended = search->recommended >= 0 && front[i] == &search->candidates[search->recommended];
        /* Evenly over the whole front where it is long. */
        bool shown = count <= FRONT_ROWS || i * FRONT_ROWS / count != (i + 1) * FRONT_ROWS / count || recommended;
        if (shown)
            add_front_row(&grid, search, front[i]);
    }
    dtp_grid_print(&grid, page, 2);
    if (count > FRONT_ROWS)
        fprintf(page->file, "  and others: %zu in all, --csv lists them\n", count);
    dtp_grid_destroy(&grid);
    free(front);
}

static void percent_more(double from, double to, const char *more, const char *less, char *out, size_t bytes)
{
    double share = from > 0 ? 100 * (to / from - 1) : 0;
    if (fabs(share) < 0.05)
        snprintf(out, bytes, "no %s", more);
    else
        snprintf(out, bytes, "%.1f %% %s", fabs(share), share > 0 ? more : less);
}

/* "8 x h100-sxm, full_shard, ...: 12.0 % later and 3.1 % dearer". */
static void describe_against(const struct dtp_candidate *best, const struct dtp_candidate *c,
                             const struct dtp_page *page, char *out, size_t bytes)
{
    char plan[256], time[64], money[64] = "no price known";
    describe(c, plan, sizeof plan);
    percent_more(best->cost.goodput.expected_s, c->cost.goodput.expected_s, "later", "sooner", time, sizeof time);
    if (c->money.known)
        percent_more(usd_of(best), usd_of(c), "dearer", "cheaper", money, sizeof money);
    snprintf(out, bytes, "%u %s %s, %s: %s and %s", c->variant.job.cluster.gpus, dtp_page_times(page),
             c->variant.job.cluster.gpu.key, plan, time, money);
}

static void print_runner_up(const struct dtp_search *search, const struct dtp_page *page)
{
    char words[512], why[512];
    if (search->runner_up < 0)
        return;
    const struct dtp_candidate *best = &search->candidates[search->recommended];
    const struct dtp_candidate *c = &search->candidates[search->runner_up];
    describe_against(best, c, page, words, sizeof words);
    dtp_whatif_why(&best->variant, &c->variant, why, sizeof why);
    dtp_page_heading(page, "RUNNER-UP", "the best with other GPUs or another strategy, and why it lost");
    dtp_page_say(page, 2, 2, "%s. Against the recommended one: %s%s.", words, why,
                 timed_alike(best, c) ? "" : " (one of the two is the closed form's)");
}

static void print_other_format(const struct dtp_search *search, const struct dtp_page *page)
{
    char words[512];
    if (search->other_format < 0)
        return;
    describe_against(&search->candidates[search->recommended], &search->candidates[search->other_format], page, words,
                     sizeof words);
    dtp_page_heading(page, "OTHER NUMBER FORMATS", "train other numbers: judge the loss first, then pin --precision");
    dtp_page_say(page, 2, 2, "%s", words);
}

/* ---- no plan ----------------------------------------------------------------------------------------------------- */

static void say_limits(const struct dtp_search_relax *r, const struct dtp_training *t, const struct dtp_page *page)
{
    char usd[32], more[32];
    text by, until;
    if (t->deadline_s > 0 && r->deadline_s > 0) {
        dtp_page_say(page, 2, 2, "--deadline %.1fd%s: %s more", r->deadline_s / 86400 + 0.05,
                     t->budget_usd > 0 ? " with this budget" : "", duration(r->deadline_s - t->deadline_s, by));
    }
    if (t->budget_usd > 0 && r->budget_usd > 0) {
        dtp_page_say(page, 2, 2, "--budget %s%s: $%s more", dtp_page_figure(ceil(r->budget_usd), usd, sizeof usd),
                     t->deadline_s > 0 ? " with this deadline" : "",
                     dtp_page_figure(ceil(r->budget_usd - t->budget_usd), more, sizeof more));
    }
    dtp_page_say(page, 2, 2, "the earliest end, whatever it costs, is after %s; the least money, however late, $%s",
                 duration(r->free_deadline_s, until), dtp_page_figure(r->free_budget_usd, usd, sizeof usd));
}

static void print_relax(const struct dtp_search *search, const struct dtp_page *page)
{
    const struct dtp_search_relax *r = &search->relax;
    text missing;
    dtp_page_heading(page, "NO PLAN", "%s",
                     r->refusal[0]                            ? "every combination is refused"
                     : !r->any_fits                           ? "fits into memory"
                     : !r->any_ends                           ? "gets ahead of its failures"
                     : r->deadline_s > 0 || r->budget_usd > 0 ? "within the limits; one of these would do"
                                                              : "within the limits; both have to move");
    if (r->refusal[0]) {
        dtp_page_say(page, 2, 2, "%s", r->refusal);
    } else if (!r->any_fits) {
        dtp_page_say(
            page, 2, 2,
            "the nearest lacks %s on each GPU: allow more GPUs (--max-gpus), others (--gpu any) or a shorter --seq",
            dtp_number_format_memory((uint64_t)r->missing_bytes, missing, sizeof missing));
    } else if (!r->any_ends) {
        dtp_page_say(page, 2, 2,
                     "whatever fits fails, or writes its checkpoints, for longer than it computes: fewer GPUs "
                     "(--max-gpus), faster checkpoints (--storage) or a longer --gpu-mtbf would help");
    } else {
        say_limits(r, &search->candidates[0].variant.job.training, page);
    }
}

void dtp_search_text(const struct dtp_search_question *question, const struct dtp_search *search,
                     const struct dtp_page *page)
{
    if (search->recommended >= 0)
        print_recommended(question, search, page);
    else
        print_relax(search, page);
    if (search->count)
        print_front(search, page);
    print_runner_up(search, page);
    print_other_format(search, page);
    print_searched(question, &search->counts, page);
}
