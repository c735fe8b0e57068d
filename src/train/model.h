/*
 * model.h - forward and backward through a Llama model on the CPU, in fp32.
 *
 * What it is not: it owns no weights (weights.h) and takes no optimizer step. Activations live in
 * device memory from spw_malloc and are freed before a call returns: each block's input is kept,
 * the block is computed again in the backward pass (gradient checkpointing), unless spw__model_keep
 * gave it room; attention never holds a T x T matrix; the loss never holds the logits of more than
 * a chunk of tokens. One thread calls; work is spread over `pool`. The bits depend on the inputs,
 * the libraries and the thread count.
 */
#ifndef SPW_TRAIN_MODEL_H
#define SPW_TRAIN_MODEL_H

#include "base/pool.h"
#include "train/weights.h"

typedef struct spw__model spw__model;

/* Tokens of several rows, one after another, without padding; a row attends to itself only and its
 * positions start at 0. */
typedef struct spw__batch {
    const int32_t *tokens;  /* [n_tokens] */
    const int32_t *targets; /* [n_tokens]: the token to predict at this place; -1: no loss here */
    const uint32_t *starts; /* [n_rows + 1]: where rows begin; starts[n_rows] = n_tokens */
    uint32_t n_rows;
    uint32_t n_tokens;
} spw__batch;

/* Dropout masks come from a counter (Philox) keyed by these and (layer, linear, element), so the
 * second forward of a block sees the same mask. */
typedef struct spw__noise {
    uint64_t seed;
    uint64_t step;
    uint64_t micro_batch;
} spw__noise;

/* `weights` must outlive the model. Takes small fixed device memory (rotation tables grow with the
 * longest row seen). */
int spw__model_create(spw__weights *weights, spw__pool *pool, spw__model **model);
void spw__model_destroy(spw__model *model);

/* How many bytes of device memory a backward pass may take to keep what blocks computed, instead of
 * computing it again; the last blocks are kept first. 0, as a model is created: none but the last
 * block's. When the device has less, none. The bits are the same. */
void spw__model_keep(spw__model *model, uint64_t bytes);

/* Sum over target places of -log softmax(logits)[target], in double. With `grad_scale` not 0 also
 * the backward pass: gradients of grad_scale * loss are added to the trained tensors' grad.
 * noise NULL: no dropout (evaluation). SPW_ENOMEM: device memory ran out; gradients may be partly
 * added; nothing is leaked. */
int spw__model_loss(spw__model *model, const spw__batch *batch, double grad_scale,
                    const spw__noise *noise, double *loss_sum);

/* Logits of the last token of one row, [vocab] fp32 in host memory. */
int spw__model_logits(spw__model *model, const int32_t *tokens, uint32_t n_tokens, float *logits);

#endif
