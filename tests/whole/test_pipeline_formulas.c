/* Formulas of plans with a pipeline, which a sweep over layouts ranks by, against their step programs: random plans of
 * all schedules, runtimes and ways of checkpointing, of small models and large ones, on one node and on several. Held
 * are tensors of the fullest rank, estimated and bounded, and seconds of the step, each over the program's. */
#include "job/bound_fit.h"
#include "job/estimate.h"
#include "closed/block_work.h"
#include "closed/closed_form_hooks.h"
#include "lower/lower_set.h"
#include "sim/op_time.h"
#include "sim/simulated.h"

#include <gsl/gsl_sort.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/job_of_settings.h"
#include "lib/random_plans.h"

#define PLANS 128
#define DRAWN RANDOM_DRAWS(PLANS)
#define MOST_DRAWS (100 * PLANS) /* most are refused */
#define MOST_OPS 60000           /* longer programs say nothing that shorter ones do not */
#define WITHIN 0.10

static struct dtp_faults faults;

/* What a runtime knows, a word drawn of each list. */
struct drawn_runtime {
    const char *words[3], *schedules, *checkpoints;
};

static const char *drawn_word(const char *list, char word[64])
{
    size_t count = 1;
    for (const char *c = list; *c; c++)
        count += *c == '|';
    for (size_t skip = random_below(count); skip; skip--)
        list = strchr(list, '|') + 1;
    snprintf(word, 64, "%.*s", (int)strcspn(list, "|"), list);
    return word;
}

/* Which plans are drawn. TENSOR: 2 to 8 ranks divide each layer, half of the plans are torch's, a third of them
 * compiled, and vocabularies are large. NARROW: torch's alone, in fp8, half of them compiled. ADAPTED: adapters on
 * frozen weights, whole or packed, under the runtimes that know them beside stages. BRIDGED: Megatron's,
 * with adapters that tensor parallel ranks divide, products in 16 or 8 bits, and collectives beside them or not. */
enum drawn { STAGES, TENSOR, NARROW, ADAPTED, BRIDGED, EXPERTS };

/* Experts, of every layer or every second, that 1 to 8 ranks divide, beside data parallel ranks that have the same
 * ones, under the runtimes that know them beside stages; Megatron-Core's tensor parallel ranks fold them. */
static void draw_expert_settings(size_t bytes, char *out)
{
    static const char *const schedules[] = {"1f1b", "gpipe", "interleaved virtual_stages=2", "zb-h1", "zb-v"},
                             *const strategies[] = {"zero1", "zero1", "ddp"},
                             *const shards[] = {"full_shard", "full_shard", "shard_grad_op"},
                             *const checkpoints[] = {"none", "none", "full"};
    const bool torch = random_below(2);
    const unsigned pp = 2u << random_below(3), ep = 1u << random_below(4), same = 1u << random_below(3),
                   tp = torch || ep == 1 ? 1 : 1u << random_below(2), gpus = pp * tp * ep * same,
                   of_node = 2u << random_below(3), heads = 8u << random_below(3),
                   layers = pp * (unsigned)(1 + random_below(5));
    snprintf(out, bytes,
             "gpu=h100-sxm gpus=%u gpus_per_node=%u network_gbit_per_s=%u pp=%u tp=%u ep=%u layers=%u hidden=%u "
             "heads=%u vocab=32000 tied_head=false ffn=%u experts=%u experts_per_token=%u expert_ffn=%u "
             "shared_expert_ffn=%u dense_layers=%u seq=%u micro_batch=%u accumulate=%u runtime=%s strategy=%s "
             "schedule=%s checkpointing=%s%s",
             gpus, of_node < gpus ? of_node : gpus, 50u << random_below(5), pp, tp, ep, layers, 64 * heads, heads,
             256 * heads, 8u << random_below(4), 2u << random_below(3), 256u << random_below(4),
             random_below(2) ? 0 : 512, random_below(3) ? 0 : (unsigned)random_below(3), 512u << random_below(4),
             1u << random_below(2), 1 + (unsigned)random_below(20), torch ? "torch" : "megatron",
             torch ? shards[random_below(3)] : strategies[random_below(3)], schedules[random_below(torch ? 3 : 5)],
             checkpoints[random_below(3)], torch && !random_below(3) ? " expert_layer_step=2" : "");
}

