#include "runtime/deepspeed/zero3_fetch.h"

#include "base/bytes.h"
#include "plan/checkpointing.h"

#include <string.h>

uint64_t dtp_zero3_gathered(const struct dtp_plan *plan, uint64_t elements, uint64_t largest)
{
    return largest <= plan->deepspeed.stage3_param_persistence_threshold ? 0 : elements;
}

/* ---- the trace --------------------------------------------------------------------------------------------------- */

static bool replayed(const struct dtp_zero3_walk *walk, uint64_t layer)
{
    return walk->replay_every && layer % walk->replay_every == 0;
}

/* Replayed blocks among those after `layer`. */
static uint64_t replays_above(const struct dtp_zero3_walk *walk, uint64_t layer)
{
    uint64_t every = walk->replay_every;
    return every ? dtp_divide_up(walk->shape.layers, every) - dtp_divide_up(layer + 1, every) : 0;
}

static bool in_blocks(enum dtp_zero3_stage stage)
{
    return stage == DTP_ZERO3_FORWARD || stage == DTP_ZERO3_REPLAY || stage == DTP_ZERO3_BACKWARD;
}

static void add_part(struct dtp_zero3_walk *walk, enum dtp_zero3_stage stage, int part)
{
    uint64_t elements = in_blocks(stage) ? walk->shape.block[part] : walk->shape.root[part];
    if (!elements)
        return;
    int index = walk->count[stage]++;
    walk->list[stage][index] = part;
    walk->index_of[stage][part] = index;
    walk->size[stage][index] = elements;
    walk->before[stage][index + 1] = walk->before[stage][index] + elements;
}

static void add_matrix(struct dtp_zero3_walk *walk, enum dtp_zero3_stage stage, int matrix)
{
    int adapter = walk->shape.adapter[matrix];
    if (adapter && stage == DTP_ZERO3_BACKWARD)
        add_part(walk, stage, adapter);
    add_part(walk, stage, matrix);
    if (adapter && stage != DTP_ZERO3_BACKWARD)
        add_part(walk, stage, adapter);
}

/* Backward goes through a block in the order of its gradients: down; gate, up; output; q, k, v; vectors. */
static void list_parts(struct dtp_zero3_walk *walk)
{
    const struct dtp_zero3_shape *s = &walk->shape;
    int vectors = s->matrices, last = s->matrices - 1, head = s->tied ? DTP_ZERO3_EMBEDDING : DTP_ZERO3_HEAD;
    memset(walk->count, 0, sizeof walk->count);
    for (int stage = 0; stage < DTP_ZERO3_END; stage++)
        walk->before[stage][0] = 0;
    add_part(walk, DTP_ZERO3_FIRST, DTP_ZERO3_EMBEDDING);
    add_part(walk, DTP_ZERO3_FIRST, DTP_ZERO3_POSITION);
    add_part(walk, DTP_ZERO3_FIRST_BACK, DTP_ZERO3_POSITION);
    add_part(walk, DTP_ZERO3_FIRST_BACK, DTP_ZERO3_EMBEDDING);
    add_part(walk, DTP_ZERO3_LAST, DTP_ZERO3_VECTORS);
    add_part(walk, DTP_ZERO3_LAST, head);
    add_part(walk, DTP_ZERO3_LAST_BACK, head);
    add_part(walk, DTP_ZERO3_LAST_BACK, DTP_ZERO3_VECTORS);
    for (int pass = 0; pass < 2; pass++) {
        enum dtp_zero3_stage stage = pass ? DTP_ZERO3_REPLAY : DTP_ZERO3_FORWARD;
        add_part(walk, stage, vectors);
        for (int part = 0; part < s->matrices; part++)
            add_matrix(walk, stage, part);
    }
    add_matrix(walk, DTP_ZERO3_BACKWARD, last);
    for (int part = s->inputs + 1; part < last; part++)
        add_matrix(walk, DTP_ZERO3_BACKWARD, part);
    add_matrix(walk, DTP_ZERO3_BACKWARD, s->inputs);
    for (int part = 0; part < s->inputs; part++)
        add_matrix(walk, DTP_ZERO3_BACKWARD, part);
    add_part(walk, DTP_ZERO3_BACKWARD, vectors);
}

/* Enters the backward of the block before `above`, or of the embeddings. */
static void enter_block_backward(const struct dtp_zero3_walk *walk, struct dtp_zero3_use *use, uint64_t above)
{
    use->layer = above ? above - 1 : walk->shape.layers;
    use->stage = !above ? DTP_ZERO3_FIRST_BACK : replayed(walk, above - 1) ? DTP_ZERO3_REPLAY : DTP_ZERO3_BACKWARD;
}

