/* Blocks that do what one before them did. Who asks for live bytes alone reads of a block how many bytes come and go in
 * which order, and what is left of its tensors: the same for all layers of a kind, and in each micro-step. So a block
 * is lowered once, what it does to memory is remembered, and those that begin alike repeat it.
 *
 * They begin alike where what they read and let go has the same bytes, owners and pools: the input, weights that were
 * gathered or cast, saved tensors, the gradient that comes from above. All else that decides their operations is the
 * plan's or in `struct begin`. What stands around a block, gathers and reductions, is the runtime's hooks' and lowered
 * each time; where hooks stand within it, or ranks divide it, nothing is remembered. */
#include "lower/block_forward.h"

#include "plan/rules.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BLOCKS 8u    /* with and without a layer below, of first and other micro-steps, forward and backward */
#define MOST_SLOTS 256u   /* of one block, and changes of them */
#define MOST_BUFFERS 192u /* that one makes */
#define NOT_KNOWN UINT32_MAX
_Static_assert(DTP_TENSOR_COUNT + 2 * DTP_MAX_PARTS + 7 * DTP_LAYER_MATRICES + 2 <= MOST_SLOTS, "room for all slots");

/* Where a block finds its buffers and leaves them. */
enum set {
    SET_TENSORS,
    SET_WEIGHTS,
    SET_GRADIENTS,
    SET_STREAM, /* the gradient of the residual stream */
    SET_REPLAYED,
    SET_CASTS,
    SET_COLUMNS,
    SET_LOW, /* this and those behind it: of adapters */
    SET_DROPPED,
    SET_UNPACKED,
    SET_WIDE,
    SET_BASE,
    SET_COUNT
};

/* Of a buffer all that live bytes know. */
struct class
{
    uint64_t bytes;
    uint32_t what;
};
#define NO_CLASS UINT32_MAX

/* But for the classes of its buffers. */
struct begin {
    uint64_t alive;
    enum dtp_owner gradient_owner;
    bool backward, checkpointed, cut, first; /* first: casts of weights are made in the first micro-step alone */
};

/* A slot's buffer afterwards: the `number`-th that the block made, or the one that its `number`-th input had. */
enum leaves { LEAVES_NONE, LEAVES_MADE, LEAVES_INPUT };
struct change {
    uint8_t set, index, leaves, number;
};

struct block {
    struct begin begin;
    uint32_t input_count, change_count, buffer_count, ops;
    struct class input[MOST_SLOTS];
    uint8_t same_as[MOST_SLOTS]; /* of an input the first that has the same buffer */
    struct change change[MOST_SLOTS];
    uint64_t alive, gathered;
    uint8_t result; /* of a forward: of the buffers that it made */
    struct dtp_live_run run;
    struct dtp_buffer buffer[MOST_BUFFERS];
};

struct dtp_lower_blocks {
    uint32_t next, repeated; /* next: that is written over */
    struct block block[MOST_BLOCKS];
};

struct dtp_lower_blocks *dtp_lower_blocks_create(void)
{
    struct dtp_lower_blocks *blocks = malloc(sizeof *blocks);
    if (!blocks)
        return NULL;
    blocks->next = blocks->repeated = 0;
    for (uint32_t i = 0; i < MOST_BLOCKS; i++)
        blocks->block[i].input_count = NOT_KNOWN;
    return blocks;
}

