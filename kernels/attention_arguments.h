/* Arguments of attention and of what context parallel ranks have around it: a part of kernels.h, which alone includes
 * it, behind the element types. */
#ifndef DTP_ATTENTION_ARGUMENTS_H
#define DTP_ATTENTION_ARGUMENTS_H

/* Causal self-attention on packed qkv [batch, sequence, (heads + 2 kv_heads), head_dim]: q heads, then k, then v; query
 * head h reads k and v of head h / (heads / kv_heads). `window` > 0: a query sees so many keys, its own the last of
 * them; 0: all up to its own. softcap c > 0: scaled scores x become c tanh(x / c). alibi: a bias by distance is added
 * to them (alibi.h), not with `keys`. result [batch, sequence, heads, head_dim]; log_sum_exp [batch, heads, sequence]
 * of the scaled scores. value_dim > 0, without `keys`: values, and so heads of the result, are so wide instead of
 * head_dim (latent attention).
 *
 * With `keys`, [batch, sequence, 2 kv_heads, head_dim]: k heads, then v, this is a step of a ring of context parallel
 * ranks (merge_attention): queries from first_query on see the first key_count of those keys, each of them, and no
 * window. Rows of the result before first_query stay; log_sum_exp is [batch, heads, sequence - first_query]. */
struct dtp_attention_args {
    const void *qkv, *keys;
    void *result;
    float *log_sum_exp;
    void *workspace;
    uint64_t workspace_bytes;
    uint32_t batch, sequence, heads, kv_heads, head_dim, window;
    uint32_t value_dim;              /* 0: head_dim */
    uint32_t first_query, key_count; /* with keys */
    float scale, softcap;
    bool alibi;
    enum dtp_element element;
};
/* qkv_gradient is packed as qkv and overwritten. atomic: a library may add up dQ by atomics, faster, but last bits
 * differ from run to run; as the program was lowered (model/cost/attention_workspace.h). With `keys` result, gradient
 * and log_sum_exp, [batch, heads, sequence], are of all steps together, and what this step adds to the gradients is
 * apart: query_gradient [batch, sequence, heads, head_dim] from first_query on, keys_gradient as keys, the first
 * key_count rows; other rows stay. */
struct dtp_attention_backward_args {
    const void *qkv, *keys, *result, *gradient; /* gradient of the result */
    const float *log_sum_exp;
    void *qkv_gradient, *query_gradient, *keys_gradient;
    void *workspace;
    uint64_t workspace_bytes;
    uint32_t batch, sequence, heads, kv_heads, head_dim, window;
    uint32_t value_dim;              /* 0: head_dim */
    uint32_t first_query, key_count; /* with keys */
    float scale, softcap;
    bool atomic, alibi;
    enum dtp_element element;
};
/* Attention sinks (gpt-oss): a learned score of each head stands beside those of keys and has no value. In place, of
 * what attention returned without them: result *= exp(lse - L), log_sum_exp = L = log(exp(lse) + exp(sink)). With these
 * attention's own backward makes the gradients of q, k and v: probabilities are exp(score - L), and what the
 * normalisation takes back is gradient . result (reference_attention.c), for a sink's value is 0. */
struct dtp_sinks_args {
    void *result;       /* [batch, sequence, heads, head_dim] */
    float *log_sum_exp; /* [batch, heads, sequence] */
    const void *sinks;  /* [heads] */
    uint32_t batch, sequence, heads, head_dim;
    enum dtp_element element, sinks_element;
};
/* Backward, given those results and L: the gradient of a sink is the sum over its head's queries of exp(sink - L) (0 -
 * gradient . result). */
struct dtp_sinks_backward_args {
    const void *result, *gradient;
    const float *log_sum_exp;
    const void *sinks;
    void *sinks_gradient;
    float *workspace; /* DTP_PARTIAL_SUM_ROWS floats for each head */
    uint32_t batch, sequence, heads, head_dim;
    enum dtp_element element, sinks_element, gradient_element;
    bool accumulate;
};
/* Results of steps of attention that saw some of the keys each, into that over all of them: with L = log sum exp(lse_i)
 * it is sum of exp(lse_i - L) result_i, in fp32. parts [steps][batch, sequence, heads, head_dim], part_log_sum_exp
 * [steps][batch heads sequence] floats. The first `whole` steps had all queries; the others those of the second half of
 * each sequence, whose log-sum-exps lie dense at the begin of theirs. */
