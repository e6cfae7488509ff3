#include "closed/fetched.h"

#include "base/bytes.h"
#include "base/pick.h"

#include <stddef.h>
#include <string.h>

/* Where the tensor at a place is used before, or next. False: nowhere. */
static bool used(const struct dtp_fetched *f, const struct dtp_fetched_place *p, bool next, uint64_t *at)
{
    const int part = f->order[p->visit].part[p->index];
    const bool again = dtp_fetched_replayed(f, p->layer),
               tied = part == DTP_FETCHED_EMBEDDING && f->order[DTP_FETCHED_LAST].part[1] == DTP_FETCHED_EMBEDDING;
    int visit = DTP_FETCHED_END;
    switch (p->visit) {
    case DTP_FETCHED_FIRST: visit = !next ? DTP_FETCHED_END : tied ? DTP_FETCHED_LAST : DTP_FETCHED_FIRST_BACK; break;
    case DTP_FETCHED_FORWARD:
        visit = !next ? DTP_FETCHED_END : again ? DTP_FETCHED_REPLAY : DTP_FETCHED_BACKWARD;
        break;
    case DTP_FETCHED_LAST: visit = next ? DTP_FETCHED_LAST_BACK : tied ? DTP_FETCHED_FIRST : DTP_FETCHED_END; break;
    case DTP_FETCHED_LAST_BACK:
        visit = !next ? DTP_FETCHED_LAST : tied ? DTP_FETCHED_FIRST_BACK : DTP_FETCHED_END;
        break;
    case DTP_FETCHED_REPLAY: visit = next ? DTP_FETCHED_BACKWARD : DTP_FETCHED_FORWARD; break;
    case DTP_FETCHED_BACKWARD: visit = next ? DTP_FETCHED_END : again ? DTP_FETCHED_REPLAY : DTP_FETCHED_FORWARD; break;
    case DTP_FETCHED_FIRST_BACK:
        visit = next ? DTP_FETCHED_END : tied ? DTP_FETCHED_LAST_BACK : DTP_FETCHED_FIRST;
        break;
    }
    if (visit == DTP_FETCHED_END)
        return false;
    const struct dtp_fetched_order *o = &f->order[visit];
    uint64_t above = f->layers - 1 - p->layer;
    above += f->every > 1 ? f->replays - dtp_divide_up(p->layer + 1, f->every) : f->every * above;
    *at = o->before[o->index[part]];
    switch (visit) {
    case DTP_FETCHED_FORWARD: *at += f->order[DTP_FETCHED_FIRST].before[2] + p->layer * f->block; break;
    case DTP_FETCHED_LAST: *at += f->turn - 2 * f->order[DTP_FETCHED_LAST].before[2]; break;
    case DTP_FETCHED_LAST_BACK: *at += f->turn - f->order[DTP_FETCHED_LAST].before[2]; break;
    case DTP_FETCHED_REPLAY:
    case DTP_FETCHED_BACKWARD: *at += f->turn + (above + (visit == DTP_FETCHED_BACKWARD && again)) * f->block; break;
    case DTP_FETCHED_FIRST_BACK: *at += f->turn + (f->layers + f->replays) * f->block; break;
    }
    return true;
}

/* On to a tensor that is in the trace. */
static void settle(const struct dtp_fetched *f, struct dtp_fetched_place *p)
{
    for (; p->visit != DTP_FETCHED_END; p->index = 0) {
        const struct dtp_fetched_order *o = &f->order[p->visit];
        while (p->index < o->count && !o->size[p->index])
            p->index++;
        if (p->index < o->count)
            return;
        if (p->visit == DTP_FETCHED_FORWARD ? ++p->layer < f->layers : false)
            continue;
        if (p->visit == DTP_FETCHED_LAST_BACK || p->visit == DTP_FETCHED_BACKWARD) {
            p->layer = p->visit == DTP_FETCHED_BACKWARD ? p->layer : f->layers;
            p->visit = !p->layer                             ? DTP_FETCHED_FIRST_BACK
                       : dtp_fetched_replayed(f, --p->layer) ? DTP_FETCHED_REPLAY
                                                             : DTP_FETCHED_BACKWARD;
        } else {
            p->layer = p->visit == DTP_FETCHED_FORWARD ? 0 : p->layer, p->visit++;
        }
    }
}

