/*
 * block.h - one transformer block, forward and backward, in a workspace that all blocks share.
 *
 * x' = h + down(silu(gate(n)) * up(n)), n = norm(h), h = x + o(attention(q, k, v of norm(x))).
 * A forward leaves in a slot of the workspace what the same block's backward needs. The next
 * forward in the same slot overwrites it, so the caller (model.c) runs a block's forward again
 * before its backward, unless the block has a slot of its own. Backward turns buffers of the
 * forward into gradients in place where it can.
 */
#ifndef SPW_TRAIN_BLOCK_H
#define SPW_TRAIN_BLOCK_H

#include "train/attention.h"
#include "train/model.h"
#include "train/rope.h"

/* Device memory of one block's forward and backward; T tokens, H hidden, I intermediate. */
typedef struct spw__workspace {
    float *norm_attention, *norm_mlp; /* [T, H]: what goes into q, k, v, and into gate and up */
    float *raw_q, *raw_k;             /* before the norm over heads; q and k when there is none */
    float *q, *k, *v;                 /* [T, heads * head_dim]; k, v with kv_heads */
    float *attended;                  /* as q */
    float *log_sum;                   /* [heads, T] */
    float *middle;                    /* [T, H]: after attention, before the MLP */
    float *gate, *up, *act;           /* [T, I] */
    float *low[SPW__N_LINEAR];        /* [T, rank] */
    float *masked;                    /* [T, widest input]; with dropout only; from here on shared
                                         by all slots */
    float *expanded;                  /* the largest matrix that is not fp32 */
    float *gain;                      /* [max(H, head_dim)]: a norm's gain that is not fp32 */
    float *d_norm;                    /* [T, H]; from here on for backward only */
    float *d_low;                     /* [T, rank] */
    float *mean;                      /* [heads, T] */
    float *inverse;                   /* [T * heads]; when norms are trained */
    float *dq, *dk, *dv, *d_attended; /* where gate, up and act are, which are done by then */
} spw__workspace;

/* What the blocks of one call share. */
typedef struct spw__pass {
    const spw__weights *weights;
    spw__pool *pool;
    const spw__noise *noise; /* NULL: no dropout */
    bool backward;           /* this call has one */
    spw__rope rope;          /* its n_tokens is T */
    const spw__tile *tiles;
    size_t n_tiles;
    spw__workspace room;
} spw__pass;

/* Floats of a workspace with so many slots, and of one slot. */
size_t spw__workspace_floats(const spw__pass *pass, uint32_t slots);
size_t spw__workspace_slot(const spw__pass *pass);

/* Points pass->room into the workspace at `base`, at one of its slots. */
void spw__workspace_lay(spw__pass *pass, float *base, uint32_t slot);

/* y = block(x), [T, H] both; y NULL: only what the backward needs. */
void spw__block_forward(const spw__pass *pass, uint32_t layer, const float *x, float *y);

/* d, the gradient of y, becomes that of x; right after the forward of the same x. */
void spw__block_backward(const spw__pass *pass, uint32_t layer, const float *x, float *d);

#endif
