/* Pipelines simulated as a set: the bubble of equal stages is what the schedule's exact timer says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "plan/degrees.h"
#include "schedule/schedule_time.h"
#include "sim/pipeline_stages.h"

static struct dtp_faults faults;

/* Stages of equal cost: next to no vocabulary, four layers a stage. */
static struct dtp_job job_of(uint32_t ranks, uint32_t micro_batches, uint32_t chunks)
{
    struct dtp_job job = {.transformer = llama_7b(), .cluster = test_cluster(test_h200(), ranks, ranks)};
    job.transformer.layers = 4 * ranks * chunks, job.transformer.vocab = 16;
    job.plan = dtp_plan_default();
    job.plan.runtime = dtp_runtime_find("megatron");
    job.plan.strategy = DTP_DDP;
    job.plan.pp = ranks, job.plan.accumulate = micro_batches, job.plan.virtual_stages = chunks;
    job.plan.sequence = 8192, job.plan.micro_batch = 2;
    return job;
}

static struct dtp_simulated simulated(struct dtp_job *job)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated s;
    options.infinite_bandwidth = true, options.power_headroom = false, options.compute_factor = 1;
    options.contention = false; /* the timer knows nothing of SMs that a waiting receive holds */
    faults = (struct dtp_faults){0};
    if (dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, &faults) != DTP_OK ||
        dtp_simulated_create(job, &options, &s, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return s;
}

/* Of a rank's forwards and backwards. */
static double bubble_share(const struct dtp_simulated *s)
{
    double bubble_s = 0, compute_s = 0;
    for (uint32_t r = 0; r < s->set.role_count; r++) {
        bubble_s += s->roles[r].timeline.bubble_s;
        compute_s += s->roles[r].timeline.compute_s;
    }
    return bubble_s / compute_s;
}

static void test_bubbles_of_equal_stages(void **state)
{
    static const uint32_t rows[][3] = {{2, 2, 1}, {2, 8, 1}, {4, 4, 1}, {4, 12, 1}, {4, 8, 2}, {2, 4, 3}, {6, 6, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_job job = job_of(rows[i][0], rows[i][1], rows[i][2]);
        struct dtp_simulated s = simulated(&job);
        double expected = (rows[i][0] - 1.0) / rows[i][1] / rows[i][2], is = bubble_share(&s);
        if (fabs(is / expected - 1) > 0.01)
            fail_msg("pp %u, %u micro-batches, %u chunks: bubble %.4f of the work, not %.4f", rows[i][0], rows[i][1],
                     rows[i][2], is, expected);
        dtp_simulated_release(&s);
    }
}

/* Groups of more micro-batches than ranks: what a chunk of the last rank makes waits at the first until the group comes
 * to its next chunk. Nobody waits for that: the bubble is that of groups of as many as ranks, whether or not a rank
 * holds what it sent until it was taken. */
static void test_larger_groups_wait_for_nobody(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 5; ranks++)
        for (uint32_t chunks = 2; chunks <= 4; chunks++)
            for (uint32_t group = ranks + 1; group <= 2 * ranks + 3; group++)
                for (uint32_t micro_batches = group; micro_batches <= 3 * group; micro_batches += ranks + 1) {
                    struct dtp_job job = job_of(ranks, micro_batches, chunks);
                    uint32_t rest = micro_batches % group;
                    if (rest && rest < ranks)
                        continue;
                    job.plan.microbatch_group = group;
                    job.plan.avoid_record_streams = (ranks + chunks + group) % 2;
                    struct dtp_simulated s = simulated(&job);
                    double expected = (ranks - 1.0) / micro_batches / chunks, is = bubble_share(&s);
                    if (fabs(is / expected - 1) > 0.01)
                        fail_msg("pp %u, %u micro-batches in groups of %u, %u chunks: bubble %.4f, not %.4f", ranks,
                                 micro_batches, group, chunks, is, expected);
                    dtp_simulated_release(&s);
                }
}