/* As it is typed behind `dtplan plan --`, where `=` may stand for a space. */
static void draw_settings(enum drawn drawn, size_t bytes, char *out)
{
    const bool tensor = drawn == TENSOR, adapted = drawn == ADAPTED;
    if (drawn == EXPERTS) {
        draw_expert_settings(bytes, out);
        return;
    }
    static const struct drawn_runtime runtimes[] = {
        {{"megatron strategy=zero1", "megatron strategy=ddp", "megatron strategy=zero1"},
         "gpipe|1f1b|zb-h1|zb-h2|zb-1p|zb-2p|zb-v|v-half|v-min|interleaved virtual_stages=2",
         "none|full|selective-attention"},
        {{"torch strategy=ddp", "torch strategy=full_shard", "torch strategy=shard_grad_op"},
         "gpipe|1f1b|zb-v|dualpipev|interleaved virtual_stages=2|zb-interleaved virtual_stages=2|"
         "looped-bfs virtual_stages=2",
         "none|full|selective|selective-attention|every-2"},
        {{"deepspeed strategy=zero1", "nanotron strategy=zero1", "nanotron strategy=zero1"}, "gpipe|1f1b", "none|full"},
        {{"dtplan strategy=ddp", "dtplan strategy=zero1", "dtplan strategy=shard_grad_op"},
         "gpipe|1f1b|zb-h1|zb-h2|zb-1p|zb-2p|zb-v|v-half|v-min|dualpipe|dualpipev|interleaved virtual_stages=2|"
         "zb-interleaved virtual_stages=2",
         "none|full|selective|selective-attention|every-2"}};
    static const unsigned vocabs[] = {1024, 8192, 32000, 128256, 256000, 1000000};
    static const char *const adapters[] = {" lora=8", " lora=32 lora_targets=q+v", " lora=16 base=nf4",
                                           " lora=64 base=nf4 lora_targets=mlp"};
    static const char *const recipes[] = {" precision=fp8-tensorwise", " precision=fp8-rowwise"};
    const size_t of_runtime = random_below(tensor ? 6 : 4);
    static const char *const narrow[] = {"", "", " precision=fp8-current", " precision=fp8-blockwise",
                                         " gpu=b200-sxm precision=mxfp8"};
    static const char *const bridged[] = {" lora=16", " lora=16 lora_targets=q+k+v", " lora=8 lora_targets=up+down"};
    const size_t drawn_of = drawn == BRIDGED  ? 0
                            : adapted         ? 1 + 2 * random_below(2)
                            : drawn == NARROW ? 1
                            : of_runtime < 4  ? of_runtime
                                              : 1;
    const struct drawn_runtime *runtime = &runtimes[drawn_of];
    char schedule[64], checkpoint[64];
    const unsigned pp = 2u << random_below(3),
                   tp = tensor            ? 2u << random_below(3)
                        : random_below(4) ? 1
                                          : 2,
                   dp = 1u << random_below(3), gpus = pp * tp * dp, of_node = 2u << random_below(3),
                   heads = (tensor ? 8u : 4u) << random_below(tensor ? 4 : 5);
    snprintf(out, bytes,
             "gpu=h100-sxm gpus=%u gpus_per_node=%u network_gbit_per_s=%u pp=%u tp=%u layers=%u hidden=%u heads=%u "
             "vocab=%u tied_head=%s seq=%u micro_batch=%u accumulate=%u runtime=%s schedule=%s checkpointing=%s%s%s",
             gpus, of_node < gpus ? of_node : gpus, 25u << random_below(6), pp, tp,
             pp * (unsigned)(2 + random_below(4)) - (unsigned)random_below(3), 64 * heads, heads,
             vocabs[random_below(tensor ? 6 : 4)], random_below(4) ? "false" : "true", 512u << random_below(4),
             1u << random_below(3), 1 + (unsigned)random_below(20), runtime->words[random_below(3)],
             drawn_word(runtime->schedules, schedule), drawn_word(runtime->checkpoints, checkpoint),
             drawn != STAGES && runtime == &runtimes[1] && !random_below(tensor ? 3 : 2) ? " compile=true" : "",
             drawn == NARROW    ? recipes[random_below(2)]
             : drawn == BRIDGED ? bridged[random_below(3)]
             : adapted          ? adapters[random_below(4)]
                                : "");
    if (drawn == BRIDGED)
        snprintf(out + strlen(out), bytes - strlen(out), "%s%s", narrow[random_below(5)],
                 tp > 1 && random_below(2) ? " sequence_parallel=true tp_overlap=true" : "");
}

