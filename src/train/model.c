#include "train/model.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/block.h"
#include "train/loops.h"
#include "train/loss.h"
#include "train/rows.h"

#include <stdlib.h>
#include <string.h>

struct spw__model {
    spw__weights *weights;
    spw__pool *pool;
    uint64_t keep_bytes; /* for what blocks computed, beyond one block's */
    float *inverse;      /* inverse frequencies, [head_dim / 2] */
    float *tables[2];    /* cosines and sines, [n_positions, head_dim / 2]; device memory */
    uint32_t n_positions;
    uint32_t *positions; /* of the batch's tokens */
    size_t positions_capacity;
    spw__tile *tiles; /* of the batch */
    size_t tiles_capacity;
};

int spw__model_create(spw__weights *weights, spw__pool *pool, spw__model **result)
{
    spw__model *model = spw__calloc(1, sizeof *model);
    if (!model)
        return SPW_EHOSTMEM;
    model->weights = weights;
    model->pool = pool;
    model->inverse = spw__calloc(weights->config.head_dim / 2 + 1, sizeof *model->inverse);
    if (!model->inverse) {
        free(model);
        return SPW_EHOSTMEM;
    }
    spw__rope_frequencies(&weights->config, model->inverse);
    *result = model;
    return 0;
}

void spw__model_destroy(spw__model *model)
{
    if (!model)
        return;
    spw_free(model->weights->pager, model->tables[0]);
    free(model->inverse);
    free(model->positions);
    free(model->tiles);
    free(model);
}

/* ------------------------------------------------------------------------------- geometry -- */

static int check_batch(const spw__weights *weights, const spw__batch *batch)
{
    int32_t vocab = (int32_t)weights->config.vocab;
    for (uint32_t row = 0; row < batch->n_rows; row++)
        if (batch->starts[row] > batch->starts[row + 1])
            return spw__error(SPW_EINVAL, "batch row %u ends before it begins", row);
    for (uint32_t i = 0; i < batch->n_tokens; i++) {
        if (batch->tokens[i] < 0 || batch->tokens[i] >= vocab)
            return spw__error(SPW_EINVAL,
                              "token id %d is not below the model's vocabulary of %d; use the "
                              "tokenizer that came with the model",
                              batch->tokens[i], vocab);
        if (batch->targets && batch->targets[i] >= vocab)
            return spw__error(SPW_EINVAL,
                              "target id %d is not below the model's vocabulary of %d; use the "
                              "tokenizer that came with the model",
                              batch->targets[i], vocab);
    }
    return 0;
}

/* Makes the rotation tables long enough: a power of two of positions, so that they grow rarely. */
static int need_positions(spw__model *model, uint32_t longest)
{
    if (longest <= model->n_positions)
        return 0;
    uint32_t n = 64;
    while (n < longest)
        n *= 2;
    uint32_t head_dim = model->weights->config.head_dim;
    size_t floats = (size_t)n * (head_dim / 2);
    void *memory;
    int rc = spw_malloc(model->weights->pager, 2 * floats * sizeof(float), &memory);
    if (rc < 0)
        return rc;
    spw_free(model->weights->pager, model->tables[0]);
    model->tables[0] = memory;
    model->tables[1] = model->tables[0] + floats;
    model->n_positions = n;
    spw__rope_fill(model->inverse, head_dim, 0, n, model->tables);
    return 0;
}

static uint32_t number_positions(spw__model *model, const spw__batch *batch)
{
    uint32_t longest = 0;
    for (uint32_t row = 0; row < batch->n_rows; row++) {
        uint32_t begin = batch->starts[row], end = batch->starts[row + 1];
        longest = end - begin > longest ? end - begin : longest;
        for (uint32_t token = begin; token < end; token++)
            model->positions[token] = token - begin;
    }
    return longest;
}

