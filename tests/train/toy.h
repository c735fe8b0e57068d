/*
 * toy.h - tiny random models for the tests of the arithmetic, built by hand in device memory.
 */
#ifndef TESTS_TRAIN_TOY_H
#define TESTS_TRAIN_TOY_H

#include "base/half.h"
#include "base/philox.h"
#include "train/model.h"
#include "train/nf4.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct toy_plan {
    bool tied, qkv_bias, o_bias, qk_norm, full;
    uint32_t rank;
    float dropout;
    spw__matrix_kind kind; /* BF16: of all; NF4: of the blocks' matrices */
    unsigned threads;
    uint64_t mem; /* of the device; 0: plenty */
    uint32_t seed;
} toy_plan;

typedef struct toy {
    spw_device *device;
    spw_pager *pager;
    spw__pool *pool;
    spw__model *model;
    spw__weights weights;
    uint32_t seed, stream;
} toy;

static void *toy_memory(toy *t, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(spw_malloc(t->pager, bytes, &memory), 0);
    memset(memory, 0, bytes);
    return memory;
}

/* n values around `middle`, at most `spread` away; the next stream of the toy's seed. */
static float *toy_values(toy *t, size_t n, float middle, float spread)
{
    float *values = toy_memory(t, n * sizeof *values);
    t->stream++;
    for (size_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, t->stream, 0, 0}, key[2] = {t->seed, 7}, words[4];
        spw__philox(counter, key, words);
        values[i] = middle + spread * (2.0f * spw__unit_of_bits(words[0]) - 1.0f);
    }
    return values;
}

static void toy_to_bf16(toy *t, spw__matrix *matrix)
{
    size_t n = (size_t)matrix->rows * matrix->cols;
    float *single = matrix->data;
    uint16_t *half = toy_memory(t, n * sizeof *half);
    for (size_t i = 0; i < n; i++)
        half[i] = spw__bf16_of_float(single[i]);
    spw_free(t->pager, single);
    matrix->data = half;
    matrix->kind = SPW__MATRIX_BF16;
}

static void toy_to_nf4(toy *t, spw__matrix *matrix)
{
    uint64_t n = (uint64_t)matrix->rows * matrix->cols, blocks = spw__nf4_blocks(n);
    float *absmax = malloc(blocks * sizeof *absmax), *single = matrix->data;
    assert_non_null(absmax);
    matrix->nf4.codes = toy_memory(t, (n + 1) / 2);
    matrix->nf4.absmax_codes = toy_memory(t, blocks);
    matrix->nf4.nested_absmax = toy_memory(t, spw__nf4_nested_blocks(n) * sizeof(float));
    spw__nf4_pack(single, n, NULL, absmax, &matrix->nf4);
    free(absmax);
    spw_free(t->pager, single);
    matrix->data = NULL;
    matrix->kind = SPW__MATRIX_NF4;
}

static spw__matrix toy_matrix(toy *t, const toy_plan *plan, uint32_t rows, uint32_t cols)
{
    spw__matrix matrix = {.rows = rows, .cols = cols};
    bool vector = rows == 1;
    matrix.data = toy_values(t, (size_t)rows * cols, vector ? 1.0f : 0.0f, vector ? 0.4f : 0.5f);
    if (plan->kind == SPW__MATRIX_BF16)
        toy_to_bf16(t, &matrix);
    if (plan->full)
        matrix.grad = toy_memory(t, (size_t)rows * cols * sizeof(float));
    return matrix;
}

static void toy_lora(toy *t, const toy_plan *plan, spw__linear *linear)
{
    uint32_t rank = plan->rank, in = linear->w.cols, out = linear->w.rows;
    linear->lora = (spw__lora){.rank = rank, .scale = 0.75f, .dropout = plan->dropout};
    linear->lora.a = toy_values(t, (size_t)rank * in, 0.0f, 0.4f);
    linear->lora.b = toy_values(t, (size_t)rank * out, 0.0f, 0.4f);
    linear->lora.grad_a = toy_memory(t, (size_t)rank * in * sizeof(float));
    linear->lora.grad_b = toy_memory(t, (size_t)rank * out * sizeof(float));
}

