/* What forward and backward of attention on tensor cores share (attention_mma.cu, attention_mma_backward.cu): how
 * scores become exponents, which squares of queries by keys need no mask, the widths that there are kernels for. */
#ifndef DTP_ATTENTION_MMA_CUH
#define DTP_ATTENTION_MMA_CUH

#include "kernels/attention_shape.cuh"
#include "kernels/mma.cuh"

#include <math.h>

namespace dtp
{

constexpr float ln_2 = 0.6931471805599453f;

/* A product of a query and a key becomes a score, in units of ln 2, since 2^x is what the special function unit has.
 * Soft caps bend it (soft_cap.h), ALiBi adds to it. */
struct score_rule {
    float scale, cap, slope; /* of a raw product; of its tanh, 0: none; by a key's distance */
    float back;              /* of the gradient: scale, and of tanh 1 / cap */
    uint32_t window;

    template <typename Arguments> __device__ static score_rule of(const Arguments &a, uint32_t head)
    {
        const float slope = a.alibi ? dtp_alibi_slope(head, a.heads) * log2_e : 0.0f;
        if (a.softcap > 0)
            return {a.scale / a.softcap, a.softcap * log2_e, slope, a.scale, a.window};
        return {a.scale * log2_e, 0.0f, slope, a.scale, a.window};
    }

    __device__ float exponent(float product, uint32_t query, uint32_t key) const
    {
        float score = cap > 0 ? cap * tanh_fast(product * scale) : product * scale;
        return slope == 0 ? score : score + bias(slope, query, key);
    }

    /* The product becomes the score's weight e^(score - log-sum-exp), `pulled`, the gradient's product with the value,
     * becomes the gradient of the product: weight (pulled - taken_back), through what bent the score. */
    __device__ void weigh(float &product, float &pulled, float log2_sum, float taken_back, uint32_t query, uint32_t key,
                          bool seen) const
    {
        const float bent = product * scale, turned = cap > 0 ? tanh_fast(bent) : 0.0f;
        float score = cap > 0 ? cap * turned : bent;
        if (slope != 0)
            score += bias(slope, query, key);
        const float weight = seen ? exp2_fast(score - log2_sum) : 0.0f;
        pulled = back * (1 - turned * turned) * weight * (pulled - taken_back);
        product = weight;
    }
};

/* Keys that some of `rows` queries from `first` on see, from a whole tile of them on. */
struct key_range {
    uint32_t begin, end;
};

__device__ inline key_range keys_seen(const attention_shape &s, uint32_t first, uint32_t rows, uint32_t window,
                                      uint32_t tile)
{
    if (s.around)
        return {0, s.keys};
    return {window && first >= window ? (first + 1 - window) / tile * tile : 0, min(first + rows, s.sequence)};
}

/* Whether each of `queries` queries sees each of `keys` keys, and all of them are there. */
__device__ inline bool all_seen(const attention_shape &s, uint32_t query, uint32_t queries, uint32_t key, uint32_t keys,
                                uint32_t window)
{
    if (key + keys > s.keys || query + queries > s.sequence)
        return false;
    return s.around || (key + keys - 1 <= query && (window == 0 || query + queries - 1 - key < window));
}

/* Calls `body` with types that name the widths of keys and of values as they lie in shared memory: the least that
 * hold them. Elements of 16 bits, whose heads are a multiple of 16 bytes wide. */
template <int DIM, int VALUES> struct widths {
    static constexpr int dim = DIM, values = VALUES;
};

template <typename Arguments, typename Body> int with_widths(const Arguments &a, Body body)
{
    const size_t dim = a.head_dim, values = value_of(a);
    if (dim % 8 || values % 8 || dim == 0 || values == 0)
        return (int)cudaErrorInvalidValue;
    if (dim <= 64 && values <= 64)
        return body(widths<64, 64>{});
    if (dim <= 96 && values <= 96)
        return body(widths<96, 96>{});
    if (dim <= 128 && values <= 128)
        return body(widths<128, 128>{});
    if (dim <= 192 && values <= 128)
        return body(widths<192, 128>{});
    if (dim <= 192 && values <= 192)
        return body(widths<192, 192>{});
    return dim <= 256 && values <= 256 ? body(widths<256, 256>{}) : (int)cudaErrorInvalidValue;
}

template <typename Arguments, typename Body> int with_half_widths(const Arguments &a, Body body)
{
    return with_widths(a, [&](auto width) {
        if (a.element == DTP_ELEMENT_BF16)
            return body(bf16{}, width);
        return a.element == DTP_ELEMENT_FP16 ? body(fp16{}, width) : (int)cudaErrorInvalidValue;
    });
}

} // namespace dtp

#endif
