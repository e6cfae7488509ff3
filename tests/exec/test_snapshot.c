/* Files of snapshots: what was half written, damaged or another run's is not taken, and the turn that holds the last
 * whole one stays. Peers: what is sent arrives whole or not at all, and strangers get nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/crc64.h"
#include "lib/remove_all.h"
#include "snapshot/snapshot.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER TEST_BINARY_DIR "/tests/snapshot_files"
#define OTHER TEST_BINARY_DIR "/tests/snapshot_other"
#define IDENTITY 77u
enum { ELEMENTS = 3000 };
static float values[ELEMENTS];
static const struct dtp_snapshot_block block = {0, DTP_STATE_MASTER, DTP_ELEMENT_FP32, 0, 10, 10 + ELEMENTS, 0};

static int fresh(void **state)
{
    (void)state;
    remove_all(FOLDER);
    remove_all(OTHER);
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = (float)i / 7;
    return mkdir(FOLDER, 0777) == 0 && mkdir(OTHER, 0777) == 0 ? 0 : -1;
}

static int clean(void **state)
{
    (void)state;
    remove_all(FOLDER);
    remove_all(OTHER);
    return 0;
}

static struct dtp_snapshot_head head_of(uint64_t step, uint32_t world, uint32_t rank)
{
    struct dtp_snapshot_head head;
    memset(&head, 0, sizeof head);
    head.identity = IDENTITY;
    head.position.step = step;
    head.world = world;
    head.rank = rank;
    head.block_count = 1;
    head.data_bytes = sizeof values;
    head.blocks_crc = dtp_crc64(0, &block, sizeof block);
    head.data_crc = dtp_crc64(0, values, sizeof values);
    dtp_snapshot_seal(&head);
    return head;
}

static void write_file(uint64_t step, uint32_t world, const struct dtp_snapshot_name *name, bool whole)
{
    struct dtp_snapshot_head head = head_of(step, world, name->rank);
    struct dtp_snapshot_file file;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_snapshot_create(FOLDER, name, &file, &faults), DTP_OK);
    assert_int_equal(dtp_snapshot_append(&file, &block, sizeof block, &faults), DTP_OK);
    assert_int_equal(dtp_snapshot_append(&file, values, whole ? sizeof values : 100, &faults), DTP_OK);
    if (whole)
        assert_int_equal(dtp_snapshot_finish(&file, &head, &faults), DTP_OK);
    dtp_snapshot_close(&file);
}

/* Of those listed up to `limit`; returns how many there are. */
static size_t list(const char *folder, uint64_t identity, struct dtp_snapshot_entry *out, size_t limit)
{
    struct dtp_snapshot_entry *all;
    size_t count;
    assert_true(dtp_snapshot_list(folder, identity, &all, &count));
    for (size_t i = 0; i < count && i < limit; i++)
        out[i] = all[i];
    free(all);
    return count;
}

static void change_byte(const char *name, off_t at)
{
    char path[600];
    unsigned char byte;
    snprintf(path, sizeof path, FOLDER "/%s", name);
    int file = open(path, O_RDWR);
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static void test_newest_first(void **state)
{
    struct dtp_snapshot_entry entries[8];
    (void)state;
    write_file(10, 4, &(struct dtp_snapshot_name){2, false, 0}, true);
    write_file(20, 4, &(struct dtp_snapshot_name){2, false, 1}, true);
    write_file(20, 4, &(struct dtp_snapshot_name){1, true, 0}, true);
    assert_int_equal(list(FOLDER, IDENTITY, entries, 8), 3);
    assert_int_equal(entries[0].head.position.step, 20);
    assert_false(entries[0].name.copy); /* one's own first */
    assert_true(entries[1].name.copy && entries[1].name.rank == 1);
    assert_int_equal(entries[2].head.position.step, 10);
    assert_int_equal(list(FOLDER, IDENTITY + 1, entries, 8), 0); /* another run's */
    assert_int_equal(list("/no/such/folder", IDENTITY, entries, 8), 0);
    for (int i = 0; i < 1; i++)
        assert_true(dtp_snapshot_verify(FOLDER, &entries[i]));
}

static void test_half_written_is_none(void **state)
{
    struct dtp_snapshot_entry entries[4];
    (void)state;
    write_file(10, 4, &(struct dtp_snapshot_name){0, false, 0}, true);
    write_file(20, 4, &(struct dtp_snapshot_name){0, false, 0}, false); /* over the whole one */
    assert_int_equal(list(FOLDER, IDENTITY, entries, 4), 0);
}

/* Of the head, of the blocks (4096 on), of the elements (4136 on). */
static void test_each_changed_byte_is_found(void **state)
{
    static const off_t places[] = {0, 20, 100, 4096, 4135, 4136, 4136 + (off_t)sizeof values - 1};
    struct dtp_snapshot_entry entry;
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        write_file(10, 4, &(struct dtp_snapshot_name){0, false, 0}, true);
        assert_int_equal(list(FOLDER, IDENTITY, &entry, 1), 1);
        assert_true(dtp_snapshot_verify(FOLDER, &entry));
        change_byte("own-0000.a", places[i]);
        bool listed = list(FOLDER, IDENTITY, &entry, 1) == 1;
        assert_false(listed && dtp_snapshot_verify(FOLDER, &entry));
    }
    write_file(10, 4, &(struct dtp_snapshot_name){0, false, 0}, true);
    assert_int_equal(truncate(FOLDER "/own-0000.a", 5000), 0);
    assert_int_equal(list(FOLDER, IDENTITY, &entry, 1), 1);
    assert_false(dtp_snapshot_verify(FOLDER, &entry));
}

