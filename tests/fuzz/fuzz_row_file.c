/* libFuzzer target: any bytes are rows of a sweep that goes on, or the file is refused and left as it was. What is gone
 * on from keeps every whole row, and loses nothing but the beginning of one more. The first byte chooses whether rows
 * may be there.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_row_file -max_total_time=600 -max_len=2048 CORPUS_FOLDER tests/corpus/row_file */
#include "page/row_file.h"

#include "fuzz_fixture.h"

#include <inttypes.h>

#define HEADER "schema,sweep,row,swept,value\n"
#define ROW "dtplan.sweep/1,%016" PRIx64 ",%zu,"
#define MOST_ROWS 20
#define ROOM 8192

static char path[PATH_MAX];

static void clean(void)
{
    unlink(path);
    rmdir(fuzz_folder_path);
}

static enum dtp_status go_on(bool anew, struct dtp_row_file *file, struct dtp_faults *faults)
{
    const struct dtp_row_file_kind kind = {"dtplan.sweep/1", HEADER, 0xff, 0xfe, anew};
    forget_faults(faults);
    enum dtp_status status = dtp_row_file_open(path, &kind, MOST_ROWS, file, faults);
    expect_faults(status, faults);
    if (status == DTP_OK)
        expect(dtp_row_file_close(file, faults) == DTP_OK);
    return status;
}

/* What was cut off is the beginning of the row that comes next, or of the header. */
static void expect_own(const uint8_t *cut, size_t bytes, bool header, uint64_t digest, size_t row)
{
    char begins[sizeof ROW + 32];
    expect(!memchr(cut, '\n', bytes));
    snprintf(begins, sizeof begins, ROW, digest, row);
    const char *own = header ? HEADER : begins;
    size_t known = strlen(own) < bytes ? strlen(own) : bytes;
    expect(memcmp(cut, own, known) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    static char after[ROOM];
    struct dtp_row_file file, again;
    if (bytes < 1 || bytes > ROOM / 2)
        return 0;
    bool anew = data[0] & 1;
    data++, bytes--;
    if (!*path)
        snprintf(path, sizeof path, "%s/rows.csv", fuzz_folder(clean));
    fuzz_write(path, data, bytes);
    enum dtp_status status = go_on(anew, &file, &faults);
    size_t left = fuzz_read(path, after, sizeof after);
    if (status != DTP_OK) {
        expect(left == bytes && memcmp(after, data, bytes) == 0);
        return 0;
    }
    expect(file.rows <= MOST_ROWS && (size_t)file.whole_bytes == left && (!anew || file.rows == 0));
    bool begun = left <= bytes; /* else the header was written anew */
    expect(memcmp(after, begun ? (const void *)data : HEADER, left) == 0);
    size_t kept = bytes < strlen(HEADER) ? 0 : left;
    expect_own(data + kept, bytes - kept, kept == 0, file.digest, (size_t)file.rows);
    size_t lines = 0;
    for (size_t i = 0; i < left; i++)
        lines += after[i] == '\n';
    expect(lines == (size_t)file.rows + 1);
    expect(go_on(anew, &again, &faults) == DTP_OK && again.rows == file.rows && again.whole_bytes == file.whole_bytes);
    return 0;
}