static void advance(const struct dtp_fetched *f, struct dtp_fetched_place *p)
{
    p->at += f->order[p->visit].size[p->index++];
    settle(f, p);
}

/* Whether the tensor at a place, of so many elements, stands since its use before. */
static bool stands(const struct dtp_fetched *f, const struct dtp_fetched_place *p, uint64_t elements)
{
    uint64_t before;
    return used(f, p, false, &before) &&
           ((p->at > f->use.at && before >= f->use.at) || p->at - (before + elements) < f->reuse);
}

/* Fetches the tensor in use and those ahead. Returns its elements where it alone was fetched now. */
static uint64_t fetch(struct dtp_fetched *f)
{
    const uint64_t own = f->order[f->use.visit].size[f->use.index];
    uint64_t alone = 0;
    if (f->head.at <= f->use.at) { /* nobody has passed it */
        alone = stands(f, &f->use, own) ? 0 : own;
        f->live += alone, f->head = f->use;
        advance(f, &f->head);
    }
    const uint64_t most = smaller(f->live_most > f->live ? f->live_most - f->live : 0, f->prefetch);
    struct dtp_fetched_flat flat = {.tensors = 0};
    while (flat.elements < most && f->head.visit != DTP_FETCHED_END) {
        const uint64_t next = f->order[f->head.visit].size[f->head.index];
        if (!stands(f, &f->head, next)) {
            flat.first = flat.tensors++ ? flat.first : f->head.at, flat.last = f->head.at;
            flat.elements += next, f->live += next;
        }
        advance(f, &f->head);
    }
    if (flat.tensors <= !f->narrow) /* one comes as it is */
        return alone;
    f->apart += flat.elements;
    if (f->flats - f->gone < DTP_FETCHED_FLATS) {
        f->flat[f->flats++ % DTP_FETCHED_FLATS] = flat;
        return alone;
    }
    struct dtp_fetched_flat *last = &f->flat[(f->flats - 1) % DTP_FETCHED_FLATS];
    last->last = flat.last, last->elements += flat.elements, last->tensors += flat.tensors;
    return alone;
}

static uint64_t weights(const struct dtp_fetched *f)
{
    const uint64_t given = f->grows ? smaller(f->given, f->others) : f->others,
                   seconds = f->second ? given / f->second : 0;
    return f->element_bytes * (f->persistent + f->live - f->apart + f->copying + seconds) +
           (f->narrow ? 1 : f->element_bytes) * f->apart;
}

/* Weights that stand as a tensor is used, with its second copy; none is fetched where it is in no trace. */
uint64_t dtp_fetched_use(struct dtp_fetched *f, enum dtp_fetched_visit visit, int index)
{
    f->copied = f->now;
    if (f->use.visit != (int)visit || f->use.index != index)
        return f->now;
    uint64_t copied = fetch(f), next, own = f->order[visit].size[index];
    struct dtp_fetched_flat *flat = &f->flat[f->gone % DTP_FETCHED_FLATS];
    const bool comes = f->gone < f->flats && f->use.at >= flat->first;
    if (comes && flat->elements) {
        copied = flat->elements, f->apart -= copied, flat->elements = 0;
        f->copying = flat->tensors > 1 ? copied : 0;
    }
    f->copied = weights(f) + f->narrow * copied;
    if (comes && f->use.at >= flat->last)
        f->copying = 0, f->gone++;
    if (used(f, &f->use, true, &next) && (f->head.at > next || next - (f->use.at + own) < f->reuse))
        own = 0;
    f->given += own;
    const uint64_t most = weights(f);
    f->live -= own;
    f->now = most - f->element_bytes * own;
    advance(f, &f->use);
    return most;
}

/* At the begin of a layer: how many are as the one before was, where neither place comes near the ends. They are passed
 * over. */
