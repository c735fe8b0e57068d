/*
 * codes.h - one block between codes and fp32, for loops.c alone.
 *
 * The same results as the functions of elements.h, bit for bit. With AVX2 in intrinsics, because
 * what gcc and clang make of the look-ups is slow (a broadcast and a blend for each of eight takes
 * half the time of a gather on Zen 3); elsewhere the element functions themselves.
 */
#ifndef SPW_KERN_LOOPS_CODES_H
#define SPW_KERN_LOOPS_CODES_H

#include "kern/elements.h"

#ifdef __AVX2__

#include <immintrin.h>

static inline void decode_block(float *restrict dst, const uint8_t *restrict code,
                                const float *restrict value, float absmax)
{
    __m256 factor = _mm256_set1_ps(absmax);
    for (int i = 0; i < SPW__BLOCK; i += 8) {
        __m256 x = _mm256_set1_ps(value[code[i]]);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 1]]), 0x02);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 2]]), 0x04);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 3]]), 0x08);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 4]]), 0x10);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 5]]), 0x20);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 6]]), 0x40);
        x = _mm256_blend_ps(x, _mm256_set1_ps(value[code[i + 7]]), 0x80);
        _mm256_storeu_ps(dst + i, _mm256_mul_ps(x, factor));
    }
}

/* The bits of all ratios, ready for the look-up. */
static inline void ratio_bits(int32_t *restrict bits, const float *restrict x, spw__code_scale s)
{
    for (int i = 0; i < SPW__BLOCK; i++)
        bits[i] = spw__code_bits(x[i], s);
}

/* encode[bits >> 16] of eight elements */
static inline __m256i entries(const uint32_t *restrict encode, const int32_t *restrict bits)
{
#define ENTRY(i) _mm256_set1_epi32((int)encode[(bits[i] >> 16) - SPW__CODE_KEY_FIRST])
    __m256i e = ENTRY(0);
    e = _mm256_blend_epi32(e, ENTRY(1), 0x02);
    e = _mm256_blend_epi32(e, ENTRY(2), 0x04);
    e = _mm256_blend_epi32(e, ENTRY(3), 0x08);
    e = _mm256_blend_epi32(e, ENTRY(4), 0x10);
    e = _mm256_blend_epi32(e, ENTRY(5), 0x20);
    e = _mm256_blend_epi32(e, ENTRY(6), 0x40);
    return _mm256_blend_epi32(e, ENTRY(7), 0x80);
#undef ENTRY
}

/* spw__code_rank of eight elements. */
static inline __m256i code_ranks(const uint32_t *restrict encode, const int32_t *restrict bits)
{
    __m256i all = _mm256_loadu_si256((const __m256i *)bits);
    __m256i lower = _mm256_blend_epi16(all, _mm256_setzero_si256(), 0xAA);
    return _mm256_srli_epi32(_mm256_add_epi32(entries(encode, bits), lower), 16);
}

static inline __m256i codes_of_m(const uint32_t *restrict encode, const int32_t *restrict bits,
                                 const float *restrict x)
{
    __m256i sign = _mm256_srai_epi32(_mm256_castps_si256(_mm256_loadu_ps(x)), 31);
    __m256i rank = code_ranks(encode, bits);
    __m256i signed_rank = _mm256_sub_epi32(_mm256_xor_si256(rank, sign), sign);
    return _mm256_add_epi32(signed_rank, _mm256_set1_epi32(SPW__CODE_ZERO));
}

/* Four times eight codes to 32 bytes; -1 saturates to 0. */
static inline void store_codes(uint8_t *dst, const __m256i c[4])
{
    __m256i low = _mm256_packs_epi32(c[0], c[1]);
    __m256i high = _mm256_packs_epi32(c[2], c[3]);
    __m256i mixed = _mm256_packus_epi16(low, high);
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)dst, _mm256_permutevar8x32_epi32(mixed, order));
}

static inline void encode_m(uint8_t *restrict code, const float *restrict x,
                            const uint32_t *restrict encode, spw__code_scale scale)
{
    int32_t bits[SPW__BLOCK];
    ratio_bits(bits, x, scale);
    for (int i = 0; i < SPW__BLOCK; i += 32) {
        __m256i c[4];
        for (int k = 0; k < 4; k++)
            c[k] = codes_of_m(encode, bits + i + 8 * k, x + i + 8 * k);
        store_codes(code + i, c);
    }
}

static inline void encode_v(uint8_t *restrict code, const float *restrict x,
                            const uint32_t *restrict encode, spw__code_scale scale)
{
    int32_t bits[SPW__BLOCK];
    ratio_bits(bits, x, scale);
    for (int i = 0; i < SPW__BLOCK; i += 32) {
        __m256i c[4];
        for (int k = 0; k < 4; k++)
            c[k] = code_ranks(encode, bits + i + 8 * k);
        store_codes(code + i, c);
    }
}

#else

static inline void decode_block(float *restrict dst, const uint8_t *restrict code,
                                const float *restrict value, float absmax)
{
    for (int i = 0; i < SPW__BLOCK; i++)
        dst[i] = value[code[i]] * absmax;
}

static inline void encode_m(uint8_t *restrict code, const float *restrict x,
                            const uint32_t *restrict encode, spw__code_scale scale)
{
    for (int i = 0; i < SPW__BLOCK; i++)
        code[i] = spw__code_of_m(encode, x[i], scale);
}

static inline void encode_v(uint8_t *restrict code, const float *restrict x,
                            const uint32_t *restrict encode, spw__code_scale scale)
{
    for (int i = 0; i < SPW__BLOCK; i++)
        code[i] = spw__code_of_v(encode, x[i], scale);
}

#endif

#endif