/* What the passes of a rank took on the compute stream, by kind: sums over all of them. */
static void add_passes(const struct dtp_simulated *s, const struct dtp_schedule *schedule, uint32_t rank,
                       double *seconds)
{
    const struct dtp_program *program = s->set.roles[rank].program;
    const struct dtp_op *ops = dtp_program_ops(program);
    uint32_t pass = schedule->first[rank];
    int kind = -1;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        bool begins =
            ops[i].kind == DTP_OP_MARK && (!strcmp(ops[i].name, "forward") || !strcmp(ops[i].name, "backward"));
        if (ops[i].kind == DTP_OP_MARK && !strcmp(ops[i].name, "step"))
            return;
        if (begins)
            kind = schedule->passes[pass++].kind;
        if (kind >= 0 && ops[i].stream == DTP_STREAM_COMPUTE && dtp_op_kind_class(ops[i].kind) != DTP_CLASS_NONE)
            seconds[kind] += s->roles[rank].alone_s[i];
    }
}

/* When the last rank came to the end of its passes. */
static double end_of_passes_s(const struct dtp_simulated *s)
{
    double end_s = 0;
    for (uint32_t r = 0; r < s->set.role_count; r++) {
        const struct dtp_op *ops = dtp_program_ops(s->set.roles[r].program);
        for (size_t i = 0; i < s->roles[r].timeline.op_count; i++)
            if (ops[i].kind == DTP_OP_MARK && !strcmp(ops[i].name, "step"))
                end_s = fmax(end_s, s->roles[r].timeline.span[i].end_s);
    }
    return end_s;
}

/* Every schedule of the runtime: with what its passes cost, the exact timer comes to the simulated step. */
static void test_steps_are_the_timers(void **state)
{
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        uint32_t ranks = 4, micro_batches = 8;
        struct dtp_job job = job_of(ranks, micro_batches, 1);
        struct dtp_stage_cost costs[16];
        struct dtp_schedule schedule;
        struct dtp_schedule_timer *timer;
        double seconds[DTP_PASS_COUNT] = {0};
        if (!(job.plan.runtime->schedules & 1u << kind))
            continue;
        job.transformer.layers = 16;
        job.plan.schedule = (enum dtp_schedule_kind)kind;
        job.plan.virtual_stages = kind == DTP_SCHEDULE_INTERLEAVED ? 2 : 1;
        struct dtp_simulated s = simulated(&job);
        struct dtp_schedule_shape shape = dtp_plan_schedule(&job.plan);
        assert_int_equal(dtp_schedule_create(&shape, &schedule, &faults), DTP_OK);
        for (uint32_t r = 0; r < ranks; r++)
            add_passes(&s, &schedule, r, seconds);
        double forward_s = seconds[DTP_PASS_FORWARD], all_s = forward_s;
        for (int pass = DTP_PASS_FORWARD + 1; pass < DTP_PASS_COUNT; pass++)
            all_s += seconds[pass];
        double split_s = seconds[DTP_PASS_BACKWARD] + seconds[DTP_PASS_WEIGHT];
        double weight_s = split_s > 0 ? (all_s - forward_s) * seconds[DTP_PASS_WEIGHT] / split_s : 0;
        double each = 1.0 / ranks / micro_batches;
        dtp_stage_costs_equal(&schedule, each * forward_s, each * (all_s - forward_s - weight_s), each * weight_s, 0,
                              costs);
        assert_int_equal(dtp_schedule_timer_create(&schedule, DTP_SEND_BUFFERED, &timer, &faults), DTP_OK);
        double expected_s = dtp_schedule_timer_makespan(timer, &(struct dtp_schedule_costs){costs, 1});
        double is_s = end_of_passes_s(&s);
        if (fabs(is_s / expected_s - 1) > 0.01)
            fail_msg("%s: %.5f s, by the timer %.5f s", dtp_schedule_row((enum dtp_schedule_kind)kind)->word, is_s,
                     expected_s);
        dtp_schedule_timer_destroy(timer);
        dtp_schedule_destroy(&schedule);
        dtp_simulated_release(&s);
    }
}