enum what { MEMORY, BOUND, SURELY, STEP, WHATS };

/* A plan that resolves has a program, and a legal one; false: it has none for its length. */
static bool lowers(const struct dtp_job *job, const char *settings, struct dtp_simulated *simulated)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.op_limit = MOST_OPS;
    memset(&faults, 0, sizeof faults);
    if (dtp_simulated_create(job, &options, simulated, &faults) == DTP_OK)
        return true;
    if (!strstr(faults.text[0], "operations, the limit"))
        fail_msg("%s: %s", settings, faults.text[0]);
    return false;
}

/* Over the program's, each of one plan; false: it is refused, or its program is too long. */
static bool compare(const char *settings, double ratios[WHATS][PLANS], size_t place)
{
    struct dtp_job job;
    struct dtp_prediction p;
    struct dtp_bound_fit fit;
    struct dtp_simulated simulated;
    if (job_of_settings(settings, &job, &faults) != DTP_OK || !lowers(&job, settings, &simulated))
        return false;
    assert_int_equal(dtp_estimate(&job.transformer, &job.cluster, &job.plan, &p, &faults), DTP_OK);
    dtp_bound_fit_of(&job.transformer, &job.cluster, &job.plan, NULL, &fit);
    uint64_t most = 0; /* the role that takes most of its GPU may not be the one with most tensors */
    for (uint32_t role = 0; role < simulated.set.role_count; role++) {
        struct dtp_memory memory;
        assert_int_equal(dtp_simulated_role_memory(&simulated, role, &memory, NULL, &faults), DTP_OK);
        most = memory.allocated_peak_bytes > most ? memory.allocated_peak_bytes : most;
    }
    const double bytes = (double)most,
                 of_plan[WHATS] = {(double)p.memory.allocated_peak_bytes / bytes,
                                   (double)fit.memory.allocated_peak_bytes / bytes, (double)fit.least_bytes / bytes,
                                   p.time.step_s / simulated.prediction.time.step_s};
    dtp_simulated_release(&simulated);
    for (int what = 0; what < WHATS; what++)
        ratios[what][place] = of_plan[what];
    printf("%.3f %.3f %.3f %.3f of --%s\n", of_plan[MEMORY], of_plan[BOUND], of_plan[SURELY], of_plan[STEP], settings);
    return true;
}

/* So many are within WITHIN; all from `least` to `most`. */
static void check_ratios(const char *name, double *ratios, size_t count, int percent_within, double least, double most)
{
    int within = 0;
    gsl_sort(ratios, 1, count);
    for (size_t i = 0; i < count; i++)
        within += fabs(ratios[i] - 1) <= WITHIN;
    printf("%s of %zu plans, formula over program: %.2f", name, count, ratios[0]);
    for (size_t tenth = 1; tenth < 10; tenth++)
        printf(" %.2f", ratios[count * tenth / 10]);
    printf(" %.2f; %d within %.0f %%\n", ratios[count - 1], within, 100 * WITHIN);
    assert_true(ratios[0] >= least && ratios[count - 1] <= most);
    assert_true(draws_reach(within, (int)count, percent_within));
}

