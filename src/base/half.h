/*
 * half.h - bf16 and fp32 by integer operations, the same on every compiler and device.
 *
 * bf16 is the upper half of an IEEE-754 binary32. Rounding is to nearest, ties to even; a NaN
 * stays a NaN (quiet). Shared by C and CUDA through SPW__INLINE.
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

#endif