static void next_stage(const struct dtp_zero3_walk *walk, struct dtp_zero3_use *use)
{
    uint64_t layers = walk->shape.layers;
    use->index = 0;
    switch (use->stage) {
    case DTP_ZERO3_FIRST: use->stage = DTP_ZERO3_FORWARD, use->layer = 0; break;
    case DTP_ZERO3_FORWARD:
        use->layer++;
        use->stage = use->layer < layers ? DTP_ZERO3_FORWARD : DTP_ZERO3_LAST;
        break;
    case DTP_ZERO3_LAST: use->stage = DTP_ZERO3_LAST_BACK; break;
    case DTP_ZERO3_LAST_BACK: enter_block_backward(walk, use, layers); break;
    case DTP_ZERO3_REPLAY: use->stage = DTP_ZERO3_BACKWARD; break;
    case DTP_ZERO3_BACKWARD: enter_block_backward(walk, use, use->layer); break;
    case DTP_ZERO3_FIRST_BACK:
    case DTP_ZERO3_END: use->stage = DTP_ZERO3_END; break;
    }
}

static void settle(const struct dtp_zero3_walk *walk, struct dtp_zero3_use *use)
{
    while (use->stage != DTP_ZERO3_END && use->index >= walk->count[use->stage])
        next_stage(walk, use);
}

static void advance(const struct dtp_zero3_walk *walk, struct dtp_zero3_use *use)
{
    use->elements += walk->size[use->stage][use->index];
    use->position++;
    use->index++;
    settle(walk, use);
}

static uint64_t stage_elements(const struct dtp_zero3_walk *walk, enum dtp_zero3_stage stage)
{
    return walk->before[stage][walk->count[stage]];
}

/* Position and elements before a place given by stage, layer and part; blocks of backward come from the last. */
static struct dtp_zero3_use place(const struct dtp_zero3_walk *walk, enum dtp_zero3_stage stage, uint64_t layer,
                                  int part)
{
    const int *count = walk->count;
    uint64_t layers = walk->shape.layers, blocks = layers, first = 1, last = 1;
    switch (stage) {
    case DTP_ZERO3_FIRST: blocks = first = last = 0; break;
    case DTP_ZERO3_FORWARD: blocks = layer, last = 0; break;
    case DTP_ZERO3_LAST: last = 0; break;
    case DTP_ZERO3_LAST_BACK: break;
    case DTP_ZERO3_REPLAY:
    case DTP_ZERO3_BACKWARD:
        blocks = layers + (layers - 1 - layer) + replays_above(walk, layer);
        blocks += stage == DTP_ZERO3_BACKWARD && replayed(walk, layer) ? 1 : 0;
        last = 2;
        break;
    case DTP_ZERO3_FIRST_BACK:
    case DTP_ZERO3_END: /* all blocks, those above none included */
        blocks = 2 * layers + walk->replays;
        last = 2;
        break;
    }
    struct dtp_zero3_use use = {.stage = stage, .layer = layer, .index = walk->index_of[stage][part]};
    use.position = first * (uint64_t)count[DTP_ZERO3_FIRST] + blocks * (uint64_t)count[DTP_ZERO3_FORWARD] +
                   last * (uint64_t)count[DTP_ZERO3_LAST] + (uint64_t)use.index;
    use.elements = first * stage_elements(walk, DTP_ZERO3_FIRST) + blocks * stage_elements(walk, DTP_ZERO3_FORWARD) +
                   last * stage_elements(walk, DTP_ZERO3_LAST) + walk->before[stage][use.index];
    return use;
}