/* What random plans seldom have: stages of an odd number of layers, of which every second of the model's is
 * checkpointed, and ranks that each make the gradient of a whole table, with stages and without. The first three were
 * 0.87, 0.88 and 0.80 of their programs where formulas counted a rank's own layers and rows. The next four have all
 * losses before the first gradient: 0.92, 0.87 and 0.83 without any at a loss, 1.14 with all of a rank's stages. The
 * next, whose rounds are of more micro-batches than ranks, was refused where rounds were taken to be of as many. The
 * last six: 0.69 without columns of weights gathered in fp8, 0.55 and 0.71 where a single micro-batch's gradients were
 * reduced unit by unit, 1.06 with sums beside DDP's buckets at all losses, 1.19 where a last stage of the head alone
 * was taken for one of layers, 0.77 with rows of a stream in fp32 as narrow as products. */
static void test_memory_of_known_layouts(void **state)
{
    static const char *const settings[] = {
        "gpu=h200-sxm model=llama-2-7b gpus=8 runtime=torch strategy=full_shard pp=8 layers=24 accumulate=8 "
        "micro_batch=4 checkpointing=every-2",
        "gpu=h200-sxm model=llama-2-7b gpus=8 runtime=dtplan strategy=ddp pp=8 layers=24 accumulate=8 micro_batch=4 "
        "checkpointing=every-2",
        "gpu=h200-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard tp=8 pp=2 accumulate=8",
        "gpu=h200-sxm model=llama-3.2-1b tied_head=false gpus=8 runtime=torch strategy=full_shard tp=8 accumulate=4",
        "gpu=h100-sxm model=llama-3-8b gpus=8 runtime=torch strategy=full_shard pp=4 seq=2048 schedule=gpipe "
        "accumulate=8",
        "gpu=h100-sxm model=llama-3-8b gpus=8 runtime=torch strategy=full_shard pp=4 seq=2048 schedule=gpipe "
        "accumulate=16 checkpointing=full",
        "gpu=h100-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard tp=2 pp=4 seq=2048 schedule=gpipe "
        "accumulate=8 checkpointing=full",
        "gpu=h100-sxm model=llama-3-8b gpus=8 runtime=torch strategy=full_shard pp=4 seq=2048 schedule=looped-bfs "
        "virtual_stages=2 accumulate=8 checkpointing=full",
        "gpu=h100-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard pp=16 seq=512 schedule=zb-interleaved "
        "virtual_stages=2 accumulate=68",
        "gpu=h100-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard pp=2 seq=2048 schedule=gpipe "
        "accumulate=16 compile=true precision=fp8-tensorwise",
        "gpu=h100-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard pp=2 seq=512",
        "gpu=h100-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard pp=2 seq=512 schedule=looped-bfs "
        "virtual_stages=2 compile=true",
        "gpu=h100-sxm model=llama-3-8b gpus=8 runtime=torch strategy=ddp pp=4 seq=2048 schedule=gpipe accumulate=8",
        "gpu=h100-sxm model=llama-3-8b gpus=16 runtime=torch strategy=full_shard pp=8 layers=22 seq=2048 "
        "schedule=looped-bfs virtual_stages=2 accumulate=8",
        "gpu=h100-sxm gpus=2 gpus_per_node=2 pp=2 layers=4 hidden=1024 heads=16 vocab=8192 tied_head=false seq=2048 "
        "micro_batch=2 accumulate=18 runtime=torch strategy=ddp schedule=interleaved virtual_stages=2 "
        "checkpointing=full compile=true precision=fp8-rowwise"};
    double ratios[WHATS][PLANS];
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        assert_true(compare(settings[i], ratios, i));
        assert_true(fabs(ratios[MEMORY][i] - 1) <= 0.07);
    }
}

/* Experts whose weights and gradients are sent beside compute, which hides little of them: 0.33, 0.62 and 0.10 of their
 * programs' steps where formulas hid all of it, 0.61 of a model without stages. */
