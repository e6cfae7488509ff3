/* The rows of models.csv and models_experts.csv: one transformer a row, refused when its dimensions do not give the
 * published count.
 *
 * Columns: key,name,layers,hidden,heads,kv_heads,head_dim,ffn,vocab,positions,max_sequence,norm,activation,
 * position,norm_bias,qkv_bias,attention_output_bias,mlp_bias,tied_head,head_bias,embedding_norm,qk_norm,final_norm,
 * sliding_window,sliding_window_pattern,parallel_block,norm_place,qk_norm_wide,norm_eps,norm_unit_offset,
 * embedding_scale,attention_softcap,final_softcap,qk_layer_norm,qk_norm_bias,qk_norm_weight,norm_without_weight,
 * experts,experts_per_token,expert_ffn,shared_expert_ffn,shared_expert_gate,dense_layers,expert_layer_step,router,
 * router_norm,router_scale,router_on_input,
 * expert_bias,router_bias,expert_groups,groups_per_token,chunked_attention,attention_sinks,q_latent,kv_latent,
 * rope_head_dim,value_head_dim,parameters,source.
 * Words: norm layer_norm | rms_norm; activation gelu | relu | swiglu | geglu | relu2 | swiglu_clamped | gelu_new;
 * position learned | rope | alibi | none; parallel_block none | one_norm | two_norms; norm_place before | after | both;
 * qk_norm_weight shared | by_head | none; router softmax | sigmoid; switches 0 | 1. Empty or absent: kv_heads = heads,
 * head_dim = hidden / heads, positions 0, max_sequence 0 (unknown), sliding_window 0 (none) in all layers,
 * parallel_block none, norm_place before, qk_norm_weight shared, norm_eps 1e-5, switches 0 but final_norm 1, parameters
 * unchecked; the rest must be there. */
#ifndef DTP_MODELS_H
#define DTP_MODELS_H

#include "base/table.h"
#include "net/transformer.h"

/* Fills *out from one row; its name is the key. All faults of the row at once. */
enum dtp_status dtp_transformer_from_row(const struct dtp_table *table, size_t row, struct dtp_transformer *out,
                                         struct dtp_faults *faults);

/* Words of the choices above, as the table and the reports write them. */
const char *dtp_norm_text(enum dtp_norm norm);
const char *dtp_parallel_block_text(enum dtp_parallel_block parallel);
const char *dtp_norm_place_text(enum dtp_norm_place place);
const char *dtp_activation_text(enum dtp_activation activation);
const char *dtp_qk_norm_weight_text(enum dtp_qk_norm_weight weight);
const char *dtp_position_text(enum dtp_position position);
const char *dtp_router_text(enum dtp_router router);

#endif
