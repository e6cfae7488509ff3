/* libFuzzer target: any bytes are a program, or a set of them, or are refused; a program written out and read again is
 * the same; proving and placing it breaks nothing, and what is placed at one time is placed apart.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_program_text
 *   build-fuzz/tests/fuzz_program_text -max_total_time=600 -max_len=4096 tests/corpus/program_text */
#include "program/placement.h"
#include "program/program_set.h"
#include "program/program_text.h"
#include "program/verify.h"

#include <stdlib.h>

#include "fuzz_fixture.h"
#include "lib/same_program.h"

static void expect_round_trip(const struct dtp_program *program)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    expect(file != NULL);
    expect(dtp_program_write_text(program, file) == DTP_OK);
    fclose(file);
    struct dtp_program *again = NULL;
    expect(dtp_program_parse_text("again", text, bytes, &again, NULL) == DTP_OK);
    expect(same_program(program, again));
    dtp_program_destroy(again);
    free(text);
}

typedef enum dtp_status place(const struct dtp_program *program, struct dtp_placement *out, struct dtp_faults *faults);

static void expect_placed(const struct dtp_program *program, place *place_it)
{
    struct dtp_placement placement;
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    size_t count = dtp_program_buffer_count(program);
    if (place_it(program, &placement, NULL) != DTP_OK)
        return; /* more than 2^63 bytes */
    expect(placement.arena_bytes >= placement.live_peak_bytes);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i && placement.offset_bytes[i] != UINT64_MAX; j++) {
            struct dtp_lifetime a = placement.lifetime[i], b = placement.lifetime[j];
            uint64_t x = placement.offset_bytes[i], y = placement.offset_bytes[j];
            if (y == UINT64_MAX || a.first > b.last || b.first > a.last || !buffers[i].bytes || !buffers[j].bytes)
                continue;
            expect(x + buffers[i].bytes <= y || y + buffers[j].bytes <= x);
        }
    dtp_placement_release(&placement);
}

/* The sums are numbers, and every dependency can be asked about. */
static void expect_read(const struct dtp_program *program)
{
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    expect(totals.matmul_flops >= 0 && totals.memory_bytes >= 0);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bool redundant;
        if (op->dependency_count)
            expect(dtp_program_dependency_redundant(program, op, 0, &redundant, NULL) == DTP_OK);
    }
}

static void expect_set(const char *text, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_program_set set;
    forget_faults(&faults);
    enum dtp_status status = dtp_program_set_parse_text("fuzz", text, bytes, &set, &faults);
    expect((status == DTP_OK) == (set.role_count > 0));
    expect_faults(status, &faults);
    for (uint32_t r = 0; r < set.role_count; r++)
        expect_round_trip(set.roles[r].program);
    if (set.role_count == 0)
        return;
    status = dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults);
    expect_faults(status, &faults);
    if (dtp_program_set_verify(&set, DTP_ISSUE_IN_LINE, &faults) == DTP_OK) /* streams only ever allow more */
        expect(status == DTP_OK);
    dtp_program_set_release(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    expect_set((const char *)data, bytes);
    forget_faults(&faults);
    struct dtp_program *program = NULL;
    enum dtp_status status = dtp_program_parse_text("fuzz", (const char *)data, bytes, &program, &faults);
    expect((status == DTP_OK) == (program != NULL));
    expect_faults(status, &faults);
    if (!program)
        return 0;
    expect_round_trip(program);
    status = dtp_program_verify(program, &faults);
    expect_faults(status, &faults);
    expect_placed(program, dtp_program_place);
    expect_placed(program, dtp_program_place_tight);
    expect_read(program);
    dtp_program_destroy(program);
    return 0;
}