uint64_t dtp_fetched_pass_over(struct dtp_fetched *f, uint64_t layer, bool back)
{
    const bool all = f->head.visit == DTP_FETCHED_END; /* all stand that are used again */
    if (!f->block)
        return !back ? f->layers - 1 - layer : f->layers - 1 - layer >= f->every ? layer : 0;
    if (back && f->every && !dtp_fetched_replayed(f, layer))
        return 0;
    const uint64_t period = back && f->every ? f->every : 1, use = f->use.layer, head = f->head.layer;
    const struct dtp_fetched_start before = f->start,
                                   now = {all ? 0 : (back ? -1 : 1) * ((int64_t)head - (int64_t)use),
                                          (uint64_t)(back ? DTP_FETCHED_END + f->head.visit : f->head.visit),
                                          (uint64_t)f->head.index,
                                          f->live,
                                          f->apart,
                                          f->copying,
                                          f->flats - f->gone};
    f->start = now;
    bool same = all ? before.visit == now.visit && !f->apart && !f->copying : !memcmp(&now, &before, sizeof now);
    uint64_t left = all ? (back ? use : f->layers - 1 - use) : back ? head : f->layers - 1 - head, next;
    f->reach = same ? f->reach : f->head.at;
    same = same && (all || f->flats == f->gone || f->use.at >= f->reach);
    if (!same || left < 2 * period ||
        (back ? f->use.visit < DTP_FETCHED_REPLAY || f->head.visit < DTP_FETCHED_REPLAY
              : f->head.visit != DTP_FETCHED_FORWARD && !all))
        return 0;
    uint64_t count = (left - 1) / period * period;
    struct dtp_fetched_place place = {.visit = DTP_FETCHED_FORWARD, .index = f->order[DTP_FETCHED_FORWARD].count - 1};
    for (; !back && !all && count; count /= 2) { /* before what is near enough to stay */
        place.layer = use + count;
        place.at = f->order[DTP_FETCHED_FIRST].before[2] + (place.layer + 1) * f->block;
        if (used(f, &place, true, &next) && next - place.at >= f->reuse + f->block)
            break;
    }
    const uint64_t more = (count + (back && f->every ? count / period : 0)) * f->block;
    f->use.layer = back ? use - count : use + count, f->use.at += more;
    f->given += all && !back ? 0 : more;
    f->live -= all && back ? count * f->block : 0;
    f->now = weights(f);
    if (all)
        return count;
    f->head.layer = back ? head - count : head + count, f->head.at += more;
    for (uint64_t i = f->gone; i < f->flats; i++)
        f->flat[i % DTP_FETCHED_FLATS].first += more, f->flat[i % DTP_FETCHED_FLATS].last += more;
    return count;
}

static void add(struct dtp_fetched_order *o, int part, uint64_t elements)
{
    const int i = o->count++;
    o->part[i] = part, o->index[part] = i, o->size[i] = elements, o->before[i + 1] = o->before[i] + elements;
}

/* Backward goes through a block's matrices in the order of their gradients: down; gate, up; output; q, k, v; through an
 * adapter before its matrix. What is no matrix is small, and persists by any threshold; ranks have equal parts of what
 * persists, tensor by tensor. */
static void list_block(struct dtp_fetched *f, const struct dtp_fetched_matrix *matrix, int n, int inputs,
                       uint64_t whole, uint64_t threshold, uint64_t ranks)
{
    struct dtp_fetched_order *forward = &f->order[DTP_FETCHED_FORWARD], *backward = &f->order[DTP_FETCHED_BACKWARD];
    const int inner = n - 1 - inputs; /* from down to output */
    uint64_t size[DTP_FETCHED_PARTS], all = 0;
    for (int i = 0; i < n; i++) {
        const uint64_t half = matrix[i].half, other = half ? matrix[i].trained - half : 0;
        size[i] = matrix[i].elements > threshold ? matrix[i].elements : 0;
        size[n + 1 + i] = half > threshold ? matrix[i].trained : 0;
        all += matrix[i].elements + half + other;
        f->persistent += f->layers * (size[i] ? 0 : dtp_round_up(matrix[i].elements, ranks));
        f->persistent += size[n + 1 + i] ? 0 : f->layers * (dtp_round_up(half, ranks) + dtp_round_up(other, ranks));
    }
    size[n] = threshold ? 0 : whole - smaller(all, whole);
    add(forward, n, size[n]);
    for (int i = 0; i < n; i++) {
        const int back = i == 0 ? n - 1 : i < inner ? inputs + i : i == inner ? inputs : i - inner - 1;
        add(forward, i, size[i]);
        if (matrix[i].half)
            add(forward, n + 1 + i, size[n + 1 + i]);
        if (matrix[back].half)
            add(backward, n + 1 + back, size[n + 1 + back]);
        add(backward, back, size[back]);
    }
    add(backward, n, size[n]);
    f->order[DTP_FETCHED_REPLAY] = *forward;
    f->block = forward->before[forward->count];
}

