/*
 * swiglu.h - the gated unit of the MLP, silu(gate) * up (arXiv 2002.05202), over n elements.
 */
#ifndef SPW_TRAIN_SWIGLU_H
#define SPW_TRAIN_SWIGLU_H

#include "base/pool.h"

#include <stddef.h>

void spw__swiglu_forward(spw__pool *pool, size_t n, const float *gate, const float *up, float *y);

/* gate and up become their gradients, from dy. */
void spw__swiglu_backward(spw__pool *pool, size_t n, float *gate, float *up, const float *dy);

#endif
