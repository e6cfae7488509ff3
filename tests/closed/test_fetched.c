/* What ZeRO-3 has fetched (closed/fetched.h) along traces worked out by hand: two layers of three matrices, 30, 10 and
 * 20 elements, an embedding of 8 and a head of 8, in two bytes each, under a threshold of 5. Places of the trace:
 *   embedding 0 | layer 0: 8 38 48 | layer 1: 68 98 108 | head 128, 136 | layer 1: 144 164 174 | layer 0: 204 224 234 |
 *   embedding 264 */
#include "closed/fetched.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

/* A use: bytes as its tensor is copied out, as it works, behind it. */
struct step {
    enum dtp_fetched_visit visit;
    int index;
    uint64_t copied, used, now;
};

static struct dtp_fetched start(uint64_t prefetch, uint64_t reuse)
{
    static const struct dtp_fetched_matrix matrix[] = {{30, 30, 0, 3}, {10, 10, 0, 2}, {20, 20, 0, 0}};
    const struct dtp_units units = {.layers = 2, .layer = 60, .embedding = 8, .head = 8, .total = 136, .ranks = 2};
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_fetched f;
    assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
    plan.fused_qkv = true, plan.prefetch = prefetch > 0;
    plan.deepspeed.stage3_param_persistence_threshold = 5, plan.deepspeed.stage3_max_live_parameters = 1000;
    plan.deepspeed.stage3_max_reuse_distance = reuse, plan.deepspeed.stage3_prefetch_bucket_size = prefetch;
    dtp_fetched_start(&f, &plan, &units, matrix, 3, 0);
    return f;
}

static void follow(struct dtp_fetched f, const struct step *steps, int count)
{
    for (int i = 0; i < count; i++) {
        const uint64_t used = dtp_fetched_use(&f, steps[i].visit, steps[i].index);
        if (used != steps[i].used || f.now != steps[i].now || (steps[i].copied && f.copied != steps[i].copied))
            fail_msg("use %d: %d copied out, %d, then %d", i, (int)f.copied, (int)used, (int)f.now);
    }
}
#define FOLLOW(f, steps) follow(f, steps, (int)(sizeof(steps) / sizeof *(steps)))

/* Each tensor comes alone and goes behind its use. */
static void test_nothing_ahead(void **state)
{
    (void)state;
    static const struct step steps[] = {{DTP_FETCHED_FIRST, 0, 16, 16, 0},     {DTP_FETCHED_FORWARD, 1, 60, 60, 0},
                                        {DTP_FETCHED_FORWARD, 2, 20, 20, 0},   {DTP_FETCHED_FORWARD, 3, 40, 40, 0},
                                        {DTP_FETCHED_FORWARD, 1, 60, 60, 0},   {DTP_FETCHED_FORWARD, 2, 20, 20, 0},
                                        {DTP_FETCHED_FORWARD, 3, 40, 40, 0},   {DTP_FETCHED_LAST, 1, 16, 16, 0},
                                        {DTP_FETCHED_LAST_BACK, 0, 16, 16, 0}, {DTP_FETCHED_BACKWARD, 0, 40, 40, 0},
                                        {DTP_FETCHED_BACKWARD, 1, 20, 20, 0},  {DTP_FETCHED_BACKWARD, 2, 60, 60, 0},
                                        {DTP_FETCHED_BACKWARD, 0, 40, 40, 0},  {DTP_FETCHED_BACKWARD, 1, 20, 20, 0},
                                        {DTP_FETCHED_BACKWARD, 2, 60, 60, 0},  {DTP_FETCHED_FIRST_BACK, 1, 16, 16, 0}};
    FOLLOW(start(0, 0), steps);
}

/* What is used again within 25 elements stays: the head, at once, and layer 1's last matrix, 16 further on. */
static void test_used_again_soon(void **state)
{
    (void)state;
    static const struct step steps[] = {{DTP_FETCHED_FIRST, 0, 16, 16, 0},      {DTP_FETCHED_FORWARD, 1, 60, 60, 0},
                                        {DTP_FETCHED_FORWARD, 2, 20, 20, 0},    {DTP_FETCHED_FORWARD, 3, 40, 40, 0},
                                        {DTP_FETCHED_FORWARD, 1, 60, 60, 0},    {DTP_FETCHED_FORWARD, 2, 20, 20, 0},
                                        {DTP_FETCHED_FORWARD, 3, 40, 40, 40},   {DTP_FETCHED_LAST, 1, 56, 56, 56},
                                        {DTP_FETCHED_LAST_BACK, 0, 56, 56, 40}, {DTP_FETCHED_BACKWARD, 0, 40, 40, 0},
                                        {DTP_FETCHED_BACKWARD, 1, 20, 20, 0},   {DTP_FETCHED_BACKWARD, 2, 60, 60, 0}};
    FOLLOW(start(0, 25), steps);
}

/* Up to 15 elements ahead, and the tensor that passes them. The embedding's use fetches the first matrix, which comes
 * as it is; that one's both others, in one flat buffer, 30: copied out as the first is used, gone as the last is. Layer
 * 1's first fetches the head and, as all between will stand, layer 0's last for backward; its second the other two; its
 * last the embedding. Behind that nothing comes any more. */
static void test_flat_buffers(void **state)
{
    (void)state;
    static const struct step steps[] = {
        {DTP_FETCHED_FIRST, 0, 76, 76, 60},        {DTP_FETCHED_FORWARD, 1, 120, 120, 60},
        {DTP_FETCHED_FORWARD, 2, 180, 180, 160},   {DTP_FETCHED_FORWARD, 3, 220, 160, 120},
        {DTP_FETCHED_FORWARD, 1, 176, 176, 176},   {DTP_FETCHED_FORWARD, 2, 316, 316, 316},
        {DTP_FETCHED_FORWARD, 3, 332, 272, 272},   {DTP_FETCHED_LAST, 1, 328, 328, 328},
        {DTP_FETCHED_LAST_BACK, 0, 328, 328, 312}, {DTP_FETCHED_BACKWARD, 0, 312, 312, 272},
        {DTP_FETCHED_BACKWARD, 1, 272, 272, 252},  {DTP_FETCHED_BACKWARD, 2, 252, 252, 192},
        {DTP_FETCHED_BACKWARD, 0, 192, 136, 96},   {DTP_FETCHED_BACKWARD, 1, 176, 176, 156},
        {DTP_FETCHED_BACKWARD, 2, 156, 76, 16},    {DTP_FETCHED_FIRST_BACK, 1, 16, 16, 0}};
    FOLLOW(start(15, 0), steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_ahead), cmocka_unit_test(test_used_again_soon),
                                       cmocka_unit_test(test_flat_buffers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
