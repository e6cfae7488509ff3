/* Runtime dtplan's collectives of tensor parallel ranks beside products (tp_overlap): what is sent stays, what the step
 * waits for goes down, and the closed form says so as the simulated step program does. */
#include "sim/simulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include <math.h>

#include "lib/job_of_settings.h"

#define JOB                                                                                                            \
    "layers=4 hidden=4096 heads=32 ffn=11008 vocab=32000 seq=2048 runtime=dtplan gpu=h200 strategy=ddp micro_batch=4 " \
    "gradient_norm=false "

static struct dtp_faults faults;

static void simulate(const char *words, bool beside, struct dtp_simulated *out)
{
    const struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_job job;
    char text[600];
    snprintf(text, sizeof text, JOB "%s tp_overlap=%s", words, beside ? "true" : "false");
    enum dtp_status status = job_of_settings(text, &job, &faults);
    if (status == DTP_OK)
        status = dtp_simulated_create(&job, &options, out, &faults);
    if (status != DTP_OK)
        fail_msg("%s: %s", words, faults.text[0]);
}

/* Seconds in which collectives of tensor parallel ranks run while a product does. */
static double beside_products_s(const struct dtp_simulated *s)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    const struct dtp_timeline *t = &s->timeline;
    double seconds = 0;
    for (size_t i = 0; i < s->timeline.op_count; i++)
        for (size_t k = 0; k < s->timeline.op_count && ops[i].stream == DTP_STREAM_TENSOR; k++)
            if (ops[k].kind == DTP_OP_MATMUL)
                seconds +=
                    fmax(0, fmin(t->span[i].end_s, t->span[k].end_s) - fmax(t->span[i].start_s, t->span[k].start_s));
    return seconds;
}

/* Of the ten collectives of a layer four stand beside products: of backward's projections that gather, rows and sum of
 * each. Where backward is split only the rows do, and nothing of a stage's first. */
static void test_what_stands_beside(void **state)
{
    static const struct {
        const char *words;
        double hides; /* of the time of the layers' collectives, where it is not longer than the products */
    } rows[] = {{"gpus=2 tp=2", 4.0 / 10}, {"gpus=4 tp=4", 4.0 / 10}, {"gpus=4 tp=2 pp=2 accumulate=4", 4.0 / 10}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct dtp_simulated apart, beside;
        simulate(rows[i].words, false, &apart);
        simulate(rows[i].words, true, &beside);
        for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++) {
            assert_int_equal(apart.totals.sent_bytes[c], beside.totals.sent_bytes[c]);
            assert_int_equal(apart.totals.count[c], beside.totals.count[c]);
        }
        double of_layers_s = 0;
        for (size_t k = 0; k < apart.timeline.op_count; k++)
            of_layers_s += dtp_program_ops(apart.program)[k].stream == DTP_STREAM_TENSOR &&
                                   dtp_program_ops(apart.program)[k].layer != DTP_NO_LAYER
                               ? apart.alone_s[k]
                               : 0;
        assert_true(beside_products_s(&apart) == 0);
        double hidden = beside_products_s(&beside) / of_layers_s;
        if (hidden < 0.9 * rows[i].hides || hidden > 1.4 * rows[i].hides) /* products slow them down */
            fail_msg("%s: %.3f of the layers' collectives stand beside products", rows[i].words, hidden);
        double gain = 1 - beside.prediction.time.step_s / apart.prediction.time.step_s,
               closed = 1 - beside.closed.time.step_s / apart.closed.time.step_s;
        if (gain < 0.01 || closed < 0.5 * gain || closed > 1.5 * gain)
            fail_msg("%s: the step is %.4f shorter, by the closed form %.4f", rows[i].words, gain, closed);
        dtp_simulated_release(&apart);
        dtp_simulated_release(&beside);
    }
}

/* Nothing stands beside the sums of a split backward, and the rows stand beside products of the weights' pass. */
static void test_split_backward(void **state)
{
    static struct dtp_simulated whole, split;
    (void)state;
    simulate("gpus=4 tp=2 pp=2 accumulate=4 schedule=1f1b", true, &whole);
    simulate("gpus=4 tp=2 pp=2 accumulate=4 schedule=zb-h1", true, &split);
    double ratio = beside_products_s(&split) / beside_products_s(&whole);
    if (ratio < 0.4 || ratio > 0.75)
        fail_msg("%.3f of the seconds that stand beside products in 1f1b do in zb-h1", ratio);
    dtp_simulated_release(&whole);
    dtp_simulated_release(&split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_stands_beside),
                                       cmocka_unit_test(test_split_backward)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
