/*
 * half.h - bf16 and fp16 to fp32 and back, the same on every compiler and device.
 *
 * bf16 is the upper half of an IEEE-754 binary32, fp16 is binary16. Rounding is to nearest, ties to
 * even, and what is too large becomes an infinity. A NaN stays a NaN: of bf16 quiet, with its upper
 * bits; of fp16 always SPW__FP16_NAN, because units that convert in hardware keep different bits.
 * By integer operations, but for one exact or correctly rounded sum among fp16's subnormals, and
 * without branches, so that loops over them become vectors. Shared by C and CUDA through
 * SPW__INLINE.
 */
#ifndef SPW_BASE_HALF_H
#define SPW_BASE_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SPW__INLINE static __host__ __device__ __forceinline__
#else
#define SPW__INLINE static inline
#endif

SPW__INLINE uint32_t spw__bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SPW__INLINE float spw__float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SPW__INLINE float spw__float_of_bf16(uint16_t half)
{
    return spw__float_of_bits((uint32_t)half << 16);
}

SPW__INLINE uint16_t spw__bf16_of_float(float value)
{
    uint32_t bits = spw__bits_of_float(value);
    uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    uint32_t is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return (uint16_t)((is_nan ? bits | 0x00400000u : rounded) >> 16);
}

#define SPW__FP16_NAN 0x7E00u

/* All ones where `holds`; as an integer, which a compiler does not turn into a branch. */
SPW__INLINE uint32_t spw__ones_if(int holds)
{
    return 0u - (uint32_t)holds;
}

/* fp16's exponents lie 112 below fp32's; its infinities and NaNs have fp32's largest one. */
SPW__INLINE float spw__float_of_fp16(uint16_t half)
{
    const uint32_t rebase = 112u << 23, one_up = 1u << 23;
    uint32_t sign = (half & 0x8000u) << 16;
    int32_t magnitude = (half & 0x7FFF) << 13;
    uint32_t is_last = spw__ones_if(magnitude >= 0x0F800000);
    uint32_t is_subnormal = spw__ones_if(magnitude < 0x00800000);
    uint32_t bits = (uint32_t)magnitude + rebase + (is_last & rebase);
    /* 2^-14 and the fraction beneath it, less 2^-14: exact */
    float fraction = spw__float_of_bits((uint32_t)magnitude + rebase + one_up) - 0x1p-14f;
    bits = (is_subnormal & spw__bits_of_float(fraction)) | (~is_subnormal & bits);
    return spw__float_of_bits(bits | sign);
}

SPW__INLINE uint16_t spw__fp16_of_float(float value)
{
    uint32_t bits = spw__bits_of_float(value);
    int32_t magnitude = (int32_t)(bits & 0x7FFFFFFFu);
    uint32_t is_nan = spw__ones_if(magnitude > 0x7F800000);
    uint32_t is_small = spw__ones_if(magnitude < 0x38800000);          /* below 2^-14 */
    int32_t bounded = magnitude < 0x47800000 ? magnitude : 0x47800000; /* 2^16: infinity */
    uint32_t rounded = (uint32_t)bounded + 0x0FFFu + ((uint32_t)bounded >> 13 & 1u);
    uint32_t half = (rounded >> 13) - (112u << 10);
    /* The last bit of a float next to 0.5 is 2^-24, fp16's smallest: the sum rounds to it. */
    uint32_t small =
        spw__bits_of_float(spw__float_of_bits((uint32_t)magnitude) + 0.5f) - 0x3F000000u;
    half = (is_small & small) | (~is_small & half);
    half |= bits >> 16 & 0x8000u;
    return (uint16_t)((is_nan & SPW__FP16_NAN) | (~is_nan & half));
}

#endif