uint32_t dtp_lower_blocks_repeated(const struct dtp_lower_blocks *blocks)
{
    return blocks->repeated;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static dtp_buffer_id *slots_of(struct dtp_lowering *l, enum set set)
{
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    switch (set) {
    case SET_TENSORS: return module->tensor;
    case SET_WEIGHTS: return dtp_lower_state(l)->weight;
    case SET_GRADIENTS: return dtp_lower_state(l)->gradient;
    case SET_STREAM: return &l->flight->gradient;
    case SET_REPLAYED: return &l->flight->replayed;
    case SET_CASTS: return module->casts;
    case SET_COLUMNS: return module->columns;
    case SET_LOW: return module->low;
    case SET_DROPPED: return module->dropped;
    case SET_UNPACKED: return module->unpacked;
    case SET_WIDE: return module->wide;
    case SET_BASE: return module->base;
    case SET_COUNT: break;
    }
    return NULL;
}

static int slot_count(const struct dtp_lowering *l, enum set set)
{
    if (set == SET_TENSORS)
        return DTP_TENSOR_COUNT;
    if (set == SET_WEIGHTS || set == SET_GRADIENTS)
        return l->block.parts;
    if (set == SET_STREAM || set == SET_REPLAYED)
        return 1;
    return set < SET_LOW || l->adapts ? l->matrices : 0;
}

/* Of what the block begins with. Forward nothing exists but its input and weights. */
static uint32_t list_inputs(struct dtp_lowering *l, bool backward, dtp_buffer_id out[MOST_SLOTS])
{
    const struct dtp_flight_module *module = dtp_lower_flight_module(l);
    uint32_t count = 0;
    for (uint64_t left = module->alive; left; left &= left - 1)
        out[count++] = module->tensor[dtp_layer_first(left)];
    for (int set = SET_WEIGHTS; set < (backward ? SET_COUNT : SET_GRADIENTS); set++) {
        const dtp_buffer_id *slots = slots_of(l, (enum set)set);
        for (int i = 0; i < slot_count(l, (enum set)set); i++)
            out[count++] = slots[i];
    }
    return count;
}

static struct class class_of(const struct dtp_buffer *buffers, dtp_buffer_id id)
{
    if (id.index == DTP_NO_INDEX)
        return (struct class){0, NO_CLASS};
    const struct dtp_buffer *b = &buffers[id.index];
    return (struct class){b->bytes, (uint32_t)b->owner << 24 | (uint32_t)b->pool << 16 | (uint32_t)b->space << 8 |
                                        (uint32_t)b->persistent};
}

static struct begin begin_of(struct dtp_lowering *l, bool backward)
{
    return (struct begin){.alive = dtp_lower_flight_module(l)->alive,
                          .gradient_owner = backward ? l->gradient_owner : DTP_OWNER_GRADS,
                          .backward = backward,
                          .checkpointed = dtp_lower_checkpointed(l, l->layer),
                          .cut = dtp_lower_cut(l),
                          .first = l->casts.weights_once && l->first_micro_step};
}

static bool same_begin(const struct begin *a, const struct begin *b)
{
    return a->alive == b->alive && a->gradient_owner == b->gradient_owner && a->backward == b->backward &&
           a->checkpointed == b->checkpointed && a->cut == b->cut && a->first == b->first;
}

static bool begins_alike(const struct dtp_lowering *l, const struct block *block, const struct begin *begin,
                         const dtp_buffer_id *input, uint32_t count)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(l->program);
    if (block->input_count != count || !same_begin(&block->begin, begin))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct class class = class_of(buffers, input[i]);
        if (class.bytes != block->input[i].bytes || class.what != block->input[i].what ||
            input[i].index != input[block->same_as[i]].index)
            return false;
    }
    return true;
}

/* ---- remembered -------------------------------------------------------------------------------------------------- */

static void lower_by_operations(struct dtp_lowering *l, bool backward)
{
    if (backward)
        dtp_lower_block_backward(l);
    else
        dtp_lower_block_forward(l);
}

/* What a forward handed on. */
static dtp_buffer_id handed_on(const struct dtp_lowering *l)
{
    uint64_t place = l->layer + 1u - l->chunk->first;
    return place == l->chunk->layers ? l->flight->final_input : l->flight->module[place].tensor[DTP_TENSOR_INPUT];
}

static uint32_t take_all(struct dtp_lowering *l, dtp_buffer_id out[MOST_SLOTS])
{
    uint32_t count = 0;
    for (int set = 0; set < SET_COUNT; set++) {
        memcpy(&out[count], slots_of(l, (enum set)set), (size_t)slot_count(l, (enum set)set) * sizeof *out);
        count += (uint32_t)slot_count(l, (enum set)set);
    }
    return count;
}

/* False: the buffer that is left is none that the block could know. */
static bool find_left(dtp_buffer_id left, const dtp_buffer_id *input, uint32_t count, uint32_t first_buffer,
                      struct change *out)
{
    uint32_t number = 0;
    out->leaves = left.index == DTP_NO_INDEX ? LEAVES_NONE : left.index >= first_buffer ? LEAVES_MADE : LEAVES_INPUT;
    if (out->leaves == LEAVES_MADE)
        number = left.index - first_buffer;
    while (out->leaves == LEAVES_INPUT && number < count && input[number].index != left.index)
        number++;
    out->number = (uint8_t)number;
    return out->leaves != LEAVES_INPUT || number < count;
}

static bool list_changes(struct dtp_lowering *l, const dtp_buffer_id *before, const dtp_buffer_id *input,
                         uint32_t input_count, uint32_t first_buffer, struct block *out)
{
    uint32_t at = 0;
    out->change_count = 0;
    for (int set = 0; set < SET_COUNT; set++) {
        const dtp_buffer_id *slots = slots_of(l, (enum set)set);
        for (int i = 0; i < slot_count(l, (enum set)set); i++, at++) {
            if (slots[i].index == before[at].index)
                continue;
            struct change *change = &out->change[out->change_count++];
            change->set = (uint8_t)set, change->index = (uint8_t)i;
            if (!find_left(slots[i], input, input_count, first_buffer, change))
                return false;
        }
    }
    out->alive = dtp_lower_flight_module(l)->alive;
    out->gathered = dtp_lower_flight_module(l)->gathered;
    return true;
}

