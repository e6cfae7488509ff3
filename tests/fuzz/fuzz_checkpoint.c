/* libFuzzer target: any bytes are the manifest of a checkpoint, or with another first byte the index of a rank's file,
 * or are refused; what is read fills every element that was asked for with what stands in the file.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_checkpoint -max_total_time=600 -max_len=1024 CORPUS_FOLDER tests/corpus/checkpoint */
#include "checkpoint/checkpoint.h"
#include "base/crc64.h"

#include "fuzz_fixture.h"

#include <inttypes.h>

/* All bytes of the elements are one and the same, so that a block may begin anywhere and gives the same numbers. */
#define ELEMENTS 16
#define EVERY_BYTE 0x3f

static const char known_index[] =
    "{\"schema\":\"" DTP_CHECKPOINT_SCHEMA "\",\"blocks\":[{\"module\":3,\"kind\":\"weights\",\"element\":\"fp32\","
    "\"begin\":0,\"end\":16,\"offset_bytes\":0,\"crc64\":\"%016" PRIx64 "\"}]}";
static const char known_manifest[] =
    "{\"schema\":\"" DTP_CHECKPOINT_SCHEMA "\",\"step\":5,\"samples\":50,\"skipped\":1,\"seed\":\"42\",\"model\":\"m\","
    "\"data\":\"d\",\"index_crc64\":[\"%016" PRIx64 "\"]}";

enum { FOLDER, MANIFEST, INDEX, ELEMENT_FILE, PATH_COUNT };
static const char *const names[PATH_COUNT] = {"step-00000005", "step-00000005/manifest.json",
                                              "step-00000005/rank-0000.json", "step-00000005/rank-0000.bin"};
static char paths[PATH_COUNT][PATH_MAX];
static struct dtp_device *device;

static void clean(void)
{
    for (int i = PATH_COUNT - 1; i > FOLDER; i--)
        unlink(paths[i]);
    rmdir(paths[FOLDER]);
    rmdir(fuzz_folder_path);
    device->verbs->destroy(device);
}

static void begin(void)
{
    char elements[ELEMENTS * sizeof(float)];
    const char *folder = fuzz_folder(clean);
    memset(elements, EVERY_BYTE, sizeof elements);
    for (int i = 0; i < PATH_COUNT; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
    expect(dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, NULL) == DTP_OK);
    expect(mkdir(paths[FOLDER], 0700) == 0);
    fuzz_write(paths[ELEMENT_FILE], elements, sizeof elements);
}

/* The input and what it does not say, so that the sums are right where nothing else is wrong. */
static void write_files(bool manifest, const uint8_t *data, size_t bytes)
{
    char elements[ELEMENTS * sizeof(float)], text[1024];
    memset(elements, EVERY_BYTE, sizeof elements);
    if (manifest) {
        int length = snprintf(text, sizeof text, known_index, dtp_crc64(0, elements, sizeof elements));
        fuzz_write(paths[MANIFEST], data, bytes);
        fuzz_write(paths[INDEX], text, (size_t)length);
    } else {
        int length = snprintf(text, sizeof text, known_manifest, dtp_crc64(0, data, bytes));
        fuzz_write(paths[MANIFEST], text, (size_t)length);
        fuzz_write(paths[INDEX], data, bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    static const struct dtp_checkpoint_identity identity = {"m", "d", 42};
    unsigned char out[ELEMENTS * sizeof(float)] = {0};
    const struct dtp_state_part part = {3, DTP_STATE_WEIGHTS, DTP_ELEMENT_FP32, 0, ELEMENTS, out};
    struct dtp_checkpoint_position position = {0};
    if (bytes < 1)
        return 0;
    if (!device)
        begin();
    bool manifest = data[0] % 2 != 0;
    write_files(manifest, data + 1, bytes - 1);
    forget_faults(&faults);
    enum dtp_status status =
        dtp_checkpoint_read(fuzz_folder(clean), false, device, &identity, &position, &part, 1, &faults);
    expect(status == faults.status); /* other data is a remark */
    expect(status == DTP_OK || faults.count > 0);
    for (size_t i = 0; i < sizeof out && status == DTP_OK; i++)
        expect(out[i] == EVERY_BYTE);
    expect(status != DTP_OK || manifest || (position.step == 5 && position.samples == 50 && position.skipped == 1));
    return 0;
}