static void test_steps_of_experts_beside_compute(void **state)
{
#define BESIDE                                                                                                         \
    "runtime=megatron megatron_overlap=true pp=2 layers=8 hidden=2048 heads=16 vocab=32000 experts=128 "               \
    "experts_per_token=1 expert_ffn=1000 "
    static const char *const settings[] = {BESIDE "gpu=rtx-4090 strategy=ddp gpus=16 ep=2",
                                           BESIDE "gpu=h100-sxm strategy=zero1 gpus=64 ep=8",
                                           BESIDE "gpu=h100-sxm strategy=zero1 gpus=64 ep=8 network_gbit_per_s=100"};
    double ratios[WHATS][PLANS];
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        assert_true(compare(settings[i], ratios, i));
        assert_true(fabs(ratios[STEP][i] - 1) <= 0.07);
    }
}

static size_t draw_plans(enum drawn drawn, double ratios[WHATS][PLANS])
{
    size_t count = 0;
    random_seed();
    for (int draws = 0; count < DRAWN; draws++) {
        char settings[600];
        assert_true(draws < MOST_DRAWS);
        draw_settings(drawn, sizeof settings, settings);
        count += compare(settings, ratios, count);
    }
    return count;
}

static void test_formulas_with_tensor_ranks(void **state)
{
    static double ratios[WHATS][PLANS];
    const size_t count = draw_plans(TENSOR, ratios);
    (void)state;
    /* Beside them the least and the most of seeds 1 to 20, the most of looped-bfs with fewer layers than chunks; steps
     * in brackets without what ranks keep of each other. */
    check_ratios("tp: memory estimated", ratios[MEMORY], count, 90, 0.6, 1.9); /* 92 %, 0.78 to 1.74 */
    check_ratios("tp: memory bounded", ratios[BOUND], count, 86, 0.6, 1.9);    /* 88 %, 0.72 to 1.74 */
    check_ratios("tp: memory for sure", ratios[SURELY], count, 0, 0, 1.35);
    check_ratios("tp: step", ratios[STEP], count, 64, 0, 1.6); /* 66 % (65) */
}

static void test_formulas_in_fp8(void **state)
{
    static double ratios[WHATS][PLANS];
    const size_t count = draw_plans(NARROW, ratios);
    (void)state;
    /* Likewise; before launches of casts were counted, columns of what is gathered in fp8 and rows in fp32: at least
     * 77, 69 and 25 %. What is taken for sure knows less of fp8. */
    check_ratios("fp8: memory estimated", ratios[MEMORY], count, 84, 0.45, 1.8); /* 85 %, 0.48 to 1.65 */
    check_ratios("fp8: memory bounded", ratios[BOUND], count, 73, 0.45, 1.9);    /* 75 %, 0.48 to 1.75 */
    check_ratios("fp8: memory for sure", ratios[SURELY], count, 0, 0, 0.9);
    check_ratios("fp8: step", ratios[STEP], count, 87, 0.5, 1.5); /* 89 %, 0.62 to 1.34 */
}

static void test_formulas_of_adapters(void **state)
{
    static double ratios[WHATS][PLANS];
    const size_t count = draw_plans(ADAPTED, ratios);
    (void)state;
    /* Likewise, of seeds 1 to 12; packed weights that a compiler keeps unpacked are each micro-batch's own, without
     * which the least was 0.35. */
    check_ratios("adapters: memory estimated", ratios[MEMORY], count, 80, 0.5, 1.8); /* 85 %, 0.62 to 1.60, with tp */
    check_ratios("adapters: memory bounded", ratios[BOUND], count, 74, 0.35, 1.75);  /* 77 %, 0.43 to 1.57 */
    check_ratios("adapters: memory for sure", ratios[SURELY], count, 0, 0, 1);
    check_ratios("adapters: step", ratios[STEP], count, 86, 0.4, 1.5); /* 90 %, 0.50 to 1.33 */
}