struct dtp_merge_attention_args {
    const void *parts;
    const float *part_log_sum_exp;
    void *result;
    float *log_sum_exp; /* [batch, heads, sequence] */
    uint32_t steps, whole, batch, sequence, heads, head_dim;
    enum dtp_element element;
};
/* What a step with `keys` added: the rows of qkv_gradient's queries from first_query on += query_gradient; of sum,
 * which goes around the ring, the first key_count rows of each sequence += keys_gradient (accumulate) or = it, and the
 * others stay or are zero. */
struct dtp_merge_gradients_args {
    const void *query_gradient, *keys_gradient;
    void *qkv_gradient, *sum;
    uint32_t batch, sequence, heads, kv_heads, head_dim, first_query, key_count;
    enum dtp_element element;
    bool accumulate;
};
/* Columns of rows into columns of other rows, as they are or added to what stands there: for i < count[0], j <
 * count[1], k < count[2] the `width` elements from i from_step[0] + j from_step[1] + k from_step[2] on. */
struct dtp_columns_args {
    const void *from;
    void *to;
    uint64_t width, count[3], from_step[3], to_step[3]; /* elements */
    enum dtp_element element;
    bool accumulate;
};
/* Heads of a rank's tokens to where an all-to-all takes them, and back. rows: [batch, sequence, heads + 2 kv_heads,
 * head_dim], queries, then keys, then values; kv_heads 0: heads alone. laid_out: [chunks, batch, ranks, sequence, n,
 * head_dim], where n = (heads + 2 kv_heads) / (ranks chunks): of each kind those that the rank attends to in that
 * chunk, its c-th part of the rank's r-th part. With cosines queries and keys are turned as rotary turns them, or
 * turned back. heads and kv_heads are multiples of ranks chunks. */
struct dtp_lay_out_heads_args {
    void *rows, *laid_out;
    const float *cosines, *sines; /* [sequence, head_dim / 2]; NULL: nothing is turned */
    uint32_t batch, sequence, heads, kv_heads, head_dim, ranks, chunks;
    enum dtp_element element;
    bool back; /* rows are written, laid_out is read */
};
/* Heads of latent attention (DeepSeek-V2, section 2.1), packed as attention reads them, from what was projected.
 * queries [rows, heads, head_dim]; latents [rows, latent_row], whose last rope_dim columns are a part of keys that all
 * heads share; keys_values [rows, heads, head_dim - rope_dim + value_dim], in each head the rest of its key, then its
 * value. packed [rows, heads (2 head_dim + value_dim)]: queries, then keys, then values. Rope turns the last rope_dim
 * elements of queries and keys, neighbours (2 i, 2 i + 1) by the angle of pair i, as DeepSeek's weights have them
 * (rope_interleave in Transformers' modeling_deepseek_v3.py, which then puts first halves of pairs before second ones,
 * of queries and keys alike: their products are the same). */
struct dtp_latent_heads_args {
    const void *queries, *latents, *keys_values;
    void *packed;
    const float *cosines, *sines; /* [sequence, rope_dim / 2] */
    uint64_t rows;
    uint32_t sequence, heads, head_dim, rope_dim, value_dim, latent_row;
    enum dtp_element element;
};
/* The gradients of the same; of latents that of the shared part alone, summed over heads in their order: the columns
 * before it stay. */
struct dtp_latent_heads_backward_args {
    const void *packed; /* gradient */
    void *queries, *latents, *keys_values;
    const float *cosines, *sines;
    uint64_t rows;
    uint32_t sequence, heads, head_dim, rope_dim, value_dim, latent_row;
    enum dtp_element element;
};

#endif