/* Seconds of a step's passes by the exact timer, with what the passes of each stage take in the simulation. */
static double passes_s(const struct dtp_simulated *s)
{
    struct dtp_schedule_shape shape = dtp_plan_schedule(&s->job.plan);
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer;
    struct dtp_stage_cost costs[8] = {{.forward_s = 0}};
    struct dtp_pipeline_stages stages;
    assert_int_equal(dtp_pipeline_stages_of(s, &stages, &faults), DTP_OK);
    assert_int_equal(dtp_schedule_create(&shape, &schedule, &faults), DTP_OK);
    assert_int_equal(dtp_schedule_timer_create(&schedule, DTP_SEND_BUFFERED, &timer, &faults), DTP_OK);
    for (size_t p = 0; p < stages.pass_count; p++) {
        const struct dtp_stage_pass *pass = &stages.passes[p];
        struct dtp_stage_cost *cost = &costs[pass->stage];
        *(pass->kind == DTP_PASS_FORWARD    ? &cost->forward_s
          : pass->kind == DTP_PASS_BACKWARD ? &cost->backward_s
                                            : &cost->weight_s) += (pass->end_s - pass->begin_s) / shape.micro_batches;
    }
    struct dtp_schedule_costs priced = {costs, 1};
    double seconds = s->job.plan.post_validation ? dtp_schedule_timer_period(timer, &priced)
                                                 : dtp_schedule_timer_makespan(timer, &priced);
    dtp_schedule_timer_destroy(timer);
    dtp_schedule_destroy(&schedule);
    dtp_pipeline_stages_release(&stages);
    return seconds;
}

/* Where a step is validated in the next one, no rank waits for the others at its end: the step is the timer's period
 * and the optimizer. Of ZB-H2 and ZB-V each rank then begins later than the one before it, by part of a forward, and
 * half of what is idle without is gone; ZB-H1's first rank idles in between all the same (Qi et al. 2024,
 * arXiv:2401.10241, section 4). */
static void test_validated_afterwards(void **state)
{
    static const enum dtp_schedule_kind kinds[] = {DTP_SCHEDULE_ZB_H1, DTP_SCHEDULE_ZB_H2, DTP_SCHEDULE_ZB_V};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double step_s[2], idle[2];
        for (int after = 0; after < 2; after++) {
            struct dtp_job job = job_of(4, 12, 1);
            job.plan.schedule = kinds[i], job.plan.post_validation = after;
            job.plan.sequence = 256, job.plan.micro_batch = 64; /* next to no attention, which has no W */
            struct dtp_simulated s = simulated(&job);
            assert_int_equal(dtp_program_set_verify(&s.set, DTP_ISSUE_STREAMS, &faults), DTP_OK);
            step_s[after] = s.timeline.step_s, idle[after] = bubble_share(&s);
            double expected_s = passes_s(&s) + s.timeline.optimizer_s;
            if (fabs(step_s[after] / expected_s - 1) > 0.002)
                fail_msg("%s: %.5f s, by the timer %.5f s", dtp_schedule_row(kinds[i])->word, step_s[after],
                         expected_s);
            for (uint32_t r = 0; r < 4; r++) {
                const struct dtp_timeline *t = &s.roles[r].timeline;
                double later_s = r ? t->begin_s - s.roles[r - 1].timeline.begin_s : 0;
                double parts_s = t->compute_s + t->optimizer_s + t->exposed_communication_s + t->exposed_offload_s +
                                 t->host_bound_s + t->bubble_s;
                assert_true(after && i > 0 && r ? later_s > 0.01 && later_s < 0.1 : t->begin_s <= 0);
                assert_true(fabs(parts_s - step_s[after]) < 1e-9);
            }
            dtp_simulated_release(&s);
        }
        assert_true(i > 0 ? step_s[1] < 0.98 * step_s[0] && idle[1] < 0.5 * idle[0] : step_s[1] < 1.001 * step_s[0]);
    }
}

/* Of rank r of p under 1F1B p - r micro-batches wait for their backward, one after the other in time, and what is idle
 * by when adds up to the bubble. Layers of 4 ranks, 2 chunks each: 4 a chunk. */
