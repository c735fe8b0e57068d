#include "train/block.h"

#include "train/linear.h"
#include "train/mask.h"
#include "train/norm.h"
#include "train/swiglu.h"

#include <string.h>

/* ------------------------------------------------------------------- linear layers, norms -- */

static const spw__linear *linear_of(const spw__pass *pass, uint32_t layer, int name)
{
    return &pass->weights->blocks[layer].linear[name];
}

/* Sets up a call of one linear layer; `mask` is filled when it drops anything. */
static spw__linear_run run_of(const spw__pass *pass, uint32_t layer, int name, spw__mask *mask)
{
    const spw__workspace *room = &pass->room;
    float dropout = linear_of(pass, layer, name)->lora.dropout;
    bool drops = pass->noise && dropout > 0.0f && linear_of(pass, layer, name)->lora.rank;
    if (drops)
        *mask = spw__mask_of(pass->noise, layer * SPW__N_LINEAR + (uint32_t)name, dropout);
    return (spw__linear_run){.pool = pass->pool,
                             .n = pass->rope.n_tokens,
                             .expanded = room->expanded,
                             .masked = room->masked,
                             .low = room->low[name],
                             .d_low = room->d_low,
                             .mask = drops ? mask : NULL};
}

typedef struct flow {
    const float *x;
    float *y; /* forward; NULL: only what its backward needs */
    const float *dy;
    float *dx;
    float keep; /* of y or dx */
} flow;

static void linear_forward(const spw__pass *pass, uint32_t layer, int name, flow f)
{
    spw__mask mask;
    spw__linear_run run = run_of(pass, layer, name, &mask);
    if (f.y)
        spw__linear_forward(&run, linear_of(pass, layer, name), f.x, f.y, f.keep);
    else
        spw__linear_low(&run, linear_of(pass, layer, name), f.x);
}

static void linear_backward(const spw__pass *pass, uint32_t layer, int name, flow f)
{
    spw__mask mask;
    spw__linear_run run = run_of(pass, layer, name, &mask);
    spw__linear_backward(&run, linear_of(pass, layer, name), f.x, f.dy, f.dx, f.keep);
}

/* The norm over `heads` parts of every token by `gain`. */
static spw__norm norm_of(const spw__pass *pass, const spw__matrix *gain, uint32_t heads)
{
    return (spw__norm){.pool = pass->pool,
                       .n_rows = pass->rope.n_tokens * heads,
                       .width = gain->cols,
                       .eps = pass->weights->config.rms_eps,
                       .gain = spw__matrix_in_fp32(pass->pool, gain, pass->room.gain)};
}

static void norm_forward(const spw__pass *pass, const spw__matrix *gain, const float *x, float *y)
{
    spw__norm norm = norm_of(pass, gain, 1);
    spw__norm_forward(&norm, x, y);
}

/* dx += the norm's backward of d_norm. */
static void norm_backward(const spw__pass *pass, const spw__matrix *gain, const float *x, float *dx)
{
    spw__norm norm = norm_of(pass, gain, 1);
    if (gain->grad)
        spw__norm_gain_backward(&norm, x, pass->room.d_norm, pass->room.inverse, gain->grad);
    spw__norm_backward(&norm, x, pass->room.d_norm, dx);
}

static void head_norm_backward(const spw__pass *pass, const spw__matrix *gain, const float *x,
                               float *d)
{
    uint32_t heads =
        x == pass->room.raw_q ? pass->weights->config.heads : pass->weights->config.kv_heads;
    spw__norm norm = norm_of(pass, gain, heads);
    if (gain->grad)
        spw__norm_gain_backward(&norm, x, d, pass->room.inverse, gain->grad);
    spw__norm_backward_in_place(&norm, x, d);
}

/* -------------------------------------------------------------------------------- forward -- */

static void norm_heads(const spw__pass *pass, const spw__block *block)
{
    const spw__workspace *room = &pass->room;
    spw__norm norm = norm_of(pass, &block->norm_q, pass->weights->config.heads);
    spw__norm_forward(&norm, room->raw_q, room->q);
    norm = norm_of(pass, &block->norm_k, pass->weights->config.kv_heads);
    spw__norm_forward(&norm, room->raw_k, room->k);
}

static spw__attention attention_of(const spw__pass *pass)
{
    const spw__model_config *config = &pass->weights->config;
    const spw__workspace *room = &pass->room;
    return (spw__attention){.pool = pass->pool,
                            .heads = config->heads,
                            .kv_heads = config->kv_heads,
                            .head_dim = config->head_dim,
                            .n_tokens = (uint32_t)pass->rope.n_tokens,
                            .tiles = pass->tiles,
                            .n_tiles = pass->n_tiles,
                            .q = room->q,
                            .k = room->k,
                            .v = room->v,
                            .out = room->attended,
                            .log_sum = room->log_sum,
                            .d_out = room->d_attended,
                            .mean = room->mean,
                            .dq = room->dq,
                            .dk = room->dk,
                            .dv = room->dv};
}