static void test_formulas_of_divided_adapters(void **state)
{
    static double ratios[WHATS][PLANS];
    const size_t count = draw_plans(BRIDGED, ratios);
    (void)state;
    /* Beside them the least of six seeds. Small models' steps are the host's, which collectives let run ahead. */
    check_ratios("divided: memory estimated", ratios[MEMORY], count, 95, 0.7, 1.35); /* 97 %, 0.82 to 1.14 */
    check_ratios("divided: memory bounded", ratios[BOUND], count, 94, 0.7, 1.35);    /* 96 %, 0.84 to 1.13 */
    check_ratios("divided: memory for sure", ratios[SURELY], count, 0, 0, 1);        /* to 0.89 */
    check_ratios("divided: step", ratios[STEP], count, 66, 0.6, 1.35);               /* 71 %, 0.75 to 1.14 */
}

static void test_formulas_with_experts(void **state)
{
    static double ratios[WHATS][PLANS];
    const size_t count = draw_plans(EXPERTS, ratios);
    (void)state;
    /* Beside them the least of seeds 1 to 6. Before experts' weights were waited for where their program waits, and
     * hosts for the counts of rows where it reads any, steps of seeds 1 and 2 were 48 %, 0.39 to 2.72; of those with
     * experts in every second layer bounds were 59 %, from 0.50, and are 69. */
    check_ratios("experts: memory estimated", ratios[MEMORY], count, 83, 0.6, 1.8); /* 86 %, 0.83 to 1.64 */
    check_ratios("experts: memory bounded", ratios[BOUND], count, 80, 0.6, 1.9);    /* 84 %, 0.84 to 1.73 */
    check_ratios("experts: memory for sure", ratios[SURELY], count, 0, 0, 1.35);    /* to 1.03 */
    check_ratios("experts: step", ratios[STEP], count, 55, 0.5, 1.6); /* 66 %, of seed 9 60, 0.64 to 1.42 */
}

static void test_formulas_of_pipelines(void **state)
{
    static double ratios[WHATS][PLANS];
    const size_t count = draw_plans(STAGES, ratios);
    (void)state;
    check_ratios("memory estimated", ratios[MEMORY], count, 89, 0.45, 1.6); /* was 56 %, from 0.13 */
    check_ratios("memory bounded", ratios[BOUND], count, 85, 0.45, 1.6);    /* was 50 % */
    /* Of what is taken for sure only the most is held: was to 1.48, and is to 1.28 of a head tied to the table in a V.
     */
    check_ratios("memory for sure", ratios[SURELY], count, 0, 0, 1.35);
    /* Below are DualPipe's over slow links, down to 0.03; was 25 %, from 0 to 100, and with launches of whole
     * models 60. */
    check_ratios("step", ratios[STEP], count, 84, 0, 1.6);
    int between = 0, sure = 0;
    for (size_t i = 0; i < count; i++) {
        between += ratios[STEP][i] > 0.8 && ratios[STEP][i] < 1.3;
        sure += ratios[SURELY][i] <= 1.1;
    }
    printf("%d from 0.8 to 1.3, %d have not more for sure than 1.1\n", between, sure);
    assert_true(draws_reach(between, (int)count, 95) && draws_reach(sure, (int)count, 98)); /* was 60, and 92 */
}

enum { RANKS = 4, FEW = 8, MANY = 12, LAYERS = 2 * RANKS }; /* FEW and MANY micro-steps */

static void resolve_stages(const char *settings, unsigned layers, unsigned micro_steps, struct dtp_job *job)
{
    char text[600];
    snprintf(text, sizeof text,
             "gpu=h100-sxm gpus_per_node=4 hidden=1024 heads=16 vocab=32000 seq=2048 pp=%d layers=%u accumulate=%u %s",
             RANKS, layers, micro_steps, settings);
    assert_int_equal(job_of_settings(text, job, &faults), DTP_OK);
}