static void test_turn_keeps_the_last_whole_one(void **state)
{
    (void)state;
    assert_int_equal(dtp_snapshot_turn(FOLDER, 3, false, 20, 4), 0); /* nothing is there */
    write_file(20, 4, &(struct dtp_snapshot_name){3, false, 0}, true);
    assert_int_equal(dtp_snapshot_turn(FOLDER, 3, false, 20, 4), 1);
    assert_int_equal(dtp_snapshot_turn(FOLDER, 3, false, 20, 3), 0); /* of other ranks */
    assert_int_equal(dtp_snapshot_turn(FOLDER, 3, false, 30, 4), 0);
    assert_int_equal(dtp_snapshot_turn(FOLDER, 3, true, 20, 4), 0);
    write_file(30, 4, &(struct dtp_snapshot_name){3, false, 1}, true);
    assert_int_equal(dtp_snapshot_turn(FOLDER, 3, false, 30, 4), 0);
}

static void test_forgetting(void **state)
{
    struct dtp_snapshot_entry entries[4];
    (void)state;
    write_file(10, 4, &(struct dtp_snapshot_name){0, false, 0}, true);
    write_file(20, 3, &(struct dtp_snapshot_name){0, false, 1}, true);
    dtp_snapshot_forget(FOLDER, 3);
    assert_int_equal(list(FOLDER, IDENTITY, entries, 4), 1);
    assert_int_equal(entries[0].head.world, 3);
    dtp_snapshot_forget(FOLDER, 0);
    assert_int_not_equal(access(FOLDER, F_OK), 0);
}

/* Forty ranks share a folder. Of step 20 there are 39 ranks' parts and 39 copies of them; of step 10 all, and so it is
 * taken by the one rank that goes on. */
static void test_an_older_whole_one_among_many(void **state)
{
    enum { RANKS = 40, SHARE = ELEMENTS / RANKS };
    struct dtp_world world = {.ranks = {.rank = 0, .world = 1}};
    struct dtp_faults faults = {0};
    struct dtp_snapshots *snapshots;
    struct dtp_checkpoint_position position;
    struct dtp_device *device;
    float back[ELEMENTS] = {0};
    bool found;
    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t turn = 0; turn < 2; turn++)
            for (uint32_t copy = 0; copy < 2; copy++) {
                const struct dtp_snapshot_block part = {
                    0, DTP_STATE_MASTER, DTP_ELEMENT_FP32, 0, rank * SHARE, (rank + 1) * SHARE, 0};
                struct dtp_snapshot_head head = head_of(turn ? 20 : 10, RANKS, rank);
                struct dtp_snapshot_file file;
                if ((turn == 0 && copy) || (turn == 1 && rank == RANKS - 1))
                    continue;
                head.data_bytes = SHARE * sizeof *values;
                head.blocks_crc = dtp_crc64(0, &part, sizeof part);
                head.data_crc = dtp_crc64(0, values + rank * SHARE, head.data_bytes);
                dtp_snapshot_seal(&head);
                const struct dtp_snapshot_name name = {rank, copy, turn};
                assert_int_equal(dtp_snapshot_create(FOLDER, &name, &file, &faults), DTP_OK);
                assert_int_equal(dtp_snapshot_append(&file, &part, sizeof part, &faults), DTP_OK);
                assert_int_equal(dtp_snapshot_append(&file, values + rank * SHARE, head.data_bytes, &faults), DTP_OK);
                assert_int_equal(dtp_snapshot_finish(&file, &head, &faults), DTP_OK);
                dtp_snapshot_close(&file);
            }
    assert_int_equal(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults), DTP_OK);
    const struct dtp_snapshot_options options = {
        .world = &world, .device = device, .folder = FOLDER, .identity = IDENTITY};
    const struct dtp_state_part part = {
        .kind = DTP_STATE_MASTER, .element = DTP_ELEMENT_FP32, .begin = 0, .end = ELEMENTS, .values = back};
    assert_int_equal(dtp_snapshots_open(&options, &snapshots, &faults), DTP_OK);
    assert_int_equal(dtp_snapshots_restore(snapshots, &part, 1, 0, &position, &found, &faults), DTP_OK);
    assert_true(found);
    assert_int_equal(position.step, 10);
    assert_memory_equal(back, values, sizeof values);
    dtp_snapshots_close(snapshots, false);
    device->verbs->destroy(device);
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