static void list_classes(const struct dtp_lowering *l, const dtp_buffer_id *input, uint32_t count, struct block *out)
{
    const struct dtp_buffer *buffers = dtp_program_buffers(l->program);
    out->input_count = count;
    for (uint32_t i = 0; i < count; i++) {
        out->input[i] = class_of(buffers, input[i]);
        out->same_as[i] = 0;
        while (input[out->same_as[i]].index != input[i].index)
            out->same_as[i]++;
    }
}

/* Lowers the block, and remembers it where it is one that can be repeated. */
static void lower_and_remember(struct dtp_lowering *l, const struct begin *begin, const dtp_buffer_id *input,
                               uint32_t count)
{
    struct dtp_lower_blocks *blocks = l->role.blocks;
    struct block *block = &blocks->block[blocks->next];
    dtp_buffer_id before[MOST_SLOTS];
    const size_t ops = dtp_program_op_count(l->program), first_buffer = dtp_program_buffer_count(l->program);
    take_all(l, before);
    size_t first = dtp_live_runs_begin_part(l->role.runs);
    lower_by_operations(l, begin->backward);
    size_t made = dtp_program_buffer_count(l->program) - first_buffer;
    size_t result = begin->backward ? 0 : handed_on(l).index - first_buffer;
    block->input_count = NOT_KNOWN; /* unless all of it is */
    if (!dtp_live_runs_end_part(l->role.runs, first, &block->run) || made > MOST_BUFFERS || result >= made ||
        !list_changes(l, before, input, count, (uint32_t)first_buffer, block))
        return;
    block->begin = *begin;
    block->result = (uint8_t)result;
    block->ops = (uint32_t)(dtp_program_op_count(l->program) - ops);
    block->buffer_count = (uint32_t)made;
    memcpy(block->buffer, &dtp_program_buffers(l->program)[first_buffer], made * sizeof *block->buffer);
    list_classes(l, input, count, block);
    blocks->next = (blocks->next + 1) % MOST_BLOCKS;
}

/* ---- repeated ---------------------------------------------------------------------------------------------------- */

/* False: the program is refused. */
static bool repeat(struct dtp_lowering *l, const struct block *block, const dtp_buffer_id *input)
{
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    uint32_t made = dtp_program_repeat(l->program, block->ops, block->buffer, block->buffer_count).index;
    if (made == DTP_NO_INDEX || !dtp_live_runs_repeat(l->role.runs, &block->run, l->layer, l->micro_step))
        return false;
    for (uint32_t i = 0; i < block->change_count; i++) {
        const struct change *change = &block->change[i];
        dtp_buffer_id *slot = &slots_of(l, (enum set)change->set)[change->index];
        *slot = change->leaves == LEAVES_NONE    ? DTP_NO_BUFFER
                : change->leaves == LEAVES_INPUT ? input[change->number]
                                                 : (dtp_buffer_id){made + change->number};
    }
    module->alive = block->alive;
    module->gathered = block->gathered;
    if (!block->begin.backward)
        dtp_lower_hand_on(l, l->layer + 1u, (dtp_buffer_id){made + block->result});
    l->last_op[DTP_STREAM_COMPUTE] = (dtp_op_id){(uint32_t)dtp_program_op_count(l->program) - 1};
    l->awaited = DTP_NO_OP;
    l->role.blocks->repeated++;
    return true;
}

/* Whether all that decides a block's operations is known here. */
static bool repeats(const struct dtp_lowering *l, bool backward)
{
    const struct dtp_lower_hooks *hooks = l->hooks;
    const struct dtp_megatron_plan *asked = &l->narrow_plan->megatron;
    bool divided = l->tp > 1 || l->plan->cp > 1 || l->role.pipeline;
    bool differ = l->transformer->experts || l->chunk->ahead_layers || asked->bf16_first || asked->bf16_last;
    bool within = hooks->fetch || hooks->unfetch || hooks->narrow ||
                  (backward && (hooks->gradient_made || dtp_plan_gathers_for_replays(l->plan)));
    return l->role.blocks && l->role.runs && !divided && !differ && !within;
}

void dtp_lower_block(struct dtp_lowering *l, bool backward)
{
    dtp_buffer_id input[MOST_SLOTS];
    if (!repeats(l, backward)) {
        lower_by_operations(l, backward);
        return;
    }
    if (l->adapts && !backward)
        dtp_lower_clear_adapters(dtp_lower_flight_module(l));
    const struct begin begin = begin_of(l, backward);
    const uint32_t count = list_inputs(l, backward, input);
    const struct block *known = l->role.blocks->block;
    uint32_t at = 0;
    while (at < MOST_BLOCKS && !begins_alike(l, &known[at], &begin, input, count))
        at++;
    if (at == MOST_BLOCKS)
        lower_and_remember(l, &begin, input, count);
    else if (!repeat(l, &known[at], input))
        lower_by_operations(l, backward);
}
