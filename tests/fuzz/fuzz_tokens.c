/* libFuzzer target: any bytes are a file of tokens or are refused; what is one gives tokens of the vocabulary for every
 * sample, or names the one that is not. The first four bytes choose type, ending, sequence and vocabulary.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_tokens -max_total_time=600 -max_len=2048 CORPUS_FOLDER tests/corpus/tokens */
#include "data/token_source.h"

#include "fuzz_fixture.h"

#define CHOICE_BYTES 4

static const char *const endings[] = {".bin", ".u16", ".u32", ".txt"};
enum { ENDING_COUNT = sizeof endings / sizeof *endings };
static char paths[ENDING_COUNT][PATH_MAX];

static void clean(void)
{
    for (int i = 0; i < ENDING_COUNT; i++)
        unlink(paths[i]);
    rmdir(fuzz_folder_path);
}

static void expect_samples(const struct dtp_token_source *source, const struct dtp_token_shape *shape)
{
    static struct dtp_faults faults;
    static int32_t tokens[257 + 1];
    uint64_t samples = dtp_token_source_samples(source);
    const uint64_t some[] = {0, samples / 2, samples - 1, samples, UINT64_MAX};
    const char *words = dtp_token_source_words(source);
    expect(samples > 0 && *words && !words[dtp_printable_length(words)]);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        forget_faults(&faults);
        enum dtp_status status = dtp_token_source_read(source, some[i], tokens, &faults);
        expect_faults(status, &faults);
        for (uint64_t k = 0; k <= shape->sequence && status == DTP_OK; k++)
            expect(tokens[k] >= 0 && (uint64_t)tokens[k] < shape->vocab);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_token_source *source = NULL;
    if (bytes < CHOICE_BYTES)
        return 0;
    const struct dtp_token_shape shape = {
        .vocab = 2 + 256u * data[3], .sequence = 1 + data[1], .seed = (uint64_t)data[2]};
    char *path = paths[data[0] / 4 % ENDING_COUNT];
    if (!*path)
        snprintf(path, sizeof *paths, "%s/tokens%s", fuzz_folder(clean), endings[data[0] / 4 % ENDING_COUNT]);
    fuzz_write(path, data + CHOICE_BYTES, bytes - CHOICE_BYTES);
    forget_faults(&faults);
    enum dtp_status status = dtp_token_source_open(path, (enum dtp_token_type)(data[0] % 4), &shape, &source, &faults);
    expect_faults(status, &faults);
    expect((status == DTP_OK) == (source != NULL));
    if (source)
        expect_samples(source, &shape);
    dtp_token_source_close(source);
    return 0;
}
