/* libFuzzer target: any text is a layout of stages or is refused with words; what is a layout is whole, and its text
 * makes the same again. The first byte chooses the ranks, the model has as many layers as the text has t of it.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_stages -max_total_time=600 -max_len=256 CORPUS_FOLDER */
#include "schedule/stages.h"

#include "fuzz_fixture.h"

/* The same parts in the same stages. */
static void expect_same(const struct dtp_stages *a, const struct dtp_stages *b)
{
    expect(a->count == b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        const struct dtp_stage_parts *p = &a->parts[i], *q = &b->parts[i];
        expect(p->first_layer == q->first_layer && p->layers == q->layers && p->mtp_layers == q->mtp_layers);
        expect(p->embedding == q->embedding && p->head == q->head);
    }
}

static void expect_usable(const struct dtp_stages *stages, const struct dtp_stages_model *model, uint32_t ranks,
                          struct dtp_faults *faults)
{
    struct dtp_stages again;
    uint32_t layers = 0;
    expect(stages->count > 0 && stages->count % ranks == 0);
    expect(stages->parts[0].embedding && stages->parts[stages->count - 1].head);
    for (uint32_t i = 0; i < stages->count; i++) {
        expect(stages->parts[i].first_layer == layers);
        layers += stages->parts[i].layers;
    }
    expect(layers == model->layers);
    char *text = dtp_stages_text(stages);
    expect(text && dtp_stages_parse(text, model, ranks, &again, faults) == DTP_OK);
    expect_same(stages, &again);
    dtp_stages_destroy(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_stages stages;
    if (bytes < 2 || bytes > 4096)
        return 0;
    char *text = malloc(bytes);
    expect(text);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    uint32_t ranks = data[0] % 8 + 1;
    struct dtp_stages_model model = {0};
    forget_faults(&faults);
    enum dtp_status status = dtp_stages_parse(text, &model, ranks, &stages, &faults);
    expect(status == DTP_BAD_INPUT && faults.count > 0 &&
           !stages.parts);               /* no model is without a layer and with parts */
    unsigned layers = 0, mtp_layers = 0; /* the fault says what the text has */
    const char *has = strstr(faults.text[0], "layout: has ");
    if (has && sscanf(has, "layout: has %u t and %u m, but", &layers, &mtp_layers) == 2) {
        model = (struct dtp_stages_model){layers, mtp_layers};
        forget_faults(&faults);
        status = dtp_stages_parse(text, &model, ranks, &stages, &faults);
        expect((status == DTP_OK) == (faults.count == 0));
        if (status == DTP_OK)
            expect_usable(&stages, &model, ranks, &faults);
        dtp_stages_destroy(&stages);
    }
    free(text);
    return 0;
}
