#include "lower/miniature.h"

#include "lower/lower.h"
#include "lower/lower_hooks.h"
#include "plan/rules.h"
#include "plan/runtime.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_PERIODS 3u    /* of a step that is simulated: what begins, what ends, and one between that repeats */
#define MORE_PERIODS 2      /* that the larger miniature has: one, and its repetition */
#define NEAR_PERIODS 1      /* where the smaller one has no other ends: the repetition */
#define MOST_MICRO_STEPS 3u /* the first, one between, the last */
#define TWO_MICRO_STEPS 2u  /* the first, and one of those alike behind it */

struct step {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_lower_blocks *blocks; /* what one step says of the others' blocks, or NULL */
    struct dtp_faults *faults;
};

/* Two miniatures and what is made of them. */
struct pair {
    struct dtp_live_runs small, large, whole;
    int64_t period, more, copies; /* layers of a period; periods that the large one, the step has more than the small */
};

/* ---- how small --------------------------------------------------------------------------------------------------- */

static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    return a / dtp_common_divisor(a, b) * b;
}

static uint64_t unit_of(const struct dtp_plan *plan)
{
    return plan->wrap_layers ? plan->wrap_layers : 1;
}

static uint64_t period_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan, uint64_t pattern)
{
    uint64_t kept = plan->checkpointing == DTP_CHECKPOINT_EVERY_N ? plan->checkpoint_every : 1;
    uint64_t kinds = dtp_transformer_kind_period(transformer);
    return common_multiple(common_multiple(unit_of(plan), kept), common_multiple(pattern, kinds));
}

/* Layers by which units that are gathered further ahead than one make each end longer, and those that a runtime keeps
 * in a ring of its own from forward to backward. */
static uint64_t ahead_of(const struct dtp_plan *plan)
{
    bool own = plan->runtime->own_prefetch || !plan->prefetch_depth;
    return (plan->prefetch_depth - (own ? 0 : 1)) * unit_of(plan);
}

/* Layers at either end that stay in bf16, and behind them one that predicts further ahead. */
static uint64_t others_first(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    uint64_t first = dtp_transformer_first_layers(transformer), wide = plan->megatron.bf16_first;
    return first > wide ? first : wide;
}

static uint64_t others_last(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return plan->megatron.bf16_last + transformer->ahead_layers;
}

/* `least` layers or a few more, so many that whole periods are missing to the net's. */
static uint64_t layers_from(uint64_t least, const struct dtp_transformer *transformer, uint64_t period)
{
    return least + (transformer->layers + period - least % period) % period;
}

/* What PowerSGD and bytes of all ranks need for a bucket at a time goes by where buckets end, which is anywhere in a
 * layer. */
static bool has_period(const struct dtp_plan *plan)
{
    return !plan->runtime->counts_elements && plan->comm_hook != DTP_COMM_HOOK_POWERSGD &&
           plan->comm_hook != DTP_COMM_HOOK_INT8;
}

/* Or where they end is left to the sum over all layers. */
static bool fills_bucket(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    const struct dtp_lower_hooks *hooks = plan->runtime->lower(plan);
    return hooks->fills && hooks->fills(transformer, plan);
}

struct dtp_miniature_size dtp_miniature_size_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                                uint64_t pattern)
{
    uint64_t period = period_of(transformer, plan, pattern), first = others_first(transformer, plan);
    first += others_last(transformer, plan);
    uint64_t least = layers_from(first + LEAST_PERIODS * period + 2 * ahead_of(plan), transformer, period);
    bool small = 2 * least + period < transformer->layers;
    return (struct dtp_miniature_size){.period = period,
                                       .layers = small && has_period(plan) ? least : 0,
                                       .micro_steps =
                                           plan->accumulate < MOST_MICRO_STEPS ? plan->accumulate : MOST_MICRO_STEPS};
}

/* Where each micro-step reduces, the last one is as those between: two say what any number has live, or one, where all
 * state stands that parameters and gradients are kept in. State that is carried to the host goes another way in the
 * last; where all stands, what the others carry passes in it as well, and more besides. */
static uint32_t micro_steps_of(const struct dtp_plan *plan)
{
    bool alike = dtp_plan_reductions(plan) == plan->accumulate, stands = dtp_plan_shards_params(plan);
    uint32_t most = MOST_MICRO_STEPS;
    if (alike && plan->runtime->counts_elements && stands)
        most = 1;
    else if (alike && plan->offload == DTP_OFFLOAD_NONE)
        most = TWO_MICRO_STEPS;
    return plan->accumulate < most ? plan->accumulate : most;
}

