#include "sim/caching_allocator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc, kRoundLarge of CUDACachingAllocator.cpp. */
#define ROUND_BYTES 512u
#define MIB ((uint64_t)1 << 20)
#define SMALL_REQUEST_BYTES MIB
#define SMALL_SEGMENT_BYTES (2 * MIB)
#define MEDIUM_SEGMENT_BYTES (20 * MIB)
#define MEDIUM_REQUEST_BYTES (10 * MIB)
#define LARGE_ROUND_BYTES (2 * MIB)

/* A piece of a segment. Neighbours in address order; a segment's first has no previous, its last no next. */
struct block {
    uint64_t address, bytes;
    uint32_t previous, next;
    uint8_t pool;
    bool free, released;
};

/* Cached blocks of a pool in bins of sizes, four to a power of two; a bin's ascend by size, then address: the order of
 * the best fit. Bins keep the lists short that have to move when a block comes or goes. */
struct cached {
    uint64_t bytes, address;
    uint32_t block;
};
struct bin {
    struct cached *item;
    uint32_t count, capacity;
};
#define BIN_COUNT 192u
struct pool {
    struct bin bin[BIN_COUNT];
    uint64_t used[BIN_COUNT / 64]; /* bit of each bin: it has blocks */
    uint32_t last;                 /* expandable segments: the block at the end of the range */
};

#define POOL_COUNT (2 * DTP_STREAM_COUNT) /* per stream: large, small */

struct dtp_caching_allocator {
    struct block *block;
    uint32_t count, capacity, unused; /* unused: list through `next` of records to use again */
    struct pool pool[POOL_COUNT];
    uint64_t next_address, capacity_bytes;
    bool expandable;
    struct dtp_caching_allocator_state state;
};

struct dtp_caching_allocator *dtp_caching_allocator_create(bool expandable_segments, uint64_t capacity_bytes)
{
    struct dtp_caching_allocator *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->expandable = expandable_segments;
    a->capacity_bytes = capacity_bytes;
    a->unused = DTP_NO_BLOCK;
    a->next_address = UINT64_C(1) << 60;
    for (int i = 0; i < POOL_COUNT; i++)
        a->pool[i].last = DTP_NO_BLOCK;
    return a;
}

void dtp_caching_allocator_destroy(struct dtp_caching_allocator *allocator)
{
    if (!allocator)
        return;
    for (int i = 0; i < POOL_COUNT; i++)
        for (unsigned k = 0; k < BIN_COUNT; k++)
            free(allocator->pool[i].bin[k].item);
    free(allocator->block);
    free(allocator);
}

struct dtp_caching_allocator_state dtp_caching_allocator_look(const struct dtp_caching_allocator *allocator)
{
    return allocator->state;
}

void dtp_caching_allocator_reset_peaks(struct dtp_caching_allocator *allocator)
{
    allocator->state.allocated_peak_bytes = allocator->state.allocated_bytes;
    allocator->state.reserved_peak_bytes = allocator->state.reserved_bytes;
}

