/* Inside of the Megatron format: what its flags say of experts and latent attention, both ways. */
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

/* Heads, whether queries, keys and values are projected from the stream or from latents. */
enum dtp_status dtp_megatron_read_heads(struct dtp_reading *r);
/* `ffn` is the width of a layer without experts. */
enum dtp_status dtp_megatron_read_experts(struct dtp_reading *r, uint64_t ffn);
void dtp_megatron_write_heads(struct dtp_writing *w);
void dtp_megatron_write_experts(struct dtp_writing *w);

#endif