/* Whether a layer's part of the step may be as its neighbours' at the ends of the net, too: weights stand, or the sum
 * moves them, and what a layer reduces is through when it is. Not of our executor, whose arena is known to the byte:
 * one layer, which is both ends, came to 0.03 % too much where tensor parallel ranks divide experts. */
static bool may_have_no_ends(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    const bool stands = plan->strategy == DTP_DDP || plan->strategy == DTP_ZERO1 || fills_bucket(transformer, plan);
    return !plan->runtime->own_prefetch && (stands || (plan->strategy == DTP_ZERO2 && !plan->runtime->fsdp));
}

/* Layers of both ends of a step's bytes: a unit at either is enough, for whatever lies between is compared. The ring
 * of our executor keeps units at the end of forward alone, and is as long as it ever gets: one unit more than it
 * gathers ahead, to which those come that go in between. */
static uint64_t ends_of(const struct dtp_plan *plan)
{
    uint64_t unit = unit_of(plan), ahead = ahead_of(plan);
    if (!plan->runtime->own_prefetch)
        return 2 * (unit + ahead);
    bool go = dtp_strategy_frees_weights(plan->strategy) || plan->offload != DTP_OFFLOAD_NONE;
    return ahead && !go ? unit + ahead : 2 * unit + ahead;
}

/* Of the two miniatures of a step's bytes, the larger of which has `more` periods more. None where tensor parallel
 * ranks of our executor divide experts: 0.4 % too much were seen under ZeRO-3, and why is not known. */
static struct dtp_miniature_size size_of_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                               uint64_t more)
{
    struct dtp_miniature_size size = dtp_miniature_size_of(transformer, plan, 1);
    uint64_t ends = more == NEAR_PERIODS ? size.period : ends_of(plan);
    ends += others_first(transformer, plan) + others_last(transformer, plan);
    uint64_t least = layers_from(ends, transformer, size.period);
    bool whole = plan->runtime->own_prefetch && plan->tp > 1 && transformer->experts > 0;
    bool small = 2 * least + more * size.period < transformer->layers && !whole;
    size.layers = small && (has_period(plan) || fills_bucket(transformer, plan)) ? least : 0;
    size.micro_steps = micro_steps_of(plan);
    return size;
}

/* The step of so many layers and micro-steps; its program, which the caller destroys, where `program` is not NULL. */
static enum dtp_status runs_of(const struct step *step, uint64_t layers, uint32_t micro_steps, uint32_t op_limit,
                               struct dtp_live_runs *out, struct dtp_program **program)
{
    struct dtp_transformer transformer = *step->transformer;
    struct dtp_plan plan = *step->plan;
    transformer.layers = layers;
    plan.accumulate = micro_steps;
    if (!program)
        return dtp_lower_live_runs(&transformer, step->cluster, &plan, op_limit, step->blocks, out, step->faults);
    struct dtp_program *made;
    enum dtp_status status = dtp_lower(&transformer, step->cluster, &plan, op_limit, &made, step->faults);
    if (status != DTP_OK)
        return status;
    status = dtp_live_runs_of(made, out, step->faults);
    if (status == DTP_OK)
        *program = made;
    else
        dtp_program_destroy(made);
    return status;
}

/* ---- what lines up ----------------------------------------------------------------------------------------------- */

/* Runs from a mark to the next one. */
struct stretch {
    const struct dtp_live_run *run;
    size_t count;
};
static struct stretch stretch_at(const struct dtp_live_runs *runs, size_t from)
{
    size_t end = from + 1;
    while (end < runs->count && !runs->run[end].begins)
        end++;
    return (struct stretch){&runs->run[from], end - from};
}

static bool same_kind(const struct dtp_live_run *a, const struct dtp_live_run *b)
{
    return a->shape == b->shape && a->micro_step == b->micro_step && a->fills == b->fills && a->told == b->told &&
           (a->layer == DTP_NO_LAYER) == (b->layer == DTP_NO_LAYER);
}

static bool same_but_micro_step(const struct dtp_live_run *a, const struct dtp_live_run *b)
{
    return a->shape == b->shape && a->layer == b->layer && !memcmp(&a->net, &b->net, sizeof a->net) &&
           !memcmp(&a->full, &b->full, sizeof a->full) && !memcmp(a->most, b->most, sizeof a->most);
}

