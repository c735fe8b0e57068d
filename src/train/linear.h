/*
 * linear.h - y = x W^T + bias + scale * B (A dropout(x)), forward and backward.
 *
 * W of any kind (fp32, bf16, NF4) is expanded to fp32 whole, into scratch, right before each
 * product. `low` = A dropout(x) is the one thing a forward leaves for its backward; masks
 * are made again from their counters.
 */
#ifndef SPW_TRAIN_LINEAR_H
#define SPW_TRAIN_LINEAR_H

#include "base/pool.h"
#include "train/loops.h"
#include "train/weights.h"

/* What a call works with; device memory of the caller. */
typedef struct spw__linear_run {
    spw__pool *pool;
    size_t n;              /* tokens */
    float *expanded;       /* scratch for the matrix when it is not fp32, and for the bias */
    float *masked;         /* scratch [n, in]; may be NULL when there is no dropout */
    float *low;            /* [n, rank] */
    float *d_low;          /* scratch [n, rank]; backward only */
    const spw__mask *mask; /* NULL: no dropout */
} spw__linear_run;

/* Rows [first, first + n) of a matrix in fp32: its own, or expanded into `scratch` [n, cols]. */
const float *spw__matrix_rows(spw__pool *pool, const spw__matrix *matrix, uint32_t first,
                              uint32_t n, float *scratch);

/* All of them. */
const float *spw__matrix_in_fp32(spw__pool *pool, const spw__matrix *matrix, float *scratch);

/* y [n, out] = keep * y + linear(x [n, in]); keep is 0 or 1. */
void spw__linear_forward(const spw__linear_run *run, const spw__linear *linear, const float *x,
                         float *y, float keep);

/* Of a forward whose y is not wanted, what the backward needs: `low`. */
void spw__linear_low(const spw__linear_run *run, const spw__linear *linear, const float *x);

/* Adds to the gradients of what is trained, then dx = keep * dx + the gradient of x. With keep 0
 * dx may be x. dx NULL: not wanted. */
void spw__linear_backward(const spw__linear_run *run, const spw__linear *linear, const float *x,
                          const float *dy, float *dx, float keep);

#endif
