#include "train/nf4.h"

#include <math.h>

const float spw__nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/* Code i + 1 begins above thresholds[i]. */
static const float thresholds[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784178118011f,
};

/* The reciprocal of less is no float: 1 / absmax would be infinite, and its product with 0 no
 * number. */
static const float least_absmax = 1e-38f;

/* Counting thresholds below x has no branch, so whole blocks are coded by vector compares. */
static void code_block(const float *x, uint64_t n, float inverse, uint8_t *codes)
{
    for (uint64_t i = 0; i < n; i++) {
        float scaled = x[i] * inverse;
        int code = 0;
        for (int t = 0; t < 15; t++)
            code += scaled > thresholds[t];
        codes[i] = (uint8_t)code;
    }
}

static float largest(const float *x, uint64_t n)
{
    float most = 0;
    for (uint64_t i = 0; i < n; i++) {
        float magnitude = fabsf(x[i]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static void pack_codes(const float *x, uint64_t n, float *absmax, uint8_t *packed)
{
    uint8_t codes[SPW__NF4_BLOCK];
    for (uint64_t block = 0; block < spw__nf4_blocks(n); block++) {
        uint64_t begin = block * SPW__NF4_BLOCK;
        uint64_t left = n - begin < SPW__NF4_BLOCK ? n - begin : SPW__NF4_BLOCK;
        absmax[block] = largest(x + begin, left);
        code_block(x + begin, left, 1.0f / fmaxf(absmax[block], least_absmax), codes);
        if (left % 2)
            codes[left] = 7;
        for (uint64_t i = 0; i < left; i += 2)
            packed[(begin + i) / 2] = (uint8_t)(codes[i] << 4 | codes[i + 1]);
    }
}

/* The nearest value of the ascending table; of two as near, the one with the even index. */
static uint8_t nearest_code(const float *table, float x)
{
    int low = 0, high = 255;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (x >= table[middle])
            low = middle;
        else
            high = middle;
    }
    float to_low = x - table[low], to_high = table[high] - x;
    if (to_low == to_high)
        return (uint8_t)(low % 2 ? high : low);
    return (uint8_t)(to_low < to_high ? low : high);
}

static float mean(const float *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)x[i];
    return n ? (float)(sum / (double)n) : 0;
}

static void pack_absmax(float *absmax, uint64_t n_blocks, spw__nf4 *nf4)
{
    const float *table = spw_code_table(1);
    for (uint64_t i = 0; i < n_blocks; i++)
        absmax[i] -= nf4->offset;
    for (uint64_t begin = 0; begin < n_blocks; begin += SPW__NF4_NESTED) {
        uint64_t n = n_blocks - begin < SPW__NF4_NESTED ? n_blocks - begin : SPW__NF4_NESTED;
        float most = largest(absmax + begin, n);
        float inverse = 1.0f / fmaxf(most, least_absmax);
        nf4->nested_absmax[begin / SPW__NF4_NESTED] = most;
        for (uint64_t i = begin; i < begin + n; i++)
            nf4->absmax_codes[i] = nearest_code(table, absmax[i] * inverse);
    }
}

void spw__nf4_pack(const float *x, uint64_t n, const float *offset, float *absmax, spw__nf4 *nf4)
{
    pack_codes(x, n, absmax, nf4->codes);
    nf4->offset = offset ? *offset : mean(absmax, spw__nf4_blocks(n));
    pack_absmax(absmax, spw__nf4_blocks(n), nf4);
}

static float block_scale(const spw__nf4 *nf4, uint64_t block)
{
    float value = spw_code_table(1)[nf4->absmax_codes[block]];
    return value * nf4->nested_absmax[block / SPW__NF4_NESTED] + nf4->offset;
}

/* Elements of one block; pairs where both halves of a byte are wanted. */
static void unpack_run(const uint8_t *codes, uint64_t first, uint64_t n, float scale, float *out)
{
    float values[16];
    for (int i = 0; i < 16; i++)
        values[i] = spw__nf4_values[i] * scale;
    uint64_t i = 0;
    if (first % 2 && n)
        out[i++] = values[codes[first / 2] & 15];
    for (; i + 1 < n; i += 2) {
        uint8_t byte = codes[(first + i) / 2];
        out[i] = values[byte >> 4];
        out[i + 1] = values[byte & 15];
    }
    if (i < n)
        out[i] = values[codes[(first + i) / 2] >> 4];
}

void spw__nf4_unpack(const spw__nf4 *nf4, uint64_t first, uint64_t n, float *out)
{
    while (n) {
        uint64_t block = first / SPW__NF4_BLOCK;
        uint64_t run = (block + 1) * SPW__NF4_BLOCK - first;
        run = run < n ? run : n;
        unpack_run(nf4->codes, first, run, block_scale(nf4, block), out);
        first += run;
        out += run;
        n -= run;
    }
}