static bool same_bytes(const struct dtp_live_run *a, const struct dtp_live_run *b)
{
    return same_kind(a, b) && !memcmp(&a->net, &b->net, sizeof a->net) && !memcmp(&a->full, &b->full, sizeof a->full) &&
           !memcmp(a->most, b->most, sizeof a->most);
}

/* Of what grows by equal bytes with each period. */
static int64_t line(int64_t small, int64_t large, const struct pair *pair)
{
    return small + pair->copies * (large - small) / pair->more;
}

static struct dtp_live_sum line_of_sums(const struct dtp_live_sum *small, const struct dtp_live_sum *large,
                                        const struct pair *pair)
{
    struct dtp_live_sum sum = {.total_bytes = 0};
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++) {
        sum.bytes[owner] = line(small->bytes[owner], large->bytes[owner], pair);
        sum.total_bytes += sum.bytes[owner];
    }
    return sum;
}

static struct dtp_live_pools line_of_pools(const struct dtp_live_pools *small, const struct dtp_live_pools *large,
                                           const struct pair *pair)
{
    struct dtp_live_pools pools;
    for (int pool = 0; pool < DTP_STREAM_COUNT; pool++)
        pools.bytes[pool] = line(small->bytes[pool], large->bytes[pool], pair);
    return pools;
}

/* All sums, which stand at the end of a run. */
static bool same_sums(const struct dtp_live_run *a, const struct dtp_live_run *b)
{
    return !memcmp(&a->net, &b->net, sizeof *a - offsetof(struct dtp_live_run, net));
}

/* From what the run has in the small miniature. */
static void add_lines(struct dtp_live_run *run, const struct dtp_live_run *large, const struct pair *pair)
{
    run->net = line_of_sums(&run->net, &large->net, pair);
    run->full = line_of_sums(&run->full, &large->full, pair);
    run->pools_net = line_of_pools(&run->pools_net, &large->pools_net, pair);
    run->pools_most = line_of_pools(&run->pools_most, &large->pools_most, pair);
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        run->most[owner] = line(run->most[owner], large->most[owner], pair);
}

/* Adds the run that is `small` in one miniature and `large` in the other. False: no memory, or layers that do not
 * count from either end of the net. */
static bool add_line(struct pair *pair, const struct dtp_live_run *small, const struct dtp_live_run *large)
{
    struct dtp_live_run *run = dtp_live_runs_add(&pair->whole);
    if (!run)
        return false;
    int64_t copies = pair->copies, moved = (int64_t)large->layer - (int64_t)small->layer;
    *run = *small;
    run->layer = (uint16_t)(small->layer + copies * moved / pair->more);
    if (!same_sums(small, large))
        add_lines(run, large, pair);
    return moved == 0 || moved == pair->more * pair->period;
}

/* Whether run `later` does to the byte what `earlier` did, a period further on in the net; of the root the same. */
static bool repeats(const struct dtp_live_run *earlier, const struct dtp_live_run *later, int64_t period)
{
    int64_t moved = (int64_t)later->layer - (int64_t)earlier->layer;
    bool root = earlier->layer == DTP_NO_LAYER || later->layer == DTP_NO_LAYER;
    return same_bytes(earlier, later) && moved * moved == (root ? 0 : period * period);
}

/* Runs of a stretch from `at` on that as many behind them repeat, or, where the larger miniature has no more than the
 * repetition, that repeat as many before them; 0: none do. */
static size_t inserted_at(struct stretch of, size_t at, const struct pair *pair)
{
    const bool near = pair->more == NEAR_PERIODS;
    const size_t left = of.count - at, most = near ? (at < left ? at : left) : left / MORE_PERIODS;
    for (size_t count = 1; count <= most; count++) {
        const struct dtp_live_run *first = near ? &of.run[at - count] : &of.run[at];
        size_t equal = 0;
        while (equal < count && repeats(&first[equal], &first[equal] + count, pair->period))
            equal++;
        if (equal == count)
            return count;
    }
    return 0;
}

/* Of another micro-step, which does `as` where this one does `small`, what it does where this one does `run`. NULL:
 * this one does it nowhere, or that one not the same wherever this one does. */
static const struct dtp_live_run *image_of(struct stretch small, const struct dtp_live_run *as,
                                           const struct dtp_live_run *run)
{
    const struct dtp_live_run *image = NULL;
    for (size_t i = 0; i < small.count; i++) {
        if (!same_bytes(&small.run[i], run))
            continue;
        if (image && !same_bytes(image, &as[i]))
            return NULL;
        image = &as[i];
    }
    return image;
}

