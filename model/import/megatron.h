/* Inside of the formats of Megatron's words (its flags, NeMo's and Megatron-Bridge's yaml): what settings of these
 * names say together, and of experts and latent attention both ways. */
#ifndef DTP_IMPORT_MEGATRON_H
#define DTP_IMPORT_MEGATRON_H

#include "import/write.h"

/* A fact that is a number, within what models have. */
uint64_t dtp_megatron_count(const struct dtp_reading *r, const char *fact, uint64_t otherwise);
/* The key made of a fact, whose line is named where the file says it; the worse of both statuses. */
enum dtp_status dtp_megatron_make(struct dtp_reading *r, enum dtp_status worst, const char *key, const char *value,
                                  const char *fact);
enum dtp_status dtp_megatron_make_count(struct dtp_reading *r, enum dtp_status worst, const char *key, uint64_t value,
                                        const char *fact);
/* A switch that is off is not there. */
void dtp_megatron_say_if(struct dtp_writing *w, const char *name, bool on);

/* All that facts of Megatron's names say. A key that the caller has made stays as it is, so that what a program does
 * otherwise than Megatron's flags is made before. */
enum dtp_status dtp_megatron_read(struct dtp_reading *r);
/* Of a loss that is fused: by `kernel`, a value of cross_entropy_fusion_impl, or NULL where none is stated, which is
 * Megatron-Core's own (model_parallel_config.py). */
const char *dtp_megatron_fused_loss(const char *kernel);
bool dtp_megatron_is(const char *text, const char *word);
/* One of two overlaps alone is not modelled. */
enum dtp_status dtp_megatron_read_overlap(struct dtp_reading *r, bool sharded, bool reduce, bool gather);
/* Which layers have experts; for a file that says it of a model that is named elsewhere. */
enum dtp_status dtp_megatron_read_layers(struct dtp_reading *r);

/* Heads, whether queries, keys and values are projected from the stream or from latents. */
enum dtp_status dtp_megatron_read_heads(struct dtp_reading *r);
/* `ffn` is the width of a layer without experts. */
enum dtp_status dtp_megatron_read_experts(struct dtp_reading *r, uint64_t ffn);
/* What facts and keys of Megatron's names can say of the job; those that a format has no row of are left to it. */
void dtp_megatron_write(struct dtp_writing *w);
void dtp_megatron_write_heads(struct dtp_writing *w);
void dtp_megatron_write_experts(struct dtp_writing *w);

#endif
