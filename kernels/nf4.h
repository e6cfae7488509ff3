/* NormalFloat of 4 bits (Dettmers et al. 2023, arXiv:2305.14314, appendix E; the same sixteen numbers in bitsandbytes'
 * create_normal_map and torchao's NF4Tensor): quantiles of a normal distribution between -1 and 1, with a zero. A block
 * of DTP_NF4_BLOCK neighbours shares its largest magnitude, by which its numbers are multiplied. Two are a byte, the
 * first of them the higher half. Of the two nearest numbers as near the smaller is taken (the first that argmin finds).
 */
#ifndef DTP_NF4_H
#define DTP_NF4_H

#define DTP_NF4_NUMBERS                                                                                                \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,                   \
        -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,                \
        0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f,    \
        1.0f

#endif