static void test_what_ranks_do(void **state)
{
    (void)state;
    for (uint32_t chunks = 1; chunks <= 2; chunks++) {
        struct dtp_job job = job_of(4, 8, chunks);
        struct dtp_simulated s = simulated(&job);
        struct dtp_pipeline_stages stages;
        size_t pass = 0;
        assert_int_equal(dtp_pipeline_stages_of(&s, &stages, &faults), DTP_OK);
        assert_int_equal(stages.rank_count, 4);
        assert_int_equal(stages.worst, 0);
        for (uint32_t r = 0; r < 4; r++) {
            const struct dtp_pipeline_rank *rank = &stages.ranks[r];
            double idle_s = dtp_pipeline_idle_s(rank), before_s = 0, waited_s = 0;
            for (int i = 0; i < DTP_WAIT_COUNT; i++)
                waited_s += rank->idle_for_s[i];
            assert_true(fabs(waited_s - idle_s) < 1e-9);
            assert_true(fabs(dtp_pipeline_busy_fraction(&stages, r) * stages.step_s - rank->compute_s -
                             rank->optimizer_s) < 1e-9);
            assert_int_equal(rank->layers, 4 * chunks);
            assert_true(rank->embedding == (r == 0) && rank->head == (r == 3));
            assert_int_equal(rank->forwards, 8 * chunks);
            assert_int_equal(rank->in_flight, chunks == 1 ? 4 - r : 11 - 2 * r);
            assert_true(fabs(idle_s - s.roles[r].timeline.bubble_s) < 1e-9);
            assert_true(idle_s > 0 && rank->compute_s > 0 && rank->memory.device_peak_bytes > 0);
            for (uint32_t i = 0; i < 16 * chunks; i++, pass++) {
                const struct dtp_stage_pass *p = &stages.passes[pass];
                assert_int_equal(p->rank, r);
                assert_int_equal(p->stage, p->chunk * 4 + r);
                assert_true(p->begin_s >= before_s && p->end_s > p->begin_s);
                before_s = p->end_s;
            }
        }
        assert_int_equal(pass, stages.pass_count);
        dtp_pipeline_stages_release(&stages);
        dtp_simulated_release(&s);
    }
}

/* With 1F1B the first rank waits for nothing but gradients, the last one for activations until its last backward ends,
 * and then for the others (Narayanan et al. 2021, figure 4). Its fill and drain are p - 1 passes each. Activations pile
 * up where a rank goes on with forwards while the next one computes a backward: never on the first rank, nor gradients
 * on the last. */
static void test_what_ranks_wait_for(void **state)
{
    (void)state;
    struct dtp_job job = job_of(4, 12, 1);
    struct dtp_simulated s = simulated(&job);
    struct dtp_pipeline_stages stages;
    assert_int_equal(dtp_pipeline_stages_of(&s, &stages, &faults), DTP_OK);
    const struct dtp_pipeline_rank *first = &stages.ranks[0], *last = &stages.ranks[3];
    double forward_s = 0, backward_s = 0;
    for (size_t i = 0; i < stages.pass_count; i++)
        if (stages.passes[i].rank == 1)
            *(stages.passes[i].kind == DTP_PASS_FORWARD ? &forward_s : &backward_s) +=
                (stages.passes[i].end_s - stages.passes[i].begin_s) / 12;
    assert_true(first->idle_for_s[DTP_WAIT_GRADIENTS] > 0.99 * dtp_pipeline_idle_s(first));
    assert_true(fabs(last->idle_for_s[DTP_WAIT_ACTIVATIONS] / (3 * forward_s) - 1) < 0.02);
    assert_true(fabs(last->idle_for_s[DTP_WAIT_STEP_END] / (3 * backward_s) - 1) < 0.02);
    assert_true(last->idle_for_s[DTP_WAIT_GRADIENTS] == 0);
    assert_int_equal(first->forward_queue, 0);
    assert_int_equal(last->backward_queue, 0);
    for (uint32_t r = 1; r < 4; r++)
        assert_int_equal(stages.ranks[r].forward_queue, 1);
    dtp_pipeline_stages_release(&stages);
    dtp_simulated_release(&s);
}

/* No stage's last forward ends before the one before it has sent what it reads. */
static void test_passes_follow_each_other(void **state)
{
    (void)state;
    struct dtp_job job = job_of(4, 6, 1);
    struct dtp_simulated s = simulated(&job);
    struct dtp_pipeline_stages stages;
    assert_int_equal(dtp_pipeline_stages_of(&s, &stages, &faults), DTP_OK);
    for (size_t i = 0; i < stages.pass_count; i++)
        for (size_t k = 0; k < stages.pass_count; k++) {
            const struct dtp_stage_pass *a = &stages.passes[i], *b = &stages.passes[k];
            bool forward = a->kind == DTP_PASS_FORWARD && b->kind == DTP_PASS_FORWARD && b->stage == a->stage + 1;
            bool backward = a->kind != DTP_PASS_FORWARD && b->kind != DTP_PASS_FORWARD && b->stage + 1 == a->stage;
            if (a->micro_batch == b->micro_batch && (forward || backward))
                assert_true(b->begin_s >= a->end_s);
        }
    dtp_pipeline_stages_release(&stages);
    dtp_simulated_release(&s);
}

