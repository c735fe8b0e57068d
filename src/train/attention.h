/*
 * attention.h - causal grouped-query attention over the rows of a batch, in tiles.
 *
 * softmax(q k^T / sqrt(head_dim)) v, a token seeing itself and what came before it in its own row.
 * Never more than one tile of scores a thread: forward keeps a running maximum and sum (online
 * softmax; FlashAttention, arXiv 2205.14135) and leaves the log of the sum of a token's
 * exponentials, backward makes the scores of a tile again from it. Backward goes twice over the
 * tiles, once by queries for dq, once by keys for dk and dv, so that each result has one writer and
 * sums have one order at any thread count.
 */
#ifndef SPW_TRAIN_ATTENTION_H
#define SPW_TRAIN_ATTENTION_H

#include "base/pool.h"

#include <stddef.h>
#include <stdint.h>

/* Tokens [first, first + n) of the row [begin, end). */
typedef struct spw__tile {
    uint32_t begin, end;
    uint32_t first, n;
} spw__tile;

/* Tiles of rows that begin at starts[0..n_rows-1] and end at starts[1..n_rows]; `tiles` NULL: only
 * counts. */
size_t spw__tiles_list(const uint32_t *starts, uint32_t n_rows, spw__tile *tiles);

typedef struct spw__attention {
    spw__pool *pool;
    uint32_t heads, kv_heads, head_dim;
    uint32_t n_tokens;
    const spw__tile *tiles;
    size_t n_tiles;
    const float *q;      /* [n_tokens, heads * head_dim] */
    const float *k, *v;  /* [n_tokens, kv_heads * head_dim] */
    float *out;          /* as q */
    float *log_sum;      /* [heads, n_tokens] */
    const float *d_out;  /* as q; what follows is backward's */
    float *mean;         /* scratch [heads, n_tokens] */
    float *dq, *dk, *dv; /* overwritten */
} spw__attention;

void spw__attention_forward(const spw__attention *attention);
void spw__attention_backward(const spw__attention *attention);

#endif