/* Adds the `count` runs at `at` of the larger miniature, which others repeat, as often as the step has them more, or
 * their images. A sweep down the net begins with the layers that lie behind those inserted. */
static bool add_copies(struct pair *pair, struct stretch small, const struct dtp_live_run *as,
                       const struct dtp_live_run *at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct dtp_live_run *one = as ? image_of(small, as, &at[i]) : &at[i];
        struct dtp_live_run *run = one ? dtp_live_runs_add(&pair->whole) : NULL;
        if (!run)
            return false;
        *run = *one;
        run->layer = at[i].layer;
        const struct dtp_live_run *earlier = pair->more == NEAR_PERIODS ? &at[i] - count : &at[i];
        run->layers_on = (int32_t)earlier[count].layer - (int32_t)earlier->layer;
        if (run->layers_on < 0)
            run->layer = (uint16_t)(run->layer + (pair->copies - pair->more) * pair->period);
        run->again = (uint32_t)pair->copies - 1;
        run->stretch = i == 0 ? (uint32_t)count : 0;
    }
    return true;
}

/* Whether a run of one miniature is one of the other: of a layer, to the byte. */
static bool same(const struct dtp_live_run *small, const struct dtp_live_run *large)
{
    return small->layer == DTP_NO_LAYER ? same_kind(small, large) : same_bytes(small, large);
}

/* Adds the image of a run that is `small` in one miniature and `large` in the other. False: no memory, or it has not
 * the same bytes in both, so that those of its image are not known. */
static bool add_image(struct pair *pair, const struct dtp_live_run *image, const struct dtp_live_run *small,
                      const struct dtp_live_run *large)
{
    if (!same_bytes(small, large) || image->layer != small->layer || !add_line(pair, small, large))
        return false;
    struct dtp_live_run *run = &pair->whole.run[pair->whole.count - 1];
    uint16_t layer = run->layer;
    *run = *image;
    run->layer = layer;
    return true;
}

/* One stretch of the step from those of the miniatures. There may be several sweeps over the layers in it, each of
 * which has some periods more in the larger one. `as`: in place of the stretch that of another micro-step, whose runs
 * these are in the small one; NULL: itself. */
static bool line_up(struct pair *pair, struct stretch small, struct stretch large, const struct dtp_live_run *as)
{
    size_t at = 0; /* of the small one */
    for (size_t i = 0; i < large.count;) {
        if (at < small.count && same(&small.run[at], &large.run[i])) {
            bool added = as ? add_image(pair, &as[at], &small.run[at], &large.run[i])
                            : add_line(pair, &small.run[at], &large.run[i]);
            if (!added)
                return false;
            at++, i++;
            continue;
        }
        size_t count = inserted_at(large, i, pair);
        if (!count || !add_copies(pair, small, as, &large.run[i], count))
            return false;
        i += (size_t)pair->more * count;
    }
    return at == small.count;
}

static void add_left(struct dtp_live_sum *left, const struct dtp_live_run *run)
{
    for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
        left->bytes[owner] += run->net.bytes[owner] * (1 + (int64_t)run->again);
}

static bool is_nothing(const struct dtp_live_sum *left)
{
    static const struct dtp_live_sum nothing;
    return !memcmp(left->bytes, nothing.bytes, sizeof left->bytes);
}

/* Whether micro-step `index`, 1 of any number but one, leaves nothing behind beyond what it found; the optimizer's step
 * is named after the last. */
static bool leaves_nothing(const struct dtp_live_runs *runs, uint16_t index)
{
    struct dtp_live_sum left = {.total_bytes = 0};
    for (size_t i = 0; i < runs->count; i++)
        if (runs->run[i].micro_step == index && runs->run[i].phase != DTP_PHASE_STEP)
            add_left(&left, &runs->run[i]);
    return is_nothing(&left);
}

/* What is at rest, and nothing else yet. */
static void begin_whole(struct pair *pair)
{
    pair->whole.count = 0;
    pair->whole.bucket = pair->large.bucket;
    pair->whole.teller = pair->large.teller;
    pair->whole.standing = line_of_sums(&pair->small.standing, &pair->large.standing, pair);
    pair->whole.pools_standing = line_of_pools(&pair->small.pools_standing, &pair->large.pools_standing, pair);
}

