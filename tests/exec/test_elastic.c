/* Elastic runs on the host device (DTPLAN_TEST_DEVICE: many kills on GPUs): whatever happens to ranks, their network,
 * their memory or their launcher, the run learns what an undisturbed one learns, or ends with one clear message.
 * Nothing inside dtplan knows of these faults: they come from outside, by signals, shut sockets and changed files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rank_loss.h"
#include "base/status.h"
#include "lib/elastic_fixture.h"
#include "lib/random_draws.h"

#define EVERY 10            /* steps between snapshots */
#ifdef __SANITIZE_ADDRESS__ /* a step takes ten times as long: as much happens within fewer */
#define STEPS 110
#define LONG_STEPS 200
#else
#define STEPS 200      /* of each case */
#define LONG_STEPS 500 /* of one in which ranks come back after a second */
#endif
#define STRIKE 40       /* step after which it happens */
#define RESUMED_S 20.0  /* until a step is done again */
#define BUSY_S 180.0    /* the same on a machine that has more to do than cores for it */
#define OFF_S 1.5       /* that a lost rank is noticed, and all have ended, before or after it is predicted */
#define SETTLE_US 20000 /* after the step that was waited for */
#define MOST_TRIES 20   /* of a run that ends before anything happens to it */

static double undisturbed, long_undisturbed; /* loss of the last ten of STEPS steps, of LONG_STEPS */