static void test_copies_arrive(void **state)
{
    struct dtp_peer_server *server;
    struct dtp_faults faults = {0};
    struct dtp_snapshot_entry entry;
    float back[16];
    (void)state;
    assert_int_equal(dtp_peer_serve("127.0.0.1", OTHER, &server, &faults), DTP_OK);
    dtp_peer_trust(server, 4242, IDENTITY);
    struct dtp_peer peer = dtp_peer_own(server);
    struct dtp_snapshot_head head = head_of(50, 2, 1);
    struct dtp_peer_copy copy = {&head, &block, values, 0, 0};
    assert_int_equal(dtp_peer_put(&peer, 4242, &copy, &faults), DTP_OK);
    assert_int_equal(list(OTHER, IDENTITY, &entry, 1), 1);
    assert_true(entry.name.copy && entry.name.rank == 1 && entry.head.position.step == 50);
    assert_true(dtp_snapshot_verify(OTHER, &entry));
    /* elements 100 to 115 stand behind the head, one block and 100 elements */
    assert_int_equal(dtp_peer_get(&peer, 4242, &entry.name, 4096 + 40 + 400, back, sizeof back, &faults), DTP_OK);
    assert_memory_equal(back, values + 100, sizeof back);
    assert_int_equal(dtp_peer_get(&peer, 4242, &entry.name, 1 << 20, back, sizeof back, &faults), DTP_ENVIRONMENT);
    assert_int_equal(dtp_peer_get(&peer, 4241, &entry.name, 0, back, sizeof back, &faults), DTP_ENVIRONMENT);
    /* a second one goes to the other turn, the one to be kept stays */
    head = head_of(60, 2, 1);
    copy.keep_step = 50, copy.keep_world = 2;
    assert_int_equal(dtp_peer_put(&peer, 4242, &copy, &faults), DTP_OK);
    struct dtp_snapshot_entry two[2];
    assert_int_equal(list(OTHER, IDENTITY, two, 2), 2);
    /* elements that do not have the head's sum are no snapshot */
    head = head_of(70, 2, 1);
    head.data_crc ^= 1;
    dtp_snapshot_seal(&head);
    copy.keep_step = 60;
    assert_int_equal(dtp_peer_put(&peer, 4242, &copy, &faults), DTP_ENVIRONMENT);
    assert_int_equal(list(OTHER, IDENTITY, two, 2), 1);
    assert_int_equal(two[0].head.position.step, 60);
    dtp_peer_stop(server);
    assert_int_equal(dtp_peer_put(&peer, 4242, &copy, &faults), DTP_ENVIRONMENT); /* nobody is there any more */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_newest_first, fresh, clean),
        cmocka_unit_test_setup_teardown(test_half_written_is_none, fresh, clean),
        cmocka_unit_test_setup_teardown(test_each_changed_byte_is_found, fresh, clean),
        cmocka_unit_test_setup_teardown(test_turn_keeps_the_last_whole_one, fresh, clean),
        cmocka_unit_test_setup_teardown(test_forgetting, fresh, clean),
        cmocka_unit_test_setup_teardown(test_an_older_whole_one_among_many, fresh, clean),
        cmocka_unit_test_setup_teardown(test_copies_arrive, fresh, clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
