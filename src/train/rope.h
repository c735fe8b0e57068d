/*
 * rope.h - rotary positions, RoFormer (arXiv 2104.09864), in the rotate-half layout of the Llama
 * family: element i of a head is paired with element i + head_dim / 2.
 */
#ifndef SPW_TRAIN_ROPE_H
#define SPW_TRAIN_ROPE_H

#include "base/pool.h"

#include <stdint.h>

typedef struct spw__rope {
    spw__pool *pool;
    uint32_t head_dim;
    const float *cosine, *sine; /* [positions, head_dim / 2] */
    const uint32_t *positions;  /* [n_tokens] */
    size_t n_tokens;
} spw__rope;

/* Fills rows [first, last) of the tables from the inverse frequencies, in fp32 as transformers. */
void spw__rope_fill(const float *inverse, uint32_t head_dim, uint32_t first, uint32_t last,
                    float *tables[2]);

/* Rotates x [n_tokens, heads * head_dim] in place. */
void spw__rope_forward(const spw__rope *rope, float *x, uint32_t heads);

/* The gradient of a rotation is the rotation back. */
void spw__rope_backward(const spw__rope *rope, float *dx, uint32_t heads);

#endif
