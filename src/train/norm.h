/*
 * norm.h - RMSNorm of Zhang and Sennrich (arXiv 1910.07467): y = x / sqrt(mean(x^2) + eps) * gain.
 *
 * Rows of `width` floats, one after another: a token's hidden state, or one head of it (Qwen3).
 * Nothing is kept from forward to backward but x itself.
 */
#ifndef SPW_TRAIN_NORM_H
#define SPW_TRAIN_NORM_H

#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct spw__norm {
    spw__pool *pool;
    size_t n_rows;
    size_t width;
    float eps;
    const float *gain; /* [width] */
} spw__norm;

void spw__norm_forward(const spw__norm *norm, const float *x, float *y);

/* dx += the gradient of x, from dy. */
void spw__norm_backward(const spw__norm *norm, const float *x, const float *dy, float *dx);

/* dy becomes the gradient of x. */
void spw__norm_backward_in_place(const spw__norm *norm, const float *x, float *dy);

/* grad[width] += the gradient of the gain; `inverse` is scratch of n_rows floats. */
void spw__norm_gain_backward(const spw__norm *norm, const float *x, const float *dy, float *inverse,
                             float *grad);

#endif
