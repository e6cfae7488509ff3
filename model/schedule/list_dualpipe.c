/* DualPipe and DualPipeV: a forward of one way is overlapped with a backward of the other.
 *
 * Both are the same eight steps. Of DualPipe the two ways are two directions, which meet in the middle of the ranks; of
 * DualPipeV they are a rank's two chunks, there and back, and the last rank is the middle. `h` ranks lie between the
 * end and the middle, q of them before this one; n micro-batches go each way. From deepseek-ai/DualPipe: the order is
 * that of its step(), sends aside. */
#include "schedule/schedule_lists.h"

struct ways {
    struct dtp_pass_list *list;
    uint32_t chunk[2], base[2]; /* of the way that enters at this rank's end, and of the other */
    uint32_t forward[2], backward[2];
    size_t next_weight; /* place of the list from which the next backward without its W is looked for */
};

static void forward(struct ways *w, int way)
{
    dtp_pass_add(w->list, DTP_PASS_FORWARD, w->chunk[way], w->base[way] + w->forward[way]++);
}

static void backward(struct ways *w, int way, bool split)
{
    dtp_pass_add(w->list, split ? DTP_PASS_BACKWARD : DTP_PASS_WHOLE_BACKWARD, w->chunk[way],
                 w->base[way] + w->backward[way]++);
}

static void pair(struct ways *w, int forward_way)
{
    forward(w, forward_way);
    w->list->passes[w->list->count - 1].paired = true;
    backward(w, 1 - forward_way, false);
}

/* First in, first out, whichever way. */
static void weight(struct ways *w)
{
    const struct dtp_pass *passes = w->list->passes;
    while (passes[w->next_weight].kind != DTP_PASS_BACKWARD)
        w->next_weight++;
    dtp_pass_add(w->list, DTP_PASS_WEIGHT, passes[w->next_weight].chunk, passes[w->next_weight].micro_batch);
    w->next_weight++;
}

/* Up to the first backward, and the pairs. */
static void list_begin(struct ways *w, uint32_t h, uint32_t q, uint32_t n)
{
    for (uint32_t i = 0; i < 2 * (h - q - 1); i++)
        forward(w, 0);
    for (uint32_t i = 0; i < q + 1; i++) {
        forward(w, 0);
        forward(w, 1);
    }
    for (uint32_t i = 0; i < h - q - 1; i++) {
        backward(w, 1, true);
        weight(w);
        forward(w, 1);
    }
    for (uint32_t i = 0; i < n - 2 * h + q + 1; i++) {
        if (i == 0 && q == h - 1) { /* in the middle the first two run one after the other: the bubble is smaller */
            forward(w, 0);
            backward(w, 1, false);
        } else {
            pair(w, 0);
        }
        pair(w, 1);
    }
}

/* When one way has no forward left, and when both have none. */
static void list_end(struct ways *w, uint32_t h, uint32_t q)
{
    for (uint32_t i = 0; i < h - q - 1; i++) {
        backward(w, 1, false);
        pair(w, 1);
    }
    for (uint32_t i = 0; i < q + 1; i++) { /* the second half of these 2q + 2 leaves its W for later */
        backward(w, 1, 2 * i >= q + 1);
        backward(w, 0, 2 * i + 1 >= q + 1);
    }
    for (uint32_t i = 0; i < h - q - 1; i++) {
        weight(w);
        backward(w, 0, true);
    }
    for (uint32_t i = 0; i < q + 1; i++)
        weight(w);
}

void dtp_list_dualpipe(struct dtp_pass_list *list)
{
    uint32_t p = list->shape->ranks, n = list->shape->micro_batches / 2, r = list->rank;
    bool second = r >= p / 2; /* half of the ranks, where the second direction enters */
    struct ways w = {.list = list, .chunk = {second, !second}, .base = {second ? n : 0, second ? 0 : n}};
    uint32_t q = second ? p - 1 - r : r;
    list_begin(&w, p / 2, q, n);
    list_end(&w, p / 2, q);
}

void dtp_list_dualpipev(struct dtp_pass_list *list)
{
    struct ways w = {.list = list, .chunk = {0, 1}};
    list_begin(&w, list->shape->ranks, list->rank, list->shape->micro_batches);
    list_end(&w, list->shape->ranks, list->rank);
}