static void list_root(struct dtp_fetched *f, const uint64_t *root, uint64_t threshold)
{
    const int head = root[DTP_FETCHED_HEAD] ? DTP_FETCHED_HEAD : DTP_FETCHED_EMBEDDING;
    uint64_t size[DTP_FETCHED_ROOT];
    for (int i = 0; i < DTP_FETCHED_ROOT; i++) {
        const bool norm = i == DTP_FETCHED_NORM;
        size[i] = norm && threshold ? 0 : root[i] > threshold ? root[i] : 0;
        f->persistent += norm ? 0 : root[i] - size[i], f->others += size[i];
    }
    add(&f->order[DTP_FETCHED_FIRST], DTP_FETCHED_EMBEDDING, size[DTP_FETCHED_EMBEDDING]);
    add(&f->order[DTP_FETCHED_FIRST], DTP_FETCHED_POSITION, size[DTP_FETCHED_POSITION]);
    add(&f->order[DTP_FETCHED_LAST], DTP_FETCHED_NORM, size[DTP_FETCHED_NORM]);
    add(&f->order[DTP_FETCHED_LAST], head, size[head]);
    add(&f->order[DTP_FETCHED_LAST_BACK], head, size[head]);
    add(&f->order[DTP_FETCHED_LAST_BACK], DTP_FETCHED_NORM, size[DTP_FETCHED_NORM]);
    add(&f->order[DTP_FETCHED_FIRST_BACK], DTP_FETCHED_POSITION, size[DTP_FETCHED_POSITION]);
    add(&f->order[DTP_FETCHED_FIRST_BACK], DTP_FETCHED_EMBEDDING, size[DTP_FETCHED_EMBEDDING]);
}

void dtp_fetched_start(struct dtp_fetched *f, const struct dtp_plan *plan, const struct dtp_units *units,
                       const struct dtp_fetched_matrix *matrix, int matrices, uint64_t every)
{
    const struct dtp_deepspeed_plan *asked = &plan->deepspeed;
    const bool none = units->ranks == 1 && plan->offload < DTP_OFFLOAD_PARAMS; /* all are parameters, none a weight */
    const uint64_t threshold = none ? UINT64_MAX : asked->stage3_param_persistence_threshold,
                   ends = units->embedding + units->position + units->head,
                   root[] = {units->embedding, units->position, units->total - units->layers * units->layer - ends,
                             units->head};
    struct dtp_element_bytes bytes;
    dtp_element_bytes_count(plan, &bytes);
    memset(f, 0, offsetof(struct dtp_fetched, order));
    for (int i = 0; i < DTP_FETCHED_END; i++)
        f->order[i].count = 0, f->order[i].before[0] = 0;
    f->layers = units->layers, f->every = every, f->element_bytes = bytes.compute;
    f->replays = every ? dtp_divide_up(f->layers, every) : 0;
    f->live_most = asked->stage3_max_live_parameters, f->reuse = asked->stage3_max_reuse_distance;
    f->prefetch = plan->prefetch ? asked->stage3_prefetch_bucket_size : 0;
    f->second = asked->zero_hpz_partition_size > 1 ? asked->zero_hpz_partition_size : 0;
    f->narrow = asked->zero_quantized_weights, f->grows = plan->accumulate == 1;
    list_block(f, matrix, matrices, plan->fused_qkv ? 1 : 3, units->layer, threshold, units->ranks);
    list_root(f, root, threshold);
    f->persistent = none ? 0 : f->persistent, f->others += f->layers * f->block;
    f->turn = f->order[DTP_FETCHED_FIRST].before[2] + f->layers * f->block + 2 * f->order[DTP_FETCHED_LAST].before[2];
    settle(f, &f->use), settle(f, &f->head);
    f->now = weights(f);
}
