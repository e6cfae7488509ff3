/* Which layers of a config.json see a window of tokens only. */
#include "net/hf_family.h"

#include <inttypes.h>
#include <string.h>

#define SLIDES "sliding_attention"

void dtp_hf_read_window(struct dtp_hf_reader *reader, uint64_t absent, struct dtp_transformer *t)
{
    /* dtp_hf_integer cannot tell null, which is no window, from an absent key */
    if (json_object_get(reader->object, "sliding_window"))
        absent = DTP_HF_MAX_SEQUENCE;
    uint64_t window = dtp_hf_integer(reader, "sliding_window", absent, 1, DTP_HF_MAX_SEQUENCE);
    t->sliding_window = window < t->max_sequence ? window : 0;
}

/* The text at `index` of layer_types, which is refused where it is no list of known words. */
static const char *layer_type(struct dtp_hf_reader *reader, const json_t *types, size_t index)
{
    const char *type = json_string_value(json_array_get(types, index));
    if (!type)
        dtp_hf_refuse(reader, "layer_types", "holds something other than strings");
    else if (strcmp(type, SLIDES) && strcmp(type, "full_attention"))
        dtp_hf_refuse(reader, "layer_types", "holds \"%.40s\"; full_attention and " SLIDES " are modelled", type);
    else
        return type;
    return NULL;
}

/* Of a list the step n of which every n-th layer sees all: 1 where all do, 0 where none does. False where it is no
 * such list, which was refused. */
static bool read_step(struct dtp_hf_reader *reader, const json_t *types, uint64_t *step)
{
    *step = 0;
    if (!json_is_array(types)) {
        dtp_hf_refuse(reader, "layer_types", "is no list; a list of strings is needed");
        return false;
    }
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = layer_type(reader, types, i);
        if (!type)
            return false;
        bool slides = !strcmp(type, SLIDES);
        if (!slides && *step == 0)
            *step = i + 1;
        if (slides == (*step && (i + 1) % *step == 0)) {
            dtp_hf_refuse(reader, "layer_types",
                          "lets layers slide in an order that is not modelled: all but every n-th, all or none are");
            return false;
        }
    }
    return true;
}

static void set_step(struct dtp_transformer *t, uint64_t step)
{
    if (step == 1)
        t->sliding_window = 0;
    t->sliding_window_pattern = t->sliding_window ? step : 0;
}

void dtp_hf_read_window_pattern(struct dtp_hf_reader *reader, uint64_t absent, uint64_t step, struct dtp_transformer *t)
{
    const json_t *types = dtp_hf_value(reader, "layer_types");
    dtp_hf_read_window(reader, absent, t);
    uint64_t said =
        dtp_hf_integer(reader, "sliding_window_pattern|_sliding_window_pattern", step, 0, DTP_HF_MAX_LAYERS);
    if (!types || read_step(reader, types, &said))
        set_step(t, said);
}

void dtp_hf_read_qwen_window(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    if (!dtp_hf_switch(reader, "use_sliding_window", false))
        return;
    const json_t *types = dtp_hf_value(reader, "layer_types");
    if (types) {
        dtp_hf_read_window_pattern(reader, 4096, 0, t);
        return;
    }
    /* layers from max_window_layers on use the window */
    uint64_t full = dtp_hf_integer(reader, "max_window_layers", 28, 0, DTP_HF_MAX_SEQUENCE);
    uint64_t sliding = full < t->layers ? t->layers - full : 0;
    if (sliding == 0)
        return;
    dtp_hf_read_window(reader, 4096, t);
    if (t->sliding_window && sliding < t->layers)
        dtp_hf_refuse(reader, "use_sliding_window",
                      "is true for %" PRIu64 " of %" PRIu64 " layers; all or none are modelled", sliding, t->layers);
}