static void attention_forward(const spw__pass *pass, uint32_t layer, const float *x)
{
    const spw__workspace *room = &pass->room;
    const spw__block *block = &pass->weights->blocks[layer];
    norm_forward(pass, &block->norm_attention, x, room->norm_attention);
    linear_forward(pass, layer, SPW__Q, (flow){.x = room->norm_attention, .y = room->raw_q});
    linear_forward(pass, layer, SPW__K, (flow){.x = room->norm_attention, .y = room->raw_k});
    linear_forward(pass, layer, SPW__V, (flow){.x = room->norm_attention, .y = room->v});
    if (pass->weights->config.qk_norm)
        norm_heads(pass, block);
    spw__rope_forward(&pass->rope, room->q, pass->weights->config.heads);
    spw__rope_forward(&pass->rope, room->k, pass->weights->config.kv_heads);
    spw__attention attention = attention_of(pass);
    spw__attention_forward(&attention);
    memcpy(room->middle, x, pass->rope.n_tokens * pass->weights->config.hidden * sizeof *x);
    linear_forward(pass, layer, SPW__O,
                   (flow){.x = room->attended, .y = room->middle, .keep = 1.0f});
}

void spw__block_forward(const spw__pass *pass, uint32_t layer, const float *x, float *y)
{
    const spw__workspace *room = &pass->room;
    size_t n = pass->rope.n_tokens;
    attention_forward(pass, layer, x);
    norm_forward(pass, &pass->weights->blocks[layer].norm_mlp, room->middle, room->norm_mlp);
    linear_forward(pass, layer, SPW__GATE, (flow){.x = room->norm_mlp, .y = room->gate});
    linear_forward(pass, layer, SPW__UP, (flow){.x = room->norm_mlp, .y = room->up});
    spw__swiglu_forward(pass->pool, n * pass->weights->config.intermediate, room->gate, room->up,
                        room->act);
    if (y)
        memcpy(y, room->middle, n * pass->weights->config.hidden * sizeof *x);
    linear_forward(pass, layer, SPW__DOWN, (flow){.x = room->act, .y = y, .keep = 1.0f});
}

/* ------------------------------------------------------------------------------- backward -- */

/* d: of the block's output, then of `middle`. */
static void mlp_backward(const spw__pass *pass, uint32_t layer, float *d)
{
    const spw__workspace *room = &pass->room;
    linear_backward(pass, layer, SPW__DOWN, (flow){.x = room->act, .dy = d, .dx = room->act});
    spw__swiglu_backward(pass->pool, pass->rope.n_tokens * pass->weights->config.intermediate,
                         room->gate, room->up, room->act);
    linear_backward(pass, layer, SPW__GATE,
                    (flow){.x = room->norm_mlp, .dy = room->gate, .dx = room->d_norm});
    linear_backward(pass, layer, SPW__UP,
                    (flow){.x = room->norm_mlp, .dy = room->up, .dx = room->d_norm, .keep = 1.0f});
    norm_backward(pass, &pass->weights->blocks[layer].norm_mlp, room->middle, d);
}

/* From d_attended to the gradients of raw_q, raw_k and v. */
static void scores_backward(const spw__pass *pass, const spw__block *block)
{
    const spw__workspace *room = &pass->room;
    const spw__model_config *config = &pass->weights->config;
    spw__attention attention = attention_of(pass);
    spw__attention_backward(&attention);
    spw__rope_backward(&pass->rope, room->dq, config->heads);
    spw__rope_backward(&pass->rope, room->dk, config->kv_heads);
    if (!config->qk_norm)
        return;
    head_norm_backward(pass, &block->norm_q, room->raw_q, room->dq);
    head_norm_backward(pass, &block->norm_k, room->raw_k, room->dk);
}

/* Nothing before the first block is trained in LoRA: its input's gradient is for nobody. */
static bool wants_input_gradient(const spw__pass *pass, uint32_t layer)
{
    return layer > 0 || pass->weights->embedding.grad ||
           pass->weights->blocks[layer].norm_attention.grad;
}

/* d: of `middle`, then of x. */
static void attention_backward(const spw__pass *pass, uint32_t layer, const float *x, float *d)
{
    const spw__workspace *room = &pass->room;
    const spw__block *block = &pass->weights->blocks[layer];
    linear_backward(pass, layer, SPW__O,
                    (flow){.x = room->attended, .dy = d, .dx = room->d_attended});
    scores_backward(pass, block);
    bool wanted = wants_input_gradient(pass, layer);
    flow f = {.x = room->norm_attention, .dy = room->dq, .dx = wanted ? room->d_norm : NULL};
    linear_backward(pass, layer, SPW__Q, f);
    f.keep = 1.0f;
    f.dy = room->dk;
    linear_backward(pass, layer, SPW__K, f);
    f.dy = room->dv;
    linear_backward(pass, layer, SPW__V, f);
    if (wanted)
        norm_backward(pass, &block->norm_attention, x, d);
}

void spw__block_backward(const spw__pass *pass, uint32_t layer, const float *x, float *d)
{
    mlp_backward(pass, layer, d);
    attention_backward(pass, layer, x, d);
}