static void toy_block(toy *t, const toy_plan *plan, spw__block *block)
{
    const spw__model_config *c = &t->weights.config;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    uint32_t shapes[SPW__N_LINEAR][2] = {{q, c->hidden},
                                         {kv, c->hidden},
                                         {kv, c->hidden},
                                         {c->hidden, q},
                                         {c->intermediate, c->hidden},
                                         {c->intermediate, c->hidden},
                                         {c->hidden, c->intermediate}};
    for (int name = 0; name < SPW__N_LINEAR; name++) {
        spw__linear *linear = &block->linear[name];
        linear->w = toy_matrix(t, plan, shapes[name][0], shapes[name][1]);
        if (plan->kind == SPW__MATRIX_NF4)
            toy_to_nf4(t, &linear->w);
        if ((c->qkv_bias && name <= SPW__V) || (c->o_bias && name == SPW__O))
            linear->bias = toy_matrix(t, plan, 1, shapes[name][0]);
        if (plan->rank)
            toy_lora(t, plan, linear);
    }
    block->norm_attention = toy_matrix(t, plan, 1, c->hidden);
    block->norm_mlp = toy_matrix(t, plan, 1, c->hidden);
    if (!c->qk_norm)
        return;
    block->norm_q = toy_matrix(t, plan, 1, c->head_dim);
    block->norm_k = toy_matrix(t, plan, 1, c->head_dim);
}

static spw__model_config toy_config(const toy_plan *plan)
{
    return (spw__model_config){.vocab = 37,
                               .hidden = 24,
                               .intermediate = 40,
                               .layers = 3,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 10,
                               .max_positions = 512,
                               .rms_eps = 1e-5f,
                               .tied = plan->tied,
                               .qkv_bias = plan->qkv_bias,
                               .o_bias = plan->o_bias,
                               .qk_norm = plan->qk_norm,
                               .rope = SPW__ROPE_DEFAULT,
                               .rope_theta = 1000.0,
                               .bos = -1,
                               .eos = -1,
                               .model_type = "llama"};
}

static void toy_weights(toy *t, const toy_plan *plan)
{
    spw__weights *weights = &t->weights;
    weights->config = toy_config(plan);
    weights->pager = t->pager;
    weights->full = plan->full;
    uint32_t vocab = weights->config.vocab, hidden = weights->config.hidden;
    weights->embedding = toy_matrix(t, plan, vocab, hidden);
    weights->head = plan->tied ? weights->embedding : toy_matrix(t, plan, vocab, hidden);
    weights->norm = toy_matrix(t, plan, 1, hidden);
    weights->blocks = calloc(weights->config.layers, sizeof *weights->blocks);
    assert_non_null(weights->blocks);
    for (uint32_t layer = 0; layer < weights->config.layers; layer++)
        toy_block(t, plan, &weights->blocks[layer]);
}

static void toy_create(toy *t, const toy_plan *plan)
{
    *t = (toy){.seed = plan->seed + 1};
    spw_device_config config;
    spw_device_config_default(&config);
    config.threads = 1;
    config.mem = plan->mem ? plan->mem : (uint64_t)64 << 20;
    assert_int_equal(spw_device_open("cpu", &config, &t->device), 0);
    assert_int_equal(spw_pager_create(t->device, NULL, &t->pager), 0);
    assert_int_equal(spw__pool_create(plan->threads ? plan->threads : 2, &t->pool), 0);
    toy_weights(t, plan);
    assert_int_equal(spw__model_create(&t->weights, t->pool, &t->model), 0);
}

/* -------------------------------------------------------------------------- trained tensors -- */

typedef struct toy_tensor {
    float *data; /* fp32 only */
    float *grad;
    size_t n;
} toy_tensor;

enum { TOY_TENSORS = 128 };