static double most_s(double idle_s)
{
    double load = 0;
    bool busy = getloadavg(&load, 1) == 1 && load > (double)sysconf(_SC_NPROCESSORS_ONLN);
    return busy ? BUSY_S : idle_s;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

struct trial {
    const char *name, *words;
    void (*strike)(struct elastic_run *run); /* NULL: nothing happens to ranks */
    int status;                              /* that the run ends with */
    bool learns;                             /* what the undisturbed one does */
    uint32_t generations;                    /* at least */
    uint32_t ranks;                          /* of the last; 0: any */
    const char *from;                        /* what the last generation began with; NULL: not asked */
    const char *said;                        /* on standard error; NULL: nothing in particular */
    enum dtp_rank_loss how;                  /* it is noticed; UNKNOWN: not asked */
};

/* Nothing where the rank has ended meanwhile: see came_late(). */
static void strike_with(struct elastic_run *run, uint32_t rank, int signal)
{
    pid_t pid = elastic_rank(run, rank);
    if (pid > 0)
        kill(pid, signal);
}

static void kill_one(struct elastic_run *run)
{
    strike_with(run, 2, SIGKILL);
}

static void kill_first(struct elastic_run *run)
{
    strike_with(run, 0, SIGKILL);
}

static void stop_one(struct elastic_run *run)
{
    strike_with(run, 1, SIGSTOP);
}

/* Both are found and held first: with the one the other ends, before a busy machine lets this process go on. */
static void strike_two(struct elastic_run *run, uint32_t first, uint32_t second, bool forget)
{
    pid_t pid[] = {elastic_rank(run, first), elastic_rank(run, second)};
    if (pid[0] <= 0 || pid[1] <= 0)
        return;
    uint32_t slot[] = {elastic_slot(pid[0]), elastic_slot(pid[1])};
    for (int i = 0; i < 4; i++)
        kill(pid[i % 2], i < 2 ? SIGSTOP : SIGKILL);
    for (int i = 0; i < 2 && forget; i++)
        elastic_forget(run, slot[i]);
}

static void kill_two(struct elastic_run *run)
{
    strike_two(run, 1, 2, false);
}

static void kill_and_stop(struct elastic_run *run)
{
    strike_with(run, 3, SIGSTOP);
    strike_with(run, 1, SIGKILL);
}

/* All of a rank's sockets, at least two. A busy machine may be starting the rank again when it is looked for, and one
 * that has met nobody yet is left alone until it has: else its end would be another fault than the one asked for. */
static void cut_rank(struct elastic_run *run, uint32_t rank, enum elastic_hand hand)
{
    double until_s = dtp_now_s() + most_s(10);
    int sockets = 0;
    while (sockets < 2 && dtp_now_s() < until_s && !elastic_ended(run)) {
        pid_t pid = elastic_rank(run, rank);
        if (pid > 0 && elastic_sockets(pid, ELASTIC_COUNT) >= 2)
            sockets = elastic_sockets(pid, hand);
        else
            usleep(20000);
    }
    assert_true(sockets >= 2 || elastic_ended(run));
}

static void cut_one(struct elastic_run *run)
{
    cut_rank(run, 3, ELASTIC_SHUT);
}

static void drop_one(struct elastic_run *run)
{
    cut_rank(run, 3, ELASTIC_DROP);
}

static void lose_machine(struct elastic_run *run, uint32_t rank)
{
    uint32_t slot = elastic_slot(elastic_rank(run, rank));
    strike_with(run, rank, SIGKILL);
    elastic_forget(run, slot);
}

static void lose_one_memory(struct elastic_run *run)
{
    lose_machine(run, 2);
}

static void lose_node(struct elastic_run *run)
{
    strike_two(run, 2, 3, true);
}

static void lose_all_memory(struct elastic_run *run)
{
    strike_with(run, 1, SIGKILL);
    for (uint32_t slot = 0; slot < ELASTIC_RANKS; slot++)
        elastic_forget(run, slot);
}

/* A byte in the middle of each of the file's turns that holds the newest step, or of both. */
static void damage(const struct elastic_run *run, const char *name, bool both)
{
    uint64_t newest = 0, steps[2] = {0};
    char path[2][2300];
    for (int turn = 0; turn < 2; turn++) {
        snprintf(path[turn], sizeof path[turn], "%s/%s.%c", run->memory, name, 'a' + turn);
        FILE *file = fopen(path[turn], "r");
        /* magic, identity, step: store.h */
        if (file && fseek(file, 16, SEEK_SET) == 0 && fread(&steps[turn], sizeof steps[turn], 1, file) != 1)
            steps[turn] = 0;
        if (file)
            fclose(file);
        newest = steps[turn] > newest ? steps[turn] : newest;
    }
    for (int turn = 0; turn < 2; turn++) {
        struct stat about;
        if ((steps[turn] != newest && !both) || stat(path[turn], &about) != 0)
            continue;
        int file = open(path[turn], O_RDWR);
        unsigned char byte;
        assert_int_equal(pread(file, &byte, 1, about.st_size - 64), 1);
        byte ^= 0x40;
        assert_int_equal(pwrite(file, &byte, 1, about.st_size - 64), 1);
        close(file);
    }
}

static void damage_own(struct elastic_run *run)
{
    strike_with(run, 1, SIGKILL);
    damage(run, "slot-1/own-0001", false);
}

static void damage_own_and_copy(struct elastic_run *run)
{
    strike_with(run, 1, SIGKILL);
    damage(run, "slot-1/own-0001", false);
    damage(run, "slot-2/copy-0001", false);
}

static void await_words(struct elastic_run *run, const char *words);

static void fill_one(struct elastic_run *run)
{
    pid_t pid = elastic_rank(run, 1);
    if (pid > 0)
        elastic_fill(pid, 8192);
}

/* The memory of one rank is full; later another rank is lost, and more than two snapshots' steps are. */
static void fill_and_kill(struct elastic_run *run)
{
    fill_one(run);
    await_words(run, "no snapshot of step ");
    strike_with(run, 2, SIGKILL);
}

static void end_run(struct elastic_run *run)
{
    kill(run->pid, SIGTERM);
}

static void kill_launcher(struct elastic_run *run)
{
    kill(run->pid, SIGKILL);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

#define LINE_OF "--elastic 2:4 --snapshot-every 10 --steps "
#define TEXT_OF(number) #number
#define NUMBER(macro) TEXT_OF(macro)
#define LINE LINE_OF NUMBER(STEPS) " "
/* Those that wait for a silent rank come first, all at once. */
static const struct trial trials[] = {
    {"stopped", LINE "--on-loss wait", stop_one, DTP_OK, true, 2, 4, "snapshot", "rank 1 has been silent for 10 s",
     DTP_LOSS_SILENT},
    {"dropped", LINE "--on-loss wait", drop_one, DTP_OK, true, 2, 4, "snapshot", "has been silent for 10 s"},
    {"killed_and_stopped", LINE "--on-loss wait", kill_and_stop, DTP_OK, true, 2, 4, "snapshot",
     "rank 1 was ended by signal 9"},
    {"killed", LINE "--return-after 900", kill_one, DTP_OK, true, 2, 3, "snapshot", "rank 2 was ended by signal 9",
     DTP_LOSS_CLOSED},
    {"killed_first", LINE "--return-after 900", kill_first, DTP_OK, true, 2, 3, "snapshot",
     "rank 0 was ended by signal 9", DTP_LOSS_CLOSED},
    {"cut", LINE "--return-after 900", cut_one, DTP_OK, true, 2, 3, "snapshot",
     "rank 3 was cut off or ended without a word", DTP_LOSS_CLOSED},
    {"two_killed", LINE "--return-after 900", kill_two, DTP_OK, true, 2, 2, "snapshot",
     "rank 1 was ended by signal 9, rank 2 was ended by signal 9"},
    {"memory_lost", LINE "--on-loss wait", lose_one_memory, DTP_OK, true, 2, 4, "snapshot", NULL},
    {"node_lost", LINE "--on-loss wait --set gpus_per_node=2", lose_node, DTP_OK, true, 2, 4, "snapshot", NULL},
    {"all_memory_lost", LINE "--on-loss wait", lose_all_memory, DTP_OK, true, 2, 4, "start",
     "no snapshot is whole and there is no checkpoint: training begins again with step 1"},
    {"damaged", LINE "--on-loss wait", damage_own, DTP_OK, true, 2, 4, "snapshot", "is damaged; another is taken"},
    {"damaged_twice", LINE "--on-loss wait", damage_own_and_copy, DTP_OK, true, 2, 4, "snapshot",
     "is damaged; another is taken"},
    {"told_to_stop", LINE "--on-loss wait", end_run, DTP_OK, false, 1, 4, "start", NULL},
    {"returned", LINE_OF NUMBER(LONG_STEPS) " --return-after 1", kill_one, DTP_OK, true, 3, 4, "snapshot",
     "ranks came back; generation 2 goes on with 4 ranks"},
    {"disk_full", LINE "--checkpoint FOLDER/saved --checkpoint-every 100", fill_one, DTP_ENVIRONMENT, true, 1, 4,
     "start", "the checkpoint could not be written: File too large"},
    {"disk_full_beside", LINE "--checkpoint FOLDER/saved --checkpoint-every 100 --async-checkpoints", fill_one,
     DTP_ENVIRONMENT, true, 1, 4, "start", "the checkpoint could not be written: File too large"},
    {"saved", LINE "--on-loss wait --checkpoint FOLDER/saved --checkpoint-every 15 --async-checkpoints",
     lose_all_memory, DTP_OK, true, 2, 4, "checkpoint", NULL},
    {"memory_full", LINE "--on-loss wait", fill_and_kill, DTP_OK, true, 2, 4, "snapshot", "no snapshot of step "},
};
enum { TRIALS = sizeof trials / sizeof trials[0], AT_ONCE = 9 };
static struct elastic_run runs[TRIALS];
static double struck_s[TRIALS];

static void await_step(struct elastic_run *run, const char *name, uint64_t step)
{
    double until_s = dtp_now_s() + 2 * BUSY_S;
    for (struct elastic_account a = elastic_account(run); !a.stepping || a.step < step; a = elastic_account(run)) {
        if (elastic_ended(run) || dtp_now_s() > until_s)
            fail_msg("%s: no step %" PRIu64, name, step);
        usleep(20000);
    }
    usleep(SETTLE_US);
}

/* Until the run has said them, however far a busy machine lets it train meanwhile; what nobody says is missed later. */
static void await_words(struct elastic_run *run, const char *words)
{
    static char said[65536];
    double until_s = dtp_now_s() + 2 * BUSY_S;
    do {
        usleep(20000);
        said[0] = '\0';
        elastic_read(run, "err", said, sizeof said);
    } while (!strstr(said, words) && !elastic_ended(run) && dtp_now_s() < until_s);
}

static void await_end(struct elastic_run *run, const struct trial *trial, double since_s)
{
    bool resumed = !trial->strike || trial->generations < 2;
    while (!elastic_ended(run)) {
        struct elastic_account a = elastic_account(run);
        double waited_s = dtp_now_s() - since_s;
        resumed = resumed || (a.generations >= 2 && a.stepping);
        if (!resumed && waited_s > RESUMED_S && waited_s > most_s(RESUMED_S))
            fail_msg("%s: no step %.0f s after it happened", trial->name, waited_s);
        if (waited_s > 4 * BUSY_S)
            fail_msg("%s: has not ended", trial->name);
        usleep(50000);
    }
}

/* Predicted beside measured; on a machine with other work everything takes longer, nothing less. */
static void check_notice(const struct trial *trial, const struct elastic_account *a)
{
    double noticed_s = dtp_rank_loss_noticed_s(trial->how, a->step_s);
    double ended_s = dtp_rank_loss_ended_s(trial->how, a->step_s), late_s = most_s(OFF_S);
    print_message("%s: noticed after %.2f s, %.2f predicted; all ended after %.2f s, %.2f predicted\n", trial->name,
                  a->noticed_s, noticed_s, a->ended_s, ended_s);
    if (a->how != (uint64_t)trial->how || a->noticed_s < noticed_s - OFF_S || a->noticed_s > noticed_s + late_s ||
        a->ended_s < ended_s - OFF_S || a->ended_s > ended_s + late_s)
        fail_msg("%s: noticed by %s, not by %s, or at another time", trial->name, dtp_rank_loss_words((unsigned)a->how),
                 dtp_rank_loss_words(trial->how));
}

static uint64_t steps_of(const struct trial *trial)
{
    return strstr(trial->words, LINE) ? STEPS : LONG_STEPS;
}

/* A busy machine let the run make all its steps before this process could do anything to it. */
static bool came_late(const struct trial *trial, const struct elastic_run *run)
{
    struct elastic_account a = elastic_account(run);
    return trial->strike && a.ended && a.generations == 1 && a.step == steps_of(trial) &&
           (trial->generations > 1 || WEXITSTATUS(run->status) != trial->status);
}

static void check(const struct trial *trial, struct elastic_run *run)
{
    static char said[1 << 18];
    struct elastic_account a = elastic_account(run);
    elastic_read(run, "err", said, sizeof said);
    int status = WIFEXITED(run->status) ? WEXITSTATUS(run->status) : -1;
    if (status != trial->status)
        fail_msg("%s: ended with %d: %s", trial->name, status, said);
    double calm = steps_of(trial) == STEPS ? undisturbed : long_undisturbed;
    if (trial->learns && (a.step != steps_of(trial) || !a.ended || !(a.loss > 0.99 * calm && a.loss < 1.01 * calm)))
        fail_msg("%s: step %" PRIu64 ", loss %.5f, undisturbed %.5f: %s", trial->name, a.step, a.loss, calm, said);
    if (a.generations < trial->generations || (trial->ranks && a.ranks != trial->ranks) ||
        (trial->from && strcmp(a.from, trial->from) != 0))
        fail_msg("%s: %u generations, the last of %u ranks from %s: %s", trial->name, a.generations, a.ranks, a.from,
                 said);
    /* From a snapshot no more is lost than two of them are apart; the one being written may not be whole, and two steps
     * are on their way when one is heard of. */
    uint64_t most = strstr(said, "no snapshot of step ") ? 5 * EVERY + 2 : 2 * EVERY + 2;
    if (strcmp(a.from, "snapshot") == 0 && a.lost_most > most)
        fail_msg("%s: %" PRIu64 " steps were lost", trial->name, a.lost_most);
    if (trial->said && !strstr(said, trial->said))
        fail_msg("%s: does not say '%s': %s", trial->name, trial->said, said);
    if (trial->how != DTP_LOSS_UNKNOWN)
        check_notice(trial, &a);
    if (access(run->memory, F_OK) == 0)
        fail_msg("%s: leaves its snapshots", trial->name);
}

/* From the step after which it happens. Returns when it did. */
static double happen(const struct trial *trial, struct elastic_run *run)
{
    if (trial->strike)
        await_step(run, trial->name, STRIKE);
    double now_s = dtp_now_s();
    if (trial->strike)
        trial->strike(run);
    return now_s;
}

static void try_again(const struct trial *trial, struct elastic_run *run)
{
    print_message("%s: had made all its steps before it happened; once more\n", trial->name);
    elastic_start(run, trial->name, trial->words, true);
    await_end(run, trial, happen(trial, run));
}

static void test_whatever_happens(void **state)
{
    int drawn_trials[TRIALS], count = 0;
    (void)state;
    for (int i = 0; i < TRIALS; i++)
        if (draw_row())
            drawn_trials[count++] = i;
    for (int first = 0; first < count; first += AT_ONCE) {
        int end = first + AT_ONCE < count ? first + AT_ONCE : count;
        for (int k = first; k < end; k++)
            elastic_start(&runs[k], trials[drawn_trials[k]].name, trials[drawn_trials[k]].words, true);
        for (int k = first; k < end; k++)
            struck_s[k] = happen(&trials[drawn_trials[k]], &runs[k]);
        for (int k = first; k < end; k++)
            await_end(&runs[k], &trials[drawn_trials[k]], struck_s[k]);
    }
    for (int k = 0; k < count; k++) {
        for (int tries = 0; tries < MOST_TRIES && came_late(&trials[drawn_trials[k]], &runs[k]); tries++)
            try_again(&trials[drawn_trials[k]], &runs[k]);
        check(&trials[drawn_trials[k]], &runs[k]);
    }
}

/* ---- the launcher ------------------------------------------------------------------------------------------------ */

/* With its launcher all ranks end; the same line with --resume goes on from what they left in memory. */
static void test_launcher_killed(void **state)
{
    static const struct trial killed = {"launcher_killed", LINE, kill_launcher, 0, false, 1, 4, NULL, NULL};
    struct elastic_run run;
    pid_t ranks[ELASTIC_RANKS];
    (void)state;
    elastic_start(&run, killed.name, killed.words, true);
    await_step(&run, killed.name, STRIKE);
    for (uint32_t i = 0; i < ELASTIC_RANKS; i++)
        ranks[i] = elastic_rank(&run, i);
    uint64_t kept = elastic_account(&run).snapshot;
    killed.strike(&run);
    while (!elastic_ended(&run))
        usleep(20000);
    assert_true(WIFSIGNALED(run.status));
    for (uint32_t i = 0; i < ELASTIC_RANKS; i++)
        for (int tries = 0; kill(ranks[i], 0) == 0 && elastic_parent(ranks[i]) > 1; tries++) {
            assert_true(tries < 500);
            usleep(20000);
        }
    elastic_start(&run, killed.name, LINE "--resume", false);
    while (!elastic_ended(&run))
        usleep(50000);
    struct elastic_account a = elastic_account(&run);
    assert_int_equal(WEXITSTATUS(run.status), DTP_OK);
    assert_string_equal(a.from, "snapshot");
    assert_true(kept >= STRIKE - 2 * EVERY && a.step == STEPS);
    assert_true(a.loss > 0.99 * undisturbed && a.loss < 1.01 * undisturbed);
    elastic_start(&run, killed.name, LINE "--resume", false); /* what has ended has left nothing */
    while (!elastic_ended(&run))
        usleep(50000);
    assert_int_equal(WEXITSTATUS(run.status), DTP_BAD_INPUT);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void test_what_does_not_fit_is_refused(void **state)
{
    static const struct {
        const char *words, *said;
    } cases[] = {
        /* 4 x 3 sequences a step: 5 GPUs are not there */
        {"--elastic 2:5", "the larger number is that of --gpus"},
        {"--elastic 4:2", "--elastic: '4:2' is not MIN:MAX"},
        {"--elastic 0:4", "--elastic: '0:4' is not MIN:MAX"},
        {"--on-loss wait", "--on-loss needs --elastic MIN:MAX"},
        {"--snapshot-every 10", "--snapshot-every needs --elastic MIN:MAX"},
        {"--return-after 60", "--return-after needs --elastic MIN:MAX"},
        {"--elastic 2:4 --set strategy=ddp --set comm_hook=powersgd --set hidden=64",
         "no other number goes on with it; use --elastic 4:4 --on-loss wait"},
        {"--elastic 2:4 --on-loss maybe", "'maybe' is neither shrink nor wait"},
        {"--elastic 2:4 --set pp=2 --set strategy=ddp", "--elastic: ranks of a pipeline"},
        /* 4 x 1 sequences do not divide by three ranks */
        {"--elastic 3:4 --set accumulate=1", "no plan of fewer than 4 ranks has the 4 sequences of a step"},
        {"--async-checkpoints", "--async-checkpoints needs --checkpoint DIR"},
    };
    static char said[1 << 16];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct elastic_run run;
        elastic_start(&run, "refused", cases[i].words, true);
        while (!elastic_ended(&run))
            usleep(5000);
        elastic_read(&run, "err", said, sizeof said);
        if (!WIFEXITED(run.status) || WEXITSTATUS(run.status) != DTP_BAD_INPUT || !strstr(said, cases[i].said))
            fail_msg("%s: %d: %s", cases[i].words, run.status, said);
    }
}

/* ---- many kills -------------------------------------------------------------------------------------------------- */

#define KILLS_EVERY 60         /* steps, on average */
#define RESUMED_ON_GPUS_S 60.0 /* contexts, libraries and NCCL begin anew */
enum { KINDS = 4 };

static bool on_gpus(void)
{
    return getenv("DTPLAN_TEST_DEVICE") != NULL;
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 10) : otherwise;
}

static uint64_t drawn(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % below;
}

/* One of -9, a cut network, two ranks with their memories, which neighbours that are two apart have kept, and -STOP. */
static void strike_at_random(struct elastic_run *run, uint64_t kind, uint32_t rank)
{
    pid_t pid = elastic_rank(run, rank);
    assert_true(pid > 0);
    if (kind == 0)
        kill(pid, SIGKILL);
    else if (kind == 1)
        cut_rank(run, rank, ELASTIC_SHUT);
    else if (kind == 2)
        strike_two(run, rank & 2u, (rank & 2u) + 1, true);
    else
        kill(pid, SIGSTOP);
}

static void test_many_kills(void **state)
{
    uint64_t kills = from_environment("DTPLAN_TEST_KILLS", 3), seed = from_environment("DTPLAN_TEST_SEED", 1);
    uint64_t every = from_environment("DTPLAN_TEST_KILLS_EVERY", KILLS_EVERY);
    double slowest_s = 0, resumed_s = on_gpus() ? RESUMED_ON_GPUS_S : RESUMED_S;
    char words[256];
    struct elastic_run calm, run;
    (void)state;
    print_message("%" PRIu64 " kills, seed %" PRIu64 "\n", kills, seed);
    snprintf(words, sizeof words,
             "--elastic 2:4 --snapshot-every 10 --set gpus_per_node=2 --return-after 1 --on-loss wait --steps %" PRIu64,
             (kills + 1) * every + 20);
    elastic_start(&calm, "calm", words, true);
    elastic_start(&run, "many", words, true);
    for (uint64_t i = 0; i < kills; i++) {
        await_step(&run, "many", every / 5 + i * every + drawn(&seed, every / 2));
        uint32_t generations = elastic_account(&run).generations;
        strike_at_random(&run, i % KINDS, (uint32_t)drawn(&seed, ELASTIC_RANKS));
        double struck = dtp_now_s(), waited = 0;
        for (struct elastic_account a = elastic_account(&run); a.generations == generations || !a.stepping;
             a = elastic_account(&run)) {
            waited = dtp_now_s() - struck;
            if (elastic_ended(&run) || (waited > resumed_s && waited > most_s(resumed_s)))
                fail_msg("kill %" PRIu64 ": no step after %.0f s", i, waited);
            usleep(20000);
        }
        print_message("kill %" PRIu64 " of kind %" PRIu64 ": a step after %.1f s\n", i, i % KINDS, waited);
        slowest_s = waited > slowest_s ? waited : slowest_s;
    }
    while (!elastic_ended(&run) || !elastic_ended(&calm))
        usleep(50000);
    assert_int_equal(calm.status, 0);
    struct elastic_account a = elastic_account(&run), c = elastic_account(&calm);
    print_message("loss %.5f, undisturbed %.5f; %" PRIu64 " steps lost at most, %" PRIu64
                  " in all; slowest resumption %.1f s\n",
                  a.loss, c.loss, a.lost_most, a.lost, slowest_s);
    assert_int_equal(run.status, 0);
    assert_int_equal(a.step, c.step);
    assert_true(a.generations == kills + 1 && a.lost_most <= 2 * EVERY + 2);
    assert_true(a.loss > 0.99 * c.loss && a.loss < 1.01 * c.loss);
}

/* ---- an undisturbed run ------------------------------------------------------------------------------------------ */

/* Snapshots change no bit of what is learned, and neither do checkpoints beside training. */
static int learn_undisturbed(void **state)
{
    struct elastic_run plain, longer, elastic;
    (void)state;
    elastic_start(&plain, "plain", "--steps " NUMBER(STEPS), true);
    elastic_start(&longer, "longer", "--steps " NUMBER(LONG_STEPS), true);
    elastic_start(&elastic, "undisturbed", LINE "--async-checkpoints --checkpoint-every 20 --checkpoint FOLDER/saved",
                  true);
    while (!elastic_ended(&plain) || !elastic_ended(&longer) || !elastic_ended(&elastic))
        usleep(50000);
    struct elastic_account a = elastic_account(&plain), b = elastic_account(&elastic);
    undisturbed = a.loss;
    long_undisturbed = elastic_account(&longer).loss;
    bool same = plain.status == 0 && longer.status == 0 && elastic.status == 0 && a.step == STEPS && b.step == STEPS &&
                !(a.loss < b.loss) && !(a.loss > b.loss) && b.snapshot > STEPS / 2;
    if (!same)
        print_error("plain: %d, loss %.9f; elastic: %d, loss %.9f, snapshot %" PRIu64 "\n", plain.status, a.loss,
                    elastic.status, b.loss, b.snapshot);
    return same ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest kills[] = {cmocka_unit_test(test_many_kills)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_does_not_fit_is_refused),
                                       cmocka_unit_test(test_whatever_happens), cmocka_unit_test(test_launcher_killed),
                                       cmocka_unit_test(test_many_kills)};
    return on_gpus() ? cmocka_run_group_tests(kills, NULL, NULL)
                     : cmocka_run_group_tests(tests, learn_undisturbed, NULL);
}