static bool line_up_all(struct pair *pair, bool several, uint32_t micro_steps)
{
    size_t small = 0, large = 0;
    begin_whole(pair);
    while (small < pair->small.count && large < pair->large.count) {
        struct stretch of_small = stretch_at(&pair->small, small), of_large = stretch_at(&pair->large, large);
        if (!line_up(pair, of_small, of_large, NULL))
            return false;
        small += of_small.count;
        large += of_large.count;
    }
    return small == pair->small.count && large == pair->large.count &&
           (!several || leaves_nothing(&pair->whole, micro_steps > 1));
}

/* ---- fewer micro-steps of the larger miniature ------------------------------------------------------------------- */

/* That of `micro_step` which is what `like` is in its own, before the first mark as well; .run NULL: there is none. */
static struct stretch find(const struct dtp_live_runs *runs, uint16_t micro_step, const struct dtp_live_run *like)
{
    for (size_t at = 0; at < runs->count;) {
        struct stretch here = stretch_at(runs, at);
        if (here.run->micro_step == micro_step && here.run->phase == like->phase && here.run->begins == like->begins)
            return here;
        at += here.count;
    }
    return (struct stretch){NULL, 0};
}

/* Whether all that comes in the step also goes. */
static bool balances(const struct dtp_live_runs *runs)
{
    struct dtp_live_sum left = {.total_bytes = 0};
    left.bytes[DTP_OWNER_GRADS] = runs->bucket.kept_bytes;
    for (size_t i = 0; i < runs->count; i++)
        add_left(&left, &runs->run[i]);
    return is_nothing(&left);
}

/* Micro-step `from` of a program is one that others call `to`. */
static void renumber(struct dtp_live_runs *runs, uint16_t from, uint16_t to)
{
    for (size_t i = 0; i < runs->count; i++)
        if (runs->run[i].micro_step == from)
            runs->run[i].micro_step = to;
}

/* Whether that can be, by the small miniature: a forward behind the first micro-step is as one behind the second, and
 * gradients of layers are not made all at once, which grows with the net and is no more what the second does. */
static bool may_line_up_two(const struct pair *pair)
{
    struct stretch first = stretch_at(&pair->small, 0), second = {NULL, 0}, third = {NULL, 0};
    int64_t of_root = 0, of_layers = 0;
    for (size_t at = 0; at < pair->small.count; at += first.count) {
        first = stretch_at(&pair->small, at);
        const struct dtp_live_run *run = first.run;
        if (run->begins && run->phase == DTP_PHASE_FORWARD_END && run->micro_step > 0)
            *(run->micro_step == 1 ? &second : &third) = first;
        for (size_t i = 0; i < first.count && run->micro_step == 0; i++)
            *(run[i].layer == DTP_NO_LAYER ? &of_root : &of_layers) += run[i].net.bytes[DTP_OWNER_GRADS];
    }
    for (size_t i = 0; i < second.count && second.count == third.count; i++)
        if (!same_but_micro_step(&second.run[i], &third.run[i]))
            return false;
    return second.count == third.count && (of_layers || !of_root);
}

/* The step of MOST_MICRO_STEPS. The larger miniature has the first and the last, as the small one calls them. What the
 * one between does in its layers is what it does in the small one wherever the first does the same as there. */