/* Kernels that all ranks launch in a step, but for collectives and the host's own calls. */
static double launches(const char *settings, unsigned layers, unsigned micro_steps)
{
    struct dtp_job job;
    struct dtp_program_set set;
    double kernels = 0;
    resolve_stages(settings, layers, micro_steps, &job);
    assert_int_equal(dtp_lower_set(&job.transformer, &job.cluster, &job.plan, MOST_OPS, &set, &faults), DTP_OK);
    for (uint32_t role = 0; role < set.role_count; role++) {
        const struct dtp_program *program = set.roles[role].program;
        const struct dtp_op *ops = dtp_program_ops(program);
        for (size_t i = 0; i < dtp_program_op_count(program); i++)
            if (dtp_op_kind_class(ops[i].kind) != DTP_CLASS_COLLECTIVE && !dtp_op_host_call(&ops[i]))
                kernels += ops[i].demand->kernels;
    }
    dtp_program_set_release(&set);
    return kernels;
}

/* Of a layer and a micro-batch, and of the model's ends, by formulas as programs have them; a micro-batch's first sums
 * are no sums, which formulas spread over all. */
static void test_launches_of_stages(void **state)
{
    (void)state;
    static const char *const jobs[] = {
        "gpus=4 runtime=megatron strategy=zero1",
        "gpus=4 runtime=megatron strategy=zero1 checkpointing=full schedule=zb-h1",
        "gpus=4 runtime=megatron strategy=zero1 checkpointing=selective-attention loss=fused",
        "gpus=16 runtime=megatron strategy=zero1 cp=4",
        "gpus=8 runtime=megatron strategy=zero1 cp=2 cp_comm=all-gather",
        "gpus=8 runtime=megatron strategy=zero1 cp=2 cp_comm=a2a loss=native",
        "gpus=8 runtime=torch strategy=ddp",
        "gpus=8 runtime=torch strategy=full_shard checkpointing=selective",
        "gpus=8 runtime=torch strategy=full_shard checkpointing=full compile=true",
        "gpus=32 runtime=torch strategy=full_shard cp=4 checkpointing=selective-attention",
        "gpus=8 runtime=torch strategy=full_shard precision=fp8-rowwise",
        "gpus=8 runtime=torch strategy=full_shard precision=fp8-tensorwise checkpointing=full",
        "gpus=8 runtime=torch strategy=full_shard precision=fp8-tensorwise checkpointing=selective compile=true",
        "gpus=4 runtime=megatron strategy=zero1 precision=fp8-tensorwise",
        "gpus=4 runtime=deepspeed strategy=zero1 checkpointing=full",
        "gpus=4 runtime=nanotron strategy=zero1",
        "gpus=4 runtime=nanotron strategy=zero1 checkpointing=full"};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct dtp_job job;
        struct dtp_slice slice;
        const double few = launches(jobs[i], LAYERS, MANY) - launches(jobs[i], LAYERS, FEW),
                     more = launches(jobs[i], LAYERS + RANKS, MANY) - launches(jobs[i], LAYERS + RANKS, FEW),
                     layer = (more - few) / (RANKS * (MANY - FEW)), ends = few / (MANY - FEW) - LAYERS * layer;
        resolve_stages(jobs[i], LAYERS, MANY, &job);
        job.plan.runtime->closed->slice(&job.transformer, &job.cluster, &job.plan, &slice);
        const struct dtp_block_work work =
            dtp_block_work(&slice.transformer, DTP_LAYER_DENSE, &slice.cluster, &slice.plan);
        const double formula =
            work.forward_kernels + work.backward_kernels + work.layers_again / work.layers * work.again_kernels;
        printf("%.2f %.2f of a layer, %.2f %.2f of the ends: %s\n", formula, layer, work.root_kernels, ends, jobs[i]);
        assert_true(fabs(formula - layer) <= 1);
        assert_true(fabs(work.root_kernels - ends) <=
                    (job.plan.runtime->copies_passes ? 2 * RANKS : 2)); /* its copies */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_of_stages),      cmocka_unit_test(test_steps_of_experts_beside_compute),
        cmocka_unit_test(test_memory_of_known_layouts), cmocka_unit_test(test_formulas_of_adapters),
        cmocka_unit_test(test_formulas_of_pipelines),   cmocka_unit_test(test_formulas_with_tensor_ranks),
        cmocka_unit_test(test_formulas_in_fp8),         cmocka_unit_test(test_formulas_of_divided_adapters),
        cmocka_unit_test(test_formulas_with_experts)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
