/*
 * nf4.h - 4-bit NormalFloat with double quantisation, by the rule of bitsandbytes.
 *
 * QLoRA, arXiv 2305.14314; bitsandbytes functional.py and csrc/kernels.cu. Blocks of 64 elements of
 * the flattened tensor share an absmax; the code is the nearest of 16 values of x / absmax, by
 * fixed thresholds (a value on a threshold takes the lower code). The absmax, less their mean, are
 * quantised in blocks of 256 by the signed dynamic map. Pure functions on host memory; any thread.
 */
#ifndef SPW_TRAIN_NF4_H
#define SPW_TRAIN_NF4_H

#include "train/weights.h"

enum { SPW__NF4_BLOCK = 64, SPW__NF4_NESTED = 256 };

extern const float spw__nf4_values[16];

static inline uint64_t spw__nf4_blocks(uint64_t n)
{
    return (n + SPW__NF4_BLOCK - 1) / SPW__NF4_BLOCK;
}

static inline uint64_t spw__nf4_nested_blocks(uint64_t n)
{
    return (spw__nf4_blocks(n) + SPW__NF4_NESTED - 1) / SPW__NF4_NESTED;
}

/* Packs n floats; the arrays of `nf4` are there. `absmax` is scratch, one float a block. The offset
 * is *offset, or the mean of the absmax where that is NULL (summed in double, so that it may differ
 * from torch's by an ulp). A block of zeros has codes 7, the value 0, and so keeps it. */
void spw__nf4_pack(const float *x, uint64_t n, const float *offset, float *absmax, spw__nf4 *nf4);

/* The floats first .. first + n - 1 of a packed tensor. */
void spw__nf4_unpack(const spw__nf4 *nf4, uint64_t first, uint64_t n, float *out);

#endif
