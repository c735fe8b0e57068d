#include "train/block.h"

typedef struct carver {
    float *base; /* NULL: measuring */
    size_t used; /* floats */
} carver;

/* 64-byte aligned. */
static float *carve(carver *c, size_t n)
{
    float *at = c->base ? c->base + c->used : NULL;
    c->used += (n + 15) / 16 * 16;
    return at;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t expanded_floats(const spw__weights *weights)
{
    size_t most = 0;
    for (uint32_t layer = 0; layer < weights->config.layers; layer++)
        for (int name = 0; name < SPW__N_LINEAR; name++) {
            const spw__linear *linear = &weights->blocks[layer].linear[name];
            if (linear->w.kind != SPW__MATRIX_FP32)
                most = larger(most, (size_t)linear->w.rows * linear->w.cols);
            if (linear->bias.data && linear->bias.kind != SPW__MATRIX_FP32)
                most = larger(most, linear->bias.cols);
        }
    return most;
}

static size_t rank_of(const spw__weights *weights, int name)
{
    size_t most = 0;
    for (uint32_t layer = 0; layer < weights->config.layers; layer++)
        most = larger(most, weights->blocks[layer].linear[name].lora.rank);
    return most;
}

static bool has_dropout(const spw__weights *weights)
{
    for (uint32_t layer = 0; layer < weights->config.layers; layer++)
        for (int name = 0; name < SPW__N_LINEAR; name++) {
            const spw__lora *lora = &weights->blocks[layer].linear[name].lora;
            if (lora->rank && lora->dropout > 0.0f)
                return true;
        }
    return false;
}

static void lay_attention(spw__pass *pass, carver *c)
{
    const spw__model_config *config = &pass->weights->config;
    spw__workspace *room = &pass->room;
    size_t n = pass->rope.n_tokens;
    size_t q = n * config->heads * config->head_dim, kv = n * config->kv_heads * config->head_dim;
    room->q = carve(c, q);
    room->k = carve(c, kv);
    room->v = carve(c, kv);
    room->raw_q = config->qk_norm ? carve(c, q) : room->q;
    room->raw_k = config->qk_norm ? carve(c, kv) : room->k;
    room->attended = carve(c, q);
    room->log_sum = carve(c, n * config->heads);
}

/* gate, up and act, or in the same place the gradients of attention: whichever is larger. */
static void lay_mlp(spw__pass *pass, carver *c)
{
    const spw__model_config *config = &pass->weights->config;
    spw__workspace *room = &pass->room;
    size_t n = pass->rope.n_tokens, wide = n * config->intermediate;
    size_t q = n * config->heads * config->head_dim, kv = n * config->kv_heads * config->head_dim;
    carver mlp = *c, attention = *c;
    room->gate = carve(&mlp, wide);
    room->up = carve(&mlp, wide);
    room->act = carve(&mlp, wide);
    if (pass->backward) {
        room->d_attended = carve(&attention, q);
        room->dq = carve(&attention, q);
        room->dk = carve(&attention, kv);
        room->dv = carve(&attention, kv);
    }
    c->used = larger(mlp.used, attention.used);
}

/* What a backward needs of its forward. */
static void lay_kept(spw__pass *pass, carver *c)
{
    spw__workspace *room = &pass->room;
    size_t n = pass->rope.n_tokens, hidden = n * pass->weights->config.hidden;
    room->norm_attention = carve(c, hidden);
    room->norm_mlp = carve(c, hidden);
    room->middle = carve(c, hidden);
    lay_attention(pass, c);
    lay_mlp(pass, c);
    for (int name = 0; name < SPW__N_LINEAR; name++)
        room->low[name] = carve(c, n * rank_of(pass->weights, name));
}

static size_t largest_rank(const spw__weights *weights)
{
    size_t most = 0;
    for (int name = 0; name < SPW__N_LINEAR; name++)
        most = larger(most, rank_of(weights, name));
    return most;
}

static void lay_shared(spw__pass *pass, carver *c)
{
    const spw__model_config *config = &pass->weights->config;
    spw__workspace *room = &pass->room;
    size_t n = pass->rope.n_tokens;
    size_t widest = larger(config->hidden, config->intermediate);
    widest = larger(widest, (size_t)config->heads * config->head_dim);
    bool dropout = pass->noise && has_dropout(pass->weights);
    room->masked = dropout ? carve(c, n * widest) : NULL;
    room->expanded = carve(c, expanded_floats(pass->weights));
    room->gain = carve(c, larger(config->hidden, config->head_dim));
    if (!pass->backward)
        return;
    room->d_norm = carve(c, n * config->hidden);
    room->d_low = carve(c, n * largest_rank(pass->weights));
    room->mean = carve(c, n * config->heads);
    room->inverse = carve(c, n * config->heads);
}

static size_t measure(const spw__pass *pass, void (*lay)(spw__pass *, carver *))
{
    spw__pass copy = *pass;
    carver c = {0};
    lay(&copy, &c);
    return c.used;
}

size_t spw__workspace_slot(const spw__pass *pass)
{
    return measure(pass, lay_kept);
}

size_t spw__workspace_floats(const spw__pass *pass, uint32_t slots)
{
    return measure(pass, lay_shared) + slots * measure(pass, lay_kept);
}

void spw__workspace_lay(spw__pass *pass, float *base, uint32_t slot)
{
    carver c = {.base = base};
    lay_shared(pass, &c);
    c.used += slot * measure(pass, lay_kept);
    lay_kept(pass, &c);
}