static int lay_out_batch(spw__model *model, const spw__batch *batch, spw__pass *pass)
{
    int rc = check_batch(model->weights, batch);
    if (rc < 0)
        return rc;
    rc = spw__grow(&model->positions, &model->positions_capacity, batch->n_tokens,
                   sizeof *model->positions);
    if (rc < 0)
        return rc;
    pass->n_tiles = spw__tiles_list(batch->starts, batch->n_rows, NULL);
    rc = spw__grow(&model->tiles, &model->tiles_capacity, pass->n_tiles, sizeof *model->tiles);
    if (rc < 0)
        return rc;
    spw__tiles_list(batch->starts, batch->n_rows, model->tiles);
    rc = need_positions(model, number_positions(model, batch));
    pass->tiles = model->tiles;
    pass->rope = (spw__rope){.pool = model->pool,
                             .head_dim = model->weights->config.head_dim,
                             .cosine = model->tables[0],
                             .sine = model->tables[1],
                             .positions = model->positions,
                             .n_tokens = batch->n_tokens};
    return rc;
}

/* ----------------------------------------------------------------------------------- call -- */

/* One call's work and the device memory it holds. */
typedef struct call {
    spw__model *model;
    const spw__batch *batch;
    spw__pass pass;
    float *room;    /* the workspace of the blocks */
    uint32_t slots; /* of it: the last blocks have one each, all others share the first */
    float *hidden;  /* inputs of the blocks and the last output: layers + 1 of [T, H], or two that
                       take turns; behind them, with a backward, d */
    float *d;       /* [T, H] */
    size_t size;    /* T * H */
} call;

static float *input_of(const call *c, uint32_t layer)
{
    return c->hidden + (c->pass.backward ? layer : layer % 2) * c->size;
}

void spw__model_keep(spw__model *model, uint64_t bytes)
{
    model->keep_bytes = bytes;
}

static uint32_t slots_of(const call *c)
{
    uint32_t layers = c->model->weights->config.layers;
    uint64_t slot_bytes = spw__workspace_slot(&c->pass) * sizeof(float);
    uint64_t more = c->pass.backward ? c->model->keep_bytes / slot_bytes : 0;
    return more + 1 < layers ? (uint32_t)more + 1 : layers;
}

static int take_room(call *c)
{
    spw_pager *pager = c->model->weights->pager;
    void *room;
    c->slots = slots_of(c);
    int rc = spw_malloc(pager, spw__workspace_floats(&c->pass, c->slots) * sizeof(float), &room);
    if (rc == SPW_ENOMEM && c->slots > 1) {
        c->slots = 1;
        rc = spw_malloc(pager, spw__workspace_floats(&c->pass, 1) * sizeof(float), &room);
    }
    c->room = rc < 0 ? NULL : room;
    return rc;
}

static int take_memory(call *c)
{
    spw_pager *pager = c->model->weights->pager;
    size_t kept = c->pass.backward ? c->model->weights->config.layers + 2 : 2;
    void *hidden;
    int rc = spw_malloc(pager, kept * c->size * sizeof(float), &hidden);
    if (rc < 0)
        return rc;
    c->hidden = hidden;
    c->d = c->hidden + (kept - 1) * c->size;
    rc = take_room(c);
    if (rc < 0)
        spw_free(pager, hidden);
    return rc;
}

static void give_memory(call *c)
{
    spw_free(c->model->weights->pager, c->room);
    spw_free(c->model->weights->pager, c->hidden);
}

/* Ready to run, with memory taken, or an error and none taken. */
static int begin_call(call *c)
{
    c->pass.weights = c->model->weights;
    c->pass.pool = c->model->pool;
    c->size = (size_t)c->batch->n_tokens * c->model->weights->config.hidden;
    int rc = lay_out_batch(c->model, c->batch, &c->pass);
    return rc < 0 ? rc : take_memory(c);
}

static void embed_rows(void *context, size_t first, size_t n)
{
    const call *c = context;
    const spw__matrix *embedding = &c->model->weights->embedding;
    for (size_t token = first; token < first + n; token++)
        spw__matrix_expand(embedding, (uint32_t)c->batch->tokens[token], 1,
                           c->hidden + token * embedding->cols);
}

/* The first block whose forward is still there when its backward comes. */
static uint32_t first_kept(const call *c)
{
    return c->model->weights->config.layers - c->slots;
}

