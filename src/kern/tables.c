#include "kern/tables.h"

#include "base/half.h"

#include <spillway/spillway.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static spw__code_maps maps;
static pthread_once_t maps_once = PTHREAD_ONCE_INIT;

/* Point k of n + 1 spaced evenly from 0.1 to 1, from the nearer end, one rounding: the fused
 * multiply-add is what the original's tables were made with. */
static float spaced_point(int k, int n)
{
    float step = (1.0f - 0.1f) / (float)n;
    return k < (n + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(n - k), 1.0f);
}

/* The 2^first .. 2^(first + 6) positive values of all decades; returns how many. */
static int fill_decades(float *value, int first)
{
    static const float power[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    int count = 0;
    for (int i = 0; i < 7; i++) {
        int n = 1 << (i + first);
        for (int j = 0; j < n; j++) {
            float mean = (spaced_point(j, n) + spaced_point(j + 1, n)) / 2.0f;
            value[count++] = power[i] * mean;
        }
    }
    return count;
}

/* Ascending by construction: decades follow each other, and so do the values within one. */
static void fill_values(spw__code_map *map, int zero)
{
    map->value[zero] = 0.0f;
    int count = fill_decades(map->value + zero + 1, zero ? 0 : 1);
    map->value[SPW__CODES - 1] = 1.0f;
    for (int k = 1; zero && k <= count; k++)
        map->value[zero - k] = -map->value[zero + k];
    for (int i = 0; i < SPW__CODES - 1; i++)
        map->middle[i] = (map->value[i] + map->value[i + 1]) * 0.5f;
}

/* The largest bits that still belong to code - 1: the middle itself when code - 1 is even. */
static uint32_t last_bits_below(const spw__code_map *map, int code)
{
    uint32_t bits = spw__bits_of_float(map->middle[code - 1]);
    return code % 2 ? bits : bits - 1;
}

static void fill_encode(spw__code_map *map, int zero)
{
    int code = zero;
    for (uint32_t key = 0; key < SPW__CODE_KEYS; key++) {
        uint32_t upper = (key + SPW__CODE_KEY_FIRST) << 16;
        uint32_t carry = 0;
        uint32_t rank = (uint32_t)(code - zero);
        if (code < SPW__CODES - 1) {
            uint32_t last = last_bits_below(map, code + 1);
            if (last >> 16 == upper >> 16) {
                carry = 0xFFFFu - (last & 0xFFFFu);
                code++;
            }
        }
        map->encode[key] = rank << 16 | carry;
    }
}

static void fill_maps(void)
{
    fill_values(&maps.m, SPW__CODE_ZERO);
    fill_values(&maps.v, 0);
    fill_encode(&maps.m, SPW__CODE_ZERO);
    fill_encode(&maps.v, 0);
}

const spw__code_maps *spw__code_maps_get(void)
{
    pthread_once(&maps_once, fill_maps);
    return &maps;
}

const float *spw_code_table(int is_signed)
{
    const spw__code_maps *made = spw__code_maps_get();
    return is_signed ? made->m.value : made->v.value;
}