static size_t toy_push(toy_tensor *list, size_t n, const spw__matrix *matrix)
{
    if (!matrix->grad)
        return n;
    assert_true(n < TOY_TENSORS);
    list[n] = (toy_tensor){
        .data = matrix->data, .grad = matrix->grad, .n = (size_t)matrix->rows * matrix->cols};
    return n + 1;
}

static size_t toy_push_lora(toy_tensor *list, size_t n, const spw__linear *linear)
{
    if (!linear->lora.rank)
        return n;
    assert_true(n + 2 <= TOY_TENSORS);
    size_t rank = linear->lora.rank;
    list[n] = (toy_tensor){linear->lora.a, linear->lora.grad_a, rank * linear->w.cols};
    list[n + 1] = (toy_tensor){linear->lora.b, linear->lora.grad_b, rank * linear->w.rows};
    return n + 2;
}

/* Every tensor with a gradient, a shared one once. */
static size_t toy_trained(const spw__weights *weights, toy_tensor list[TOY_TENSORS])
{
    size_t n = toy_push(list, 0, &weights->embedding);
    if (!weights->config.tied)
        n = toy_push(list, n, &weights->head);
    n = toy_push(list, n, &weights->norm);
    for (uint32_t layer = 0; layer < weights->config.layers; layer++) {
        const spw__block *block = &weights->blocks[layer];
        n = toy_push(list, n, &block->norm_attention);
        n = toy_push(list, n, &block->norm_mlp);
        n = toy_push(list, n, &block->norm_q);
        n = toy_push(list, n, &block->norm_k);
        for (int name = 0; name < SPW__N_LINEAR; name++) {
            n = toy_push(list, n, &block->linear[name].w);
            n = toy_push(list, n, &block->linear[name].bias);
            n = toy_push_lora(list, n, &block->linear[name]);
        }
    }
    return n;
}

static void toy_zero(toy *t)
{
    toy_tensor list[TOY_TENSORS];
    size_t n = toy_trained(&t->weights, list);
    for (size_t i = 0; i < n; i++)
        memset(list[i].grad, 0, list[i].n * sizeof(float));
}

static uint64_t toy_in_use(const toy *t)
{
    spw_device_stats stats;
    assert_int_equal(spw_device_stats_get(t->device, &stats), 0);
    return stats.in_use_bytes;
}

/* --------------------------------------------------------------------------------- the end -- */

static void toy_free_matrix(toy *t, spw__matrix *matrix)
{
    spw_free(t->pager, matrix->data);
    spw_free(t->pager, matrix->nf4.codes);
    spw_free(t->pager, matrix->nf4.absmax_codes);
    spw_free(t->pager, matrix->nf4.nested_absmax);
    spw_free(t->pager, matrix->grad);
}

static void toy_free_block(toy *t, spw__block *block)
{
    for (int name = 0; name < SPW__N_LINEAR; name++) {
        spw__linear *linear = &block->linear[name];
        toy_free_matrix(t, &linear->w);
        toy_free_matrix(t, &linear->bias);
        spw_free(t->pager, linear->lora.a);
        spw_free(t->pager, linear->lora.b);
        spw_free(t->pager, linear->lora.grad_a);
        spw_free(t->pager, linear->lora.grad_b);
    }
    toy_free_matrix(t, &block->norm_attention);
    toy_free_matrix(t, &block->norm_mlp);
    toy_free_matrix(t, &block->norm_q);
    toy_free_matrix(t, &block->norm_k);
}

/* Also tests that nothing but the weights was left on the device. */
static void toy_destroy(toy *t)
{
    spw__model_destroy(t->model);
    for (uint32_t layer = 0; layer < t->weights.config.layers; layer++)
        toy_free_block(t, &t->weights.blocks[layer]);
    free(t->weights.blocks);
    toy_free_matrix(t, &t->weights.embedding);
    if (!t->weights.config.tied)
        toy_free_matrix(t, &t->weights.head);
    toy_free_matrix(t, &t->weights.norm);
    assert_int_equal(toy_in_use(t), 0);
    spw__pool_destroy(t->pool);
    spw_pager_destroy(t->pager);
    spw_device_close(t->device);
}

#endif