/* The next use of the tensor at hand; false: none in this micro-step. */
static bool used_again(const struct dtp_zero3_walk *walk, struct dtp_zero3_use *out)
{
    const struct dtp_zero3_use *use = &walk->use;
    int part = walk->list[use->stage][use->index];
    bool tied = walk->shape.tied && part == DTP_ZERO3_EMBEDDING;
    switch (use->stage) {
    case DTP_ZERO3_FIRST:
        *out = place(walk, tied ? DTP_ZERO3_LAST : DTP_ZERO3_FIRST_BACK, use->layer, part);
        return true;
    case DTP_ZERO3_FORWARD:
        *out = place(walk, replayed(walk, use->layer) ? DTP_ZERO3_REPLAY : DTP_ZERO3_BACKWARD, use->layer, part);
        return true;
    case DTP_ZERO3_LAST: *out = place(walk, DTP_ZERO3_LAST_BACK, use->layer, part); return true;
    case DTP_ZERO3_LAST_BACK:
        if (tied)
            *out = place(walk, DTP_ZERO3_FIRST_BACK, use->layer, part);
        return tied;
    case DTP_ZERO3_REPLAY: *out = place(walk, DTP_ZERO3_BACKWARD, use->layer, part); return true;
    case DTP_ZERO3_BACKWARD:
    case DTP_ZERO3_FIRST_BACK:
    case DTP_ZERO3_END: break;
    }
    return false;
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

/* Field by field, here and below: a struct that is copied right after its fields were written waits for them. */
static void tensor_at(const struct dtp_zero3_walk *walk, const struct dtp_zero3_use *use, struct dtp_zero3_tensor *out)
{
    out->layer = in_blocks(use->stage) ? use->layer : walk->shape.layers;
    out->part = walk->list[use->stage][use->index];
    out->elements = walk->size[use->stage][use->index];
    out->starts = out->second = false;
}

/* Marks it as gathered; false where it is already. */
static bool gather(struct dtp_zero3_walk *walk, const struct dtp_zero3_tensor *tensor)
{
    uint16_t bit = (uint16_t)(1u << tensor->part);
    if (walk->live[tensor->layer] & bit)
        return false;
    walk->live[tensor->layer] |= bit;
    walk->awaited[tensor->layer] &= (uint16_t)~bit;
    walk->live_elements += tensor->elements;
    return true;
}

void dtp_zero3_start(struct dtp_zero3_walk *walk, const struct dtp_zero3_shape *shape, const struct dtp_plan *plan,
                     bool first)
{
    walk->shape = *shape;
    walk->max_live = plan->deepspeed.stage3_max_live_parameters;
    walk->max_reuse = plan->deepspeed.stage3_max_reuse_distance;
    walk->prefetch = plan->prefetch ? plan->deepspeed.stage3_prefetch_bucket_size : 0;
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    walk->replay_every = rule.calls_modules ? rule.every : 0; /* a replayed core calls no module */
    walk->replays = walk->replay_every ? dtp_divide_up(shape->layers, walk->replay_every) : 0;
    walk->live_elements = 0;
    walk->started = false;
    memset(walk->live, 0, (shape->layers + 1) * sizeof *walk->live);
    walk->seconds = plan->deepspeed.zero_hpz_partition_size > 1;
    if (first)
        memset(walk->copied, 0, (shape->layers + 1) * sizeof *walk->copied);
    list_parts(walk);
    walk->use = walk->queue = (struct dtp_zero3_use){.stage = DTP_ZERO3_FIRST, .layer = shape->layers};
    settle(walk, &walk->use);
    settle(walk, &walk->queue);
}

bool dtp_zero3_begin(struct dtp_zero3_walk *walk, struct dtp_zero3_tensor *used)
{
    if (walk->started && walk->use.stage != DTP_ZERO3_END)
        advance(walk, &walk->use);
    walk->started = true;
    walk->prefetching = false;
    if (walk->use.stage == DTP_ZERO3_END)
        return false;
    tensor_at(walk, &walk->use, &walk->at_hand);
    tensor_at(walk, &walk->use, used);
    return true;
}

static bool has_second(const struct dtp_zero3_walk *walk, const struct dtp_zero3_tensor *tensor)
{
    return walk->copied[tensor->layer] & 1u << tensor->part;
}

bool dtp_zero3_take(struct dtp_zero3_walk *walk, struct dtp_zero3_tensor *gathered)
{
    if (!walk->prefetching) {
        tensor_at(walk, &walk->use, gathered);
        gathered->second = has_second(walk, gathered);
        gathered->starts = gather(walk, gathered);
        if (walk->queue.position <= walk->use.position) {
            walk->queue = walk->use;
            advance(walk, &walk->queue);
        }
        uint64_t room = walk->max_live > walk->live_elements ? walk->max_live - walk->live_elements : 0;
        walk->budget = room < walk->prefetch ? room : walk->prefetch;
        walk->fetched = 0;
        walk->prefetching = true;
        if (gathered->starts)
            return true;
    }
    while (walk->queue.stage != DTP_ZERO3_END && walk->fetched < walk->budget) {
        tensor_at(walk, &walk->queue, gathered);
        advance(walk, &walk->queue);
        if (!gather(walk, gathered))
            continue;
        gathered->second = has_second(walk, gathered);
        gathered->starts = walk->fetched == 0 || gathered->second != walk->second;
        walk->second = gathered->second;
        walk->fetched += gathered->elements;
        return true;
    }
    return false;
}

bool dtp_zero3_awaits(struct dtp_zero3_walk *walk)
{
    uint16_t bit = (uint16_t)(1u << walk->at_hand.part);
    bool first = !(walk->awaited[walk->at_hand.layer] & bit);
    walk->awaited[walk->at_hand.layer] |= bit;
    return first;
}

bool dtp_zero3_copies(const struct dtp_zero3_walk *walk)
{
    return walk->seconds && !has_second(walk, &walk->at_hand);
}

bool dtp_zero3_end(struct dtp_zero3_walk *walk)
{
    const struct dtp_zero3_tensor *used = &walk->at_hand;
    struct dtp_zero3_use again;
    if (used_again(walk, &again) && (walk->queue.position > again.position ||
                                     again.elements - (walk->use.elements + used->elements) < walk->max_reuse))
        return false;
    walk->live[used->layer] &= (uint16_t) ~(1u << used->part);
    walk->live_elements -= used->elements;
    if (walk->seconds)
        walk->copied[used->layer] |= (uint16_t)(1u << used->part);
    return true;
}
