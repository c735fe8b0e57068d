/*
 * loss.h - from the last block's output to the cross entropy and back, a chunk of places at a time.
 *
 * Only tokens with a target are computed. A chunk's logits turn into their gradients in place and
 * are gone when the next chunk comes: device memory is that of one chunk.
 */
#ifndef SPW_TRAIN_LOSS_H
#define SPW_TRAIN_LOSS_H

#include "base/pool.h"
#include "train/weights.h"

typedef struct spw__loss {
    const spw__weights *weights;
    spw__pool *pool;
    const float *hidden;    /* [n_tokens, H]: what the last norm takes */
    const int32_t *targets; /* [n_tokens], -1: none */
    uint32_t n_tokens;
    double grad_scale;
    float *d_hidden; /* [n_tokens, H], overwritten; NULL: no backward */
} spw__loss;

/* *sum: of -log softmax(logits)[target]. With d_hidden also gradients of grad_scale * sum: of
 * hidden, and added to those of the last norm and the head where they are trained. SPW_ENOMEM
 * leaves nothing allocated. */
int spw__loss_run(const spw__loss *loss, double *sum);

/* Logits [vocab] of one token's hidden [H], into host memory. */
int spw__loss_logits(const spw__weights *weights, spw__pool *pool, const float *hidden,
                     float *logits);

#endif