static bool is_small(uint8_t pool)
{
    return pool & 1;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static uint32_t new_block(struct dtp_caching_allocator *a)
{
    if (a->unused != DTP_NO_BLOCK) {
        uint32_t block = a->unused;
        a->unused = a->block[block].next;
        return block;
    }
    if (a->count == a->capacity) {
        uint32_t capacity = a->capacity ? 2 * a->capacity : 256;
        struct block *grown = realloc(a->block, capacity * sizeof *grown);
        if (!grown)
            return DTP_NO_BLOCK;
        a->block = grown;
        a->capacity = capacity;
    }
    return a->count++;
}

static void drop_block(struct dtp_caching_allocator *a, uint32_t block)
{
    a->block[block].next = a->unused;
    a->unused = block;
}

/* Sizes are multiples of 512 bytes below 2^57: at most 48 powers of two. */
static unsigned bin_of(uint64_t bytes)
{
    uint64_t units = bytes / ROUND_BYTES;
    unsigned power = 63u - (unsigned)__builtin_clzll(units);
    unsigned quarter = power < 2 ? (unsigned)(units << (2 - power)) & 3u : (unsigned)(units >> (power - 2)) & 3u;
    unsigned bin = 4 * power + quarter;
    return bin < BIN_COUNT ? bin : BIN_COUNT - 1;
}

/* Position of the first block of the bin that is not below (bytes, address). */
static uint32_t lower_bound(const struct bin *bin, uint64_t bytes, uint64_t address)
{
    uint32_t low = 0, high = bin->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const struct cached *c = &bin->item[middle];
        if (c->bytes < bytes || (c->bytes == bytes && c->address < address))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first bin from `from` on that has blocks, or BIN_COUNT. */
static unsigned next_used(const struct pool *pool, unsigned from)
{
    for (unsigned word = from / 64; word < BIN_COUNT / 64; word++) {
        uint64_t bits = pool->used[word];
        if (word == from / 64)
            bits &= ~UINT64_C(0) << from % 64;
        if (bits)
            return 64 * word + (unsigned)__builtin_ctzll(bits);
    }
    return BIN_COUNT;
}

/* The smallest cached block of at least `bytes`, of those of just so many from `address` on; or DTP_NO_BLOCK. */
static uint32_t fit_from(const struct pool *pool, uint64_t bytes, uint64_t address)
{
    unsigned bin = bin_of(bytes);
    uint32_t place = lower_bound(&pool->bin[bin], bytes, address);
    if (place == pool->bin[bin].count) {
        bin = next_used(pool, bin + 1);
        place = 0;
    }
    return bin < BIN_COUNT ? pool->bin[bin].item[place].block : DTP_NO_BLOCK;
}

/* The smallest free block that is large enough. The end of an expandable range counts as the size it could grow to, so
 * that any other block goes first (get_free_block). */
static uint32_t best_fit(const struct dtp_caching_allocator *a, const struct pool *pool, uint64_t bytes)
{
    uint32_t fit = fit_from(pool, bytes, 0);
    if (!a->expandable || fit == DTP_NO_BLOCK || fit != pool->last)
        return fit;
    uint32_t next = fit_from(pool, a->block[fit].bytes, a->block[fit].address + 1);
    return next == DTP_NO_BLOCK ? fit : next;
}

static bool cache(struct dtp_caching_allocator *a, uint32_t block)
{
    struct block *b = &a->block[block];
    unsigned index = bin_of(b->bytes);
    struct bin *bin = &a->pool[b->pool].bin[index];
    if (bin->count == bin->capacity) {
        uint32_t capacity = bin->capacity ? 2 * bin->capacity : 16;
        struct cached *grown = realloc(bin->item, capacity * sizeof *grown);
        if (!grown)
            return false;
        bin->item = grown;
        bin->capacity = capacity;
    }
    uint32_t place = lower_bound(bin, b->bytes, b->address);
    memmove(&bin->item[place + 1], &bin->item[place], (bin->count - place) * sizeof *bin->item);
    bin->item[place] = (struct cached){b->bytes, b->address, block};
    bin->count++;
    a->pool[b->pool].used[index / 64] |= UINT64_C(1) << index % 64;
    b->free = true;
    return true;
}

static void uncache(struct dtp_caching_allocator *a, uint32_t block)
{
    struct block *b = &a->block[block];
    unsigned index = bin_of(b->bytes);
    struct bin *bin = &a->pool[b->pool].bin[index];
    uint32_t place = lower_bound(bin, b->bytes, b->address);
    assert(place < bin->count && bin->item[place].block == block);
    bin->count--;
    memmove(&bin->item[place], &bin->item[place + 1], (bin->count - place) * sizeof *bin->item);
    if (!bin->count)
        a->pool[b->pool].used[index / 64] &= ~(UINT64_C(1) << index % 64);
    b->free = false;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

static uint64_t segment_bytes(uint64_t bytes)
{
    if (bytes <= SMALL_REQUEST_BYTES)
        return SMALL_SEGMENT_BYTES;
    return bytes < MEDIUM_REQUEST_BYTES ? MEDIUM_SEGMENT_BYTES : round_up(bytes, LARGE_ROUND_BYTES);
}

static void hold(struct dtp_caching_allocator *a, uint64_t bytes)
{
    a->state.reserved_bytes += bytes;
    if (a->state.reserved_bytes > a->state.reserved_peak_bytes)
        a->state.reserved_peak_bytes = a->state.reserved_bytes;
}

static void release_segment(struct dtp_caching_allocator *a, uint32_t block)
{
    const struct block *b = &a->block[block];
    struct pool *pool = &a->pool[b->pool];
    uncache(a, block);
    a->state.reserved_bytes -= b->bytes;
    a->state.segments--;
    if (pool->last == block)
        pool->last = DTP_NO_BLOCK;
    drop_block(a, block);
}

/* Gives back cached segments of which no part is in use (release_cached_blocks). */
static void release_cached(struct dtp_caching_allocator *a)
{
    a->state.retries++;
    for (int p = 0; p < POOL_COUNT; p++)
        for (unsigned k = next_used(&a->pool[p], 0); k < BIN_COUNT; k = next_used(&a->pool[p], k + 1))
            for (uint32_t left = a->pool[p].bin[k].count; left > 0; left--) {
                uint32_t block = a->pool[p].bin[k].item[left - 1].block;
                if (a->block[block].previous == DTP_NO_BLOCK && a->block[block].next == DTP_NO_BLOCK)
                    release_segment(a, block);
            }
}

static void make_room(struct dtp_caching_allocator *a, uint64_t bytes)
{
    if (!a->capacity_bytes || a->state.reserved_bytes + bytes <= a->capacity_bytes)
        return;
    release_cached(a);
    if (a->state.reserved_bytes + bytes > a->capacity_bytes)
        a->state.out_of_memory = true;
}

static uint32_t new_segment(struct dtp_caching_allocator *a, uint8_t pool, uint64_t bytes)
{
    make_room(a, bytes);
    uint32_t block = new_block(a);
    if (block == DTP_NO_BLOCK)
        return block;
    a->block[block] = (struct block){.address = a->next_address -= bytes,
                                     .bytes = bytes,
                                     .previous = DTP_NO_BLOCK,
                                     .next = DTP_NO_BLOCK,
                                     .pool = pool};
    a->state.segments++;
    hold(a, bytes);
    return block;
}

/* The end of the pool's range, lengthened until it holds `bytes`. Ranges lie 2^48 bytes apart. */
static uint32_t extend_range(struct dtp_caching_allocator *a, uint8_t pool, uint64_t bytes)
{
    uint64_t step = is_small(pool) ? SMALL_SEGMENT_BYTES : MEDIUM_SEGMENT_BYTES;
    uint32_t last = a->pool[pool].last;
    if (last != DTP_NO_BLOCK && a->block[last].free) {
        uint64_t more = round_up(bytes - a->block[last].bytes, step);
        if (a->capacity_bytes && a->state.reserved_bytes + more > a->capacity_bytes)
            a->state.out_of_memory = true;
        uncache(a, last);
        a->block[last].bytes += more;
        hold(a, more);
        return last;
    }
    uint32_t block = new_segment(a, pool, round_up(bytes, step));
    if (block == DTP_NO_BLOCK)
        return block;
    struct block *b = &a->block[block];
    b->address = last == DTP_NO_BLOCK ? (uint64_t)(pool + 1) << 48 : a->block[last].address + a->block[last].bytes;
    b->previous = last;
    if (last != DTP_NO_BLOCK)
        a->block[last].next = block;
    a->pool[pool].last = block;
    return block;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Cuts what a request does not need off a block in use, if that is worth keeping. */
static bool split(struct dtp_caching_allocator *a, uint32_t block, uint64_t bytes)
{
    uint64_t rest = a->block[block].bytes - bytes;
    bool fine = is_small(a->block[block].pool) || a->expandable;
    if (fine ? rest < ROUND_BYTES : rest <= SMALL_REQUEST_BYTES)
        return true;
    uint32_t tail = new_block(a);
    if (tail == DTP_NO_BLOCK)
        return false;
    struct block *b = &a->block[block];
    a->block[tail] = (struct block){
        .address = b->address + bytes, .bytes = rest, .previous = block, .next = b->next, .pool = b->pool};
    if (b->next != DTP_NO_BLOCK)
        a->block[b->next].previous = tail;
    if (a->pool[b->pool].last == block)
        a->pool[b->pool].last = tail;
    b->next = tail;
    b->bytes = bytes;
    return cache(a, tail);
}

uint32_t dtp_caching_allocator_take(struct dtp_caching_allocator *allocator, enum dtp_stream stream, uint64_t bytes)
{
    struct dtp_caching_allocator *a = allocator;
    bytes = round_up(bytes, ROUND_BYTES);
    uint8_t pool_index = (uint8_t)(2 * (unsigned)stream + (bytes <= SMALL_REQUEST_BYTES));
    uint32_t block = best_fit(a, &a->pool[pool_index], bytes);
    if (block != DTP_NO_BLOCK) {
        uncache(a, block);
    } else {
        block = a->expandable ? extend_range(a, pool_index, bytes) : new_segment(a, pool_index, segment_bytes(bytes));
    }
    if (block == DTP_NO_BLOCK || !split(a, block, bytes))
        return DTP_NO_BLOCK;
    a->block[block].released = false;
    a->state.allocated_bytes += a->block[block].bytes;
    if (a->state.allocated_bytes > a->state.allocated_peak_bytes)
        a->state.allocated_peak_bytes = a->state.allocated_bytes;
    return block;
}

/* Joins the block behind `block`, which is free, to it. */
static void swallow_next(struct dtp_caching_allocator *a, uint32_t block)
{
    struct block *b = &a->block[block];
    uint32_t next = b->next;
    b->bytes += a->block[next].bytes;
    b->next = a->block[next].next;
    if (b->next != DTP_NO_BLOCK)
        a->block[b->next].previous = block;
    if (a->pool[b->pool].last == next)
        a->pool[b->pool].last = block;
    drop_block(a, next);
}

void dtp_caching_allocator_release(struct dtp_caching_allocator *allocator, uint32_t block)
{
    struct block *b = &allocator->block[block];
    allocator->state.allocated_bytes -= b->released ? 0 : b->bytes;
    b->released = true;
}

bool dtp_caching_allocator_give(struct dtp_caching_allocator *allocator, uint32_t block)
{
    struct dtp_caching_allocator *a = allocator;
    struct block *b = &a->block[block];
    dtp_caching_allocator_release(a, block);
    if (b->next != DTP_NO_BLOCK && a->block[b->next].free) {
        uncache(a, b->next);
        swallow_next(a, block);
    }
    if (b->previous != DTP_NO_BLOCK && a->block[b->previous].free) {
        uint32_t previous = b->previous;
        uncache(a, previous);
        swallow_next(a, previous);
        block = previous;
    }
    return cache(a, block);
}