static void enter_block(call *c, uint32_t layer)
{
    uint32_t first = first_kept(c);
    spw__workspace_lay(&c->pass, c->room, layer > first ? layer - first : 0);
}

static void forward(call *c)
{
    spw__rows_run(c->pass.pool, c->batch->n_tokens, c->model->weights->config.hidden, embed_rows,
                  c);
    for (uint32_t layer = 0; layer < c->model->weights->config.layers; layer++) {
        enter_block(c, layer);
        spw__block_forward(&c->pass, layer, input_of(c, layer), input_of(c, layer + 1));
    }
}

/* A column's share of the embedding's gradient, tokens in order. */
enum { COLUMNS = 64 };

static void embedding_columns(void *context, size_t first, size_t n)
{
    const call *c = context;
    const spw__matrix *embedding = &c->model->weights->embedding;
    size_t begin = first * COLUMNS, width = embedding->cols;
    size_t end = begin + n * COLUMNS < width ? begin + n * COLUMNS : width;
    for (size_t token = 0; token < c->batch->n_tokens; token++) {
        size_t row = (size_t)c->batch->tokens[token] * width;
        spw__loops_best()->add(embedding->grad + row + begin, c->d + token * width + begin,
                               end - begin);
    }
}

static void backward(call *c)
{
    for (uint32_t layer = c->model->weights->config.layers; layer-- > 0;) {
        enter_block(c, layer);
        if (layer < first_kept(c))
            spw__block_forward(&c->pass, layer, input_of(c, layer), NULL);
        spw__block_backward(&c->pass, layer, input_of(c, layer), c->d);
    }
    const spw__matrix *embedding = &c->model->weights->embedding;
    if (embedding->grad)
        spw__rows_run(c->pass.pool, (embedding->cols + COLUMNS - 1) / COLUMNS,
                      c->batch->n_tokens * (size_t)COLUMNS, embedding_columns, c);
}

static int run_loss(call *c, double grad_scale, double *loss_sum)
{
    forward(c);
    spw__loss loss = {.weights = c->model->weights,
                      .pool = c->model->pool,
                      .hidden = input_of(c, c->model->weights->config.layers),
                      .targets = c->batch->targets,
                      .n_tokens = c->batch->n_tokens,
                      .grad_scale = grad_scale,
                      .d_hidden = c->pass.backward ? c->d : NULL};
    int rc = spw__loss_run(&loss, loss_sum);
    if (rc == 0 && c->pass.backward)
        backward(c);
    return rc;
}

static bool has_target(const spw__batch *batch)
{
    for (uint32_t i = 0; i < batch->n_tokens; i++)
        if (batch->targets[i] >= 0)
            return true;
    return false;
}

int spw__model_loss(spw__model *model, const spw__batch *batch, double grad_scale,
                    const spw__noise *noise, double *loss_sum)
{
    *loss_sum = 0.0;
    if (!has_target(batch))
        return check_batch(model->weights, batch);
    call c = {
        .model = model, .batch = batch, .pass = {.noise = noise, .backward = grad_scale != 0.0}};
    int rc = begin_call(&c);
    if (rc < 0)
        return rc;
    rc = run_loss(&c, grad_scale, loss_sum);
    give_memory(&c);
    return rc;
}

int spw__model_logits(spw__model *model, const int32_t *tokens, uint32_t n_tokens, float *logits)
{
    if (n_tokens == 0)
        return spw__error(SPW_EINVAL, "logits of an empty row: give at least one token");
    uint32_t starts[2] = {0, n_tokens};
    spw__batch batch = {.tokens = tokens, .starts = starts, .n_rows = 1, .n_tokens = n_tokens};
    call c = {.model = model, .batch = &batch};
    int rc = begin_call(&c);
    if (rc < 0)
        return rc;
    forward(&c);
    const float *last = input_of(&c, model->weights->config.layers) +
                        (size_t)(n_tokens - 1) * model->weights->config.hidden;
    rc = spw__loss_logits(model->weights, model->pool, last, logits);
    give_memory(&c);
    return rc;
}
