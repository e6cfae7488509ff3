/* Floats of 16 and 8 bits on the host: fp16 as IEEE 754 has it, and the two formats of 8 bits as "FP8 Formats for Deep
 * Learning" (Micikevicius et al. 2022) has them and GPUs convert to them (PTX ISA, cvt.rn.satfinite): to nearest, ties
 * to even, and what is beyond the largest number becomes that one. E4M3 has no infinity and one NaN. */
#ifndef DTP_SMALL_FLOAT_H
#define DTP_SMALL_FLOAT_H

#include <stdint.h>
#include <string.h>

#define DTP_E4M3_MAX 448.0f
#define DTP_E5M2_MAX 57344.0f
#define DTP_FP16_BEYOND 65520.0f /* from here on nearest is infinity: 65504 is the largest, 32 its half step */

static inline float dtp_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t dtp_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* A magnitude of a format with so many bits of mantissa and such a bias, nearest, ties to even; overflow is the
 * caller's. Below the smallest normal number its steps are all alike: a sum with a number whose own step is theirs
 * rounds to one of them. */
static inline uint32_t dtp_small_of_magnitude(float magnitude, uint32_t mantissa, uint32_t bias)
{
    uint32_t bits = dtp_bits_of_float(magnitude), shift = 23 - mantissa;
    if (bits < (128 - bias) << 23) {
        float step = dtp_float_of_bits((128 - bias + shift) << 23);
        return dtp_bits_of_float(magnitude + step) - dtp_bits_of_float(step);
    }
    bits += (UINT32_C(1) << (shift - 1)) - 1 + (bits >> shift & 1);
    return (bits >> shift) - ((127 - bias) << mantissa);
}

/* The number that such bits without their sign are: with the exponent where fp32 has it, but for the bias. */
static inline float dtp_magnitude_of_small(uint32_t bits, uint32_t mantissa, uint32_t bias)
{
    return dtp_float_of_bits(bits << (23 - mantissa)) * dtp_float_of_bits((254 - bias) << 23);
}

static inline float dtp_fp16_to_float(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16, bits = value & 0x7FFFu;
    if (bits >= 0x7C00u)
        return dtp_float_of_bits(sign | 0x7F800000u | bits << 13);
    return dtp_float_of_bits(sign | dtp_bits_of_float(dtp_magnitude_of_small(bits, 10, 15)));
}

static inline uint16_t dtp_fp16_from_float(float value)
{
    uint32_t bits = dtp_bits_of_float(value), sign = bits >> 16 & 0x8000u;
    float magnitude = dtp_float_of_bits(bits & 0x7FFFFFFFu);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u);
    return (uint16_t)(sign | (magnitude >= DTP_FP16_BEYOND ? 0x7C00u : dtp_small_of_magnitude(magnitude, 10, 15)));
}

static inline float dtp_e4m3_to_float(uint8_t value)
{
    uint32_t sign = (uint32_t)(value & 0x80u) << 24, bits = value & 0x7Fu;
    uint32_t magnitude = bits == 0x7Fu ? 0x7FC00000u : dtp_bits_of_float(dtp_magnitude_of_small(bits, 3, 7));
    return dtp_float_of_bits(sign | magnitude);
}

static inline uint8_t dtp_e4m3_from_float(float value)
{
    uint32_t bits = dtp_bits_of_float(value), sign = bits >> 24 & 0x80u;
    float magnitude = dtp_float_of_bits(bits & 0x7FFFFFFFu);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7Fu;
    return (uint8_t)(sign | dtp_small_of_magnitude(magnitude < DTP_E4M3_MAX ? magnitude : DTP_E4M3_MAX, 3, 7));
}

static inline float dtp_e5m2_to_float(uint8_t value)
{
    return dtp_fp16_to_float((uint16_t)(value << 8));
}

static inline uint8_t dtp_e5m2_from_float(float value)
{
    uint32_t bits = dtp_bits_of_float(value), sign = bits >> 24 & 0x80u;
    float magnitude = dtp_float_of_bits(bits & 0x7FFFFFFFu);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7Fu;
    return (uint8_t)(sign | dtp_small_of_magnitude(magnitude < DTP_E5M2_MAX ? magnitude : DTP_E5M2_MAX, 2, 15));
}

#endif
