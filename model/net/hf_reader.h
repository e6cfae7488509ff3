/* Typed look-ups in one JSON object of a config.json, each with a default and a fault that names file, line and key.
 *
 * A key absent or null takes its default, as the configuration classes of Hugging Face do. `keys` may name several
 * spellings of one thing ("n_layer|num_hidden_layers"); the first that is there counts, and two that disagree are a
 * fault. Looking up never stops at a fault: `bad` is set and the default returned, so that one pass finds them all. */
#ifndef DTP_HF_READER_H
#define DTP_HF_READER_H

#include "base/status.h"
#include "net/transformer.h"

#include <jansson.h>
#include <stdint.h>

struct dtp_hf_reader {
    const char *name; /* of the file, for messages */
    const char *text; /* the file itself, for line numbers */
    size_t bytes;
    const json_t *object; /* borrowed */
    const char *parent;   /* key of `object` in the outermost object, NULL for the outermost itself */
    struct dtp_faults *faults;
    bool bad;
};

/* A whole number in [minimum, maximum]. */
uint64_t dtp_hf_integer(struct dtp_hf_reader *reader, const char *keys, uint64_t absent, uint64_t minimum,
                        uint64_t maximum);
/* A number above 0, at most `maximum`. */
double dtp_hf_number(struct dtp_hf_reader *reader, const char *keys, double absent, double maximum);
bool dtp_hf_switch(struct dtp_hf_reader *reader, const char *keys, bool absent);
/* Borrowed from the object. */
const char *dtp_hf_text(struct dtp_hf_reader *reader, const char *keys, const char *absent);
/* The value of a key that is there and not null, else NULL. */
const json_t *dtp_hf_value(struct dtp_hf_reader *reader, const char *keys);
/* Records a fault at the line of the (first spelling of the) key. */
void dtp_hf_refuse(struct dtp_hf_reader *reader, const char *keys, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Names and values go to terminals and into JSON: what is not printable becomes '?'. */
void dtp_hf_keep_printable(char *text);
/* The name of the shape in the file at `path`: of the hub's repository, the file, its folder, or its `type`. */
void dtp_hf_name_after(const char *path, const char *type, char *out, size_t bytes);

/* "fp8" or "mxfp4" where quantization_config says that the published weights are stored so, else NULL; hf_unused.c. */
const char *dtp_hf_stored_as(struct dtp_hf_reader *reader);

/* "attention_dropout 0.1, torch_dtype float16": keys that change what training costs or learns, and nothing of what is
 * predicted of `transformer` or done by our executor, where they say something; hf_unused.c. */
void dtp_hf_list_unused(struct dtp_hf_reader *reader, const struct dtp_transformer *transformer, char *out,
                        size_t bytes);

#endif
