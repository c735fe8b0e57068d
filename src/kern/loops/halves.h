/*
 * halves.h - elements of any type, and whole blocks of them, to fp32 and back, for loops.c alone.
 *
 * Types are constants where these are called. Blocks of fp16 go by F16C where the vector width has
 * it: the same results as half.h, bit for bit (its rounding comes with the instruction and does not
 * depend on flush-to-zero modes), in a sixth of the instructions.
 */
#ifndef SPW_KERN_LOOPS_HALVES_H
#define SPW_KERN_LOOPS_HALVES_H

#include "base/half.h"
#include "kern/kern.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE float load(const void *data, spw_type type, uint64_t i)
{
    if (type == SPW_FP32)
        return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return type == SPW_BF16 ? spw__float_of_bf16(half) : spw__float_of_fp16(half);
}

ALWAYS_INLINE void store(void *data, spw_type type, uint64_t i, float value)
{
    if (type == SPW_FP32)
        ((float *)data)[i] = value;
    else if (type == SPW_BF16)
        ((uint16_t *)data)[i] = spw__bf16_of_float(value);
    else
        ((uint16_t *)data)[i] = spw__fp16_of_float(value);
}

#ifdef __F16C__

#include <immintrin.h>

static inline void widen_fp16(float *restrict room, const uint16_t *restrict data)
{
    for (int i = 0; i < SPW__BLOCK; i += 8)
        _mm256_storeu_ps(room + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(data + i))));
}

/* A NaN becomes the one whose upper bits are SPW__FP16_NAN. */
static inline void narrow_fp16(uint16_t *restrict data, const float *restrict room)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    for (int i = 0; i < SPW__BLOCK; i += 8) {
        __m256 x = _mm256_loadu_ps(room + i);
        x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        _mm_storeu_si128((void *)(data + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
}

#else

static inline void widen_fp16(float *restrict room, const uint16_t *restrict data)
{
    for (int i = 0; i < SPW__BLOCK; i++)
        room[i] = spw__float_of_fp16(data[i]);
}

static inline void narrow_fp16(uint16_t *restrict data, const float *restrict room)
{
    for (int i = 0; i < SPW__BLOCK; i++)
        data[i] = spw__fp16_of_float(room[i]);
}

#endif

/* A block of halves into `room`; of fp32: nothing, it is used where it lies. */
ALWAYS_INLINE void widen(float *restrict room, const void *restrict data, spw_type type)
{
    if (type == SPW_FP16)
        widen_fp16(room, data);
    for (int i = 0; type == SPW_BF16 && i < SPW__BLOCK; i++)
        room[i] = load(data, type, (uint64_t)i);
}

ALWAYS_INLINE void narrow(void *restrict data, const float *restrict room, spw_type type)
{
    if (type == SPW_FP16)
        narrow_fp16(data, room);
    for (int i = 0; type == SPW_BF16 && i < SPW__BLOCK; i++)
        store(data, type, (uint64_t)i, room[i]);
}

#endif