static bool line_up_two(struct pair *pair)
{
    const uint16_t between = 1;
    begin_whole(pair);
    for (size_t at = 0; at < pair->small.count;) {
        struct stretch here = stretch_at(&pair->small, at);
        bool is_between = here.run->micro_step == between;
        uint16_t of = is_between ? 0 : here.run->micro_step;
        struct stretch small = find(&pair->small, of, here.run), large = find(&pair->large, of, here.run);
        if (!large.run || small.count != here.count || !line_up(pair, small, large, is_between ? here.run : NULL))
            return false;
        at += here.count;
    }
    return balances(&pair->whole) && leaves_nothing(&pair->whole, between);
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static enum dtp_status from_miniatures(const struct step *step, struct pair *pair,
                                       const struct dtp_miniature_size *size, bool *lined_up)
{
    uint64_t layers = size->layers;
    pair->copies = (int64_t)(step->transformer->layers - layers) / pair->period;
    pair->small.fills = pair->large.fills = fills_bucket(step->transformer, step->plan) ? step->transformer->layers : 0;
    enum dtp_status status = runs_of(step, layers, size->micro_steps, 0, &pair->small, NULL);
    if (status == DTP_OK && size->micro_steps == MOST_MICRO_STEPS && may_line_up_two(pair)) {
        status = runs_of(step, layers + (uint64_t)pair->more * size->period, TWO_MICRO_STEPS, 0, &pair->large, NULL);
        renumber(&pair->large, 1, MOST_MICRO_STEPS - 1);
        *lined_up = status == DTP_OK && !pair->large.overfull && line_up_two(pair);
        if (*lined_up)
            return status;
    }
    if (status == DTP_OK)
        status = runs_of(step, layers + (uint64_t)pair->more * size->period, size->micro_steps, 0, &pair->large, NULL);
    *lined_up = status == DTP_OK && !pair->large.overfull &&
                line_up_all(pair, step->plan->accumulate > size->micro_steps, size->micro_steps);
    return status;
}

/* All layers, of many micro-steps the few that *micro_steps says where those between repeat; else it becomes all. */
static enum dtp_status from_all_layers(const struct step *step, uint32_t *micro_steps, uint32_t op_limit,
                                       struct dtp_live_runs *out, struct dtp_program **program)
{
    uint64_t layers = step->transformer->layers;
    out->joined = true; /* nothing is lined up, only added up */
    out->half = dtp_live_runs_half(layers);
    for (;;) {
        enum dtp_status status = runs_of(step, layers, *micro_steps, op_limit, out, program);
        if (status != DTP_OK || step->plan->accumulate == *micro_steps || leaves_nothing(out, *micro_steps > 1))
            return status;
        if (program)
            dtp_program_destroy(*program);
        *micro_steps = *micro_steps == 1 ? TWO_MICRO_STEPS : step->plan->accumulate;
    }
}

enum dtp_status dtp_miniature_whole(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_program **out, struct dtp_faults *faults)
{
    struct step step = {transformer, cluster, plan, NULL, faults};
    struct dtp_live_runs runs = {.run = NULL};
    uint32_t micro_steps = dtp_miniature_size_of(transformer, plan, 1).micro_steps;
    enum dtp_status status = from_all_layers(&step, &micro_steps, 0, &runs, out);
    dtp_live_runs_release(&runs);
    return status;
}

/* Without the runs of micro-step `index`. */
static void leave_out(struct dtp_live_runs *runs, uint16_t index)
{
    size_t kept = 0;
    for (size_t i = 0; i < runs->count; i++)
        if (runs->run[i].micro_step != index)
            runs->run[kept++] = runs->run[i];
    runs->count = kept;
}

enum dtp_status dtp_miniature_of_many(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan, uint32_t op_limit, struct dtp_miniature *out,
                                      struct dtp_miniature_shorter *shorter, struct dtp_faults *faults)
{
    struct step step = {transformer, cluster, plan, dtp_lower_blocks_create(), faults};
    struct dtp_miniature_size size;
    struct pair pair = {.more = may_have_no_ends(transformer, plan) ? NEAR_PERIODS : MORE_PERIODS};
    bool lined_up = false;
    enum dtp_status status;
    for (;; pair.more = MORE_PERIODS) {
        size = size_of_bytes(transformer, plan, (uint64_t)pair.more);
        pair.period = (int64_t)size.period;
        status = size.layers ? from_miniatures(&step, &pair, &size, &lined_up) : DTP_OK;
        if (status != DTP_OK || lined_up || pair.more == MORE_PERIODS)
            break;
    }
    if (status == DTP_OK && !lined_up)
        status = from_all_layers(&step, &size.micro_steps, op_limit, &pair.whole, NULL);
    if (status == DTP_OK) {
        dtp_live_bytes_sum(&pair.whole, transformer->layers, &out->live);
        out->layers = lined_up ? size.layers + (uint64_t)pair.more * size.period : 0;
        out->micro_steps = size.micro_steps;
    }
    bool three = status == DTP_OK && size.micro_steps == MOST_MICRO_STEPS;
    bool few = status == DTP_OK && size.micro_steps <= TWO_MICRO_STEPS && plan->accumulate > TWO_MICRO_STEPS;
    if (shorter)
        shorter->known = few || (three && leaves_nothing(&pair.whole, 1));
    if (shorter && few)
        shorter->live = out->live;
    if (shorter && shorter->known && three) {
        leave_out(&pair.whole, 1);
        dtp_live_bytes_sum(&pair.whole, transformer->layers, &shorter->live);
    }
    dtp_live_runs_release(&pair.small);
    dtp_live_runs_release(&pair.large);
    dtp_live_runs_release(&pair.whole);
    free(step.blocks);
    return status;
}

enum dtp_status dtp_miniature_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                 const struct dtp_plan *plan, uint32_t op_limit, struct dtp_miniature *out,
                                 struct dtp_faults *faults)
{
    return dtp_miniature_of_many(transformer, cluster, plan, op_limit, out, NULL, faults);
}