/* 8 GPUs on two nodes, tp 1, pp 4, dp 2. By default the stages' ranks stand two by two, so that the network lies
 * between the second and the third; as tp-pp-dp each node has a whole pipeline, ranks 0 to 3 and 4 to 7, and sends stay
 * inside, but gradients cross. Every rank is one place of one role, and the text says so. */
static void test_ranks_take_turns(void **state)
{
    (void)state;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_simulated s[2];
    for (int turns = 0; turns < 2; turns++) {
        struct dtp_job job = job_of(4, 8, 1);
        struct dtp_layout layout;
        job.cluster = test_cluster(test_h200(), 8, 4);
        assert_true(dtp_layout_parse_order(turns ? "tp-pp-dp" : "tp-dp-pp", &layout));
        memcpy(job.plan.layout_order, layout.order, sizeof layout.order);
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, &faults) != DTP_OK ||
            dtp_simulated_create(&job, &options, &s[turns], &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        const struct dtp_program_set *set = &s[turns].set;
        assert_int_equal(dtp_program_set_verify(set, DTP_ISSUE_STREAMS, &faults), DTP_OK);
        assert_int_equal(dtp_program_set_ranks(set), 8);
        for (uint32_t rank = 0; rank < 8; rank++) {
            uint32_t role = dtp_program_set_role_of(set, rank), place = dtp_program_set_place(set, rank);
            assert_int_equal(role, turns ? rank % 4 : rank / 2);
            assert_int_equal(place, turns ? rank / 4 : rank % 2);
            assert_int_equal(dtp_program_set_rank(set, role, place), rank);
        }
    }
    for (uint32_t r = 0; r < 4; r++) { /* the activations of rank 1 of the pipeline cross by default */
        const struct dtp_timeline *near = &s[1].roles[r].timeline, *far = &s[0].roles[r].timeline;
        double sends[] = {far->communication_by_collective_s[DTP_SEND_RECV],
                          near->communication_by_collective_s[DTP_SEND_RECV]};
        assert_true(r == 0 || r == 3 || sends[0] > 1.1 * sends[1]);
        assert_true(near->communication_by_collective_s[DTP_ALL_REDUCE] >
                    1.5 * far->communication_by_collective_s[DTP_ALL_REDUCE]);
    }
    char *text = NULL;
    size_t bytes;
    struct dtp_program_set again;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(dtp_program_set_write_text(&s[1].set, file), DTP_OK);
    fclose(file);
    assert_int_equal(strncmp(text, "set 1 run 1\n", 12), 0);
    assert_int_equal(dtp_program_set_parse_text("set", text, bytes, &again, &faults), DTP_OK);
    assert_int_equal(dtp_program_set_role_of(&again, 6), 2);
    assert_int_equal(dtp_program_set_take_turns(&again, 3, &faults), DTP_BAD_INPUT); /* 2 ranks each */
    dtp_program_set_release(&again);
    free(text);
    dtp_simulated_release(&s[0]);
    dtp_simulated_release(&s[1]);
}

/* A job without a pipeline has no ranks of one. */
static void test_no_pipeline(void **state)
{
    (void)state;
    struct dtp_job job = job_of(1, 2, 1);
    struct dtp_simulated s = simulated(&job);
    struct dtp_pipeline_stages stages;
    assert_int_equal(dtp_pipeline_stages_of(&s, &stages, &faults), DTP_OK);
    assert_true(stages.rank_count == 0 && stages.pass_count == 0);
    dtp_pipeline_stages_release(&stages);
    dtp_simulated_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bubbles_of_equal_stages),
                                       cmocka_unit_test(test_larger_groups_wait_for_nobody),
                                       cmocka_unit_test(test_steps_are_the_timers),
                                       cmocka_unit_test(test_validated_afterwards),
                                       cmocka_unit_test(test_what_ranks_do),
                                       cmocka_unit_test(test_what_ranks_wait_for),
                                       cmocka_unit_test(test_passes_follow_each_other),
                                       cmocka_unit_test(test_ranks_take_turns),
                                       cmocka_unit_test(test_no_pipeline)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
