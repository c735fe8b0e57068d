/*
 * double_model.h - the same model, plainly, in double: what test_model.c measures the real one by.
 *
 * One row at a time, one token at a time, no tiles, no tricks. Aborts when host memory is out.
 */
#ifndef TESTS_TRAIN_DOUBLE_MODEL_H
#define TESTS_TRAIN_DOUBLE_MODEL_H

#include "base/philox.h"
#include "train/mask.h"
#include "train/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *doubles(size_t n)
{
    double *memory = calloc(n ? n : 1, sizeof *memory);
    if (!memory)
        abort();
    return memory;
}

static double *expanded(const spw__matrix *matrix)
{
    size_t n = (size_t)matrix->rows * matrix->cols;
    float *single = malloc(n * sizeof *single);
    double *wide = doubles(n);
    if (!single)
        abort();
    spw__matrix_expand(matrix, 0, matrix->rows, single);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)single[i];
    free(single);
    return wide;
}

/* What the dropout of element `index` multiplies by. */
static double kept(const spw__mask *mask, size_t index)
{
    uint32_t counter[4] = {(uint32_t)(index / 4), mask->stream[0], mask->stream[1],
                           mask->stream[2]};
    uint32_t words[4];
    spw__philox(counter, mask->key, words);
    return words[index % 4] >= mask->threshold ? (double)mask->scale : 0.0;
}

typedef struct reference {
    const spw__weights *weights;
    const spw__noise *noise;
    size_t first; /* the row's first token in the batch */
    size_t n;
} reference;

static void reference_lora(const reference *r, uint32_t place, const double *x, double *y)
{
    const spw__linear *linear =
        &r->weights->blocks[place / SPW__N_LINEAR].linear[place % SPW__N_LINEAR];
    size_t in = linear->w.cols, out = linear->w.rows, rank = linear->lora.rank;
    spw__mask mask = {0};
    bool drops = r->noise && linear->lora.dropout > 0.0f;
    if (drops)
        mask = spw__mask_of(r->noise, place, linear->lora.dropout);
    for (size_t t = 0; t < r->n; t++)
        for (size_t j = 0; j < rank; j++) {
            double low = 0.0;
            for (size_t i = 0; i < in; i++)
                low += x[t * in + i] * (double)linear->lora.a[j * in + i] *
                       (drops ? kept(&mask, (r->first + t) * in + i) : 1.0);
            for (size_t o = 0; o < out; o++)
                y[t * out + o] +=
                    (double)linear->lora.scale * low * (double)linear->lora.b[o * rank + j];
        }
}

static double *reference_linear(const reference *r, uint32_t layer, int name, const double *x)
{
    const spw__linear *linear = &r->weights->blocks[layer].linear[name];
    size_t in = linear->w.cols, out = linear->w.rows;
    double *w = expanded(&linear->w), *y = doubles(r->n * out);
    double *bias = linear->bias.data ? expanded(&linear->bias) : doubles(out);
    for (size_t t = 0; t < r->n; t++)
        for (size_t o = 0; o < out; o++) {
            y[t * out + o] = bias[o];
            for (size_t i = 0; i < in; i++)
                y[t * out + o] += x[t * in + i] * w[o * in + i];
        }
    if (linear->lora.rank)
        reference_lora(r, layer * SPW__N_LINEAR + (uint32_t)name, x, y);
    free(w);
    free(bias);
    return y;
}

static double *reference_norm(const reference *r, const spw__matrix *gain, const double *x,
                              size_t heads)
{
    size_t width = gain->cols;
    double *g = expanded(gain), *y = doubles(r->n * heads * width);
    for (size_t row = 0; row < r->n * heads; row++) {
        double squares = 0.0;
        for (size_t i = 0; i < width; i++)
            squares += x[row * width + i] * x[row * width + i];
        double scale = 1.0 / sqrt(squares / (double)width + (double)r->weights->config.rms_eps);
        for (size_t i = 0; i < width; i++)
            y[row * width + i] = x[row * width + i] * scale * g[i];
    }
    free(g);
    return y;
}

static void reference_rotate(const reference *r, double *x, size_t heads)
{
    size_t head_dim = r->weights->config.head_dim, half = head_dim / 2;
    float inverse[64];
    spw__rope_frequencies(&r->weights->config, inverse);
    for (size_t t = 0; t < r->n; t++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < half; i++) {
                double angle = (double)((float)t * inverse[i]);
                double *a = x + (t * heads + h) * head_dim + i, *b = a + half, old = *a;
                *a = old * cos(angle) - *b * sin(angle);
                *b = *b * cos(angle) + old * sin(angle);
            }
}

static void reference_head(const reference *r, size_t h, const double *const qkv[3], double *out)
{
    const spw__model_config *c = &r->weights->config;
    size_t d = c->head_dim, kv = h / (c->heads / c->kv_heads);
    double *p = doubles(r->n);
    for (size_t t = 0; t < r->n; t++) {
        double sum = 0.0;
        for (size_t s = 0; s <= t; s++) {
            double score = 0.0;
            for (size_t i = 0; i < d; i++)
                score +=
                    qkv[0][(t * c->heads + h) * d + i] * qkv[1][(s * c->kv_heads + kv) * d + i];
            sum += p[s] = exp(score / sqrt((double)d));
        }
        for (size_t s = 0; s <= t; s++)
            for (size_t i = 0; i < d; i++)
                out[(t * c->heads + h) * d + i] +=
                    p[s] / sum * qkv[2][(s * c->kv_heads + kv) * d + i];
    }
    free(p);
}

static double *reference_attention(const reference *r, uint32_t layer, const double *x)
{
    const spw__model_config *c = &r->weights->config;
    const spw__block *block = &r->weights->blocks[layer];
    double *normed = reference_norm(r, &block->norm_attention, x, 1);
    double *q = reference_linear(r, layer, SPW__Q, normed);
    double *k = reference_linear(r, layer, SPW__K, normed);
    double *v = reference_linear(r, layer, SPW__V, normed);
    if (c->qk_norm) {
        double *raw_q = q, *raw_k = k;
        q = reference_norm(r, &block->norm_q, raw_q, c->heads);
        k = reference_norm(r, &block->norm_k, raw_k, c->kv_heads);
        free(raw_q);
        free(raw_k);
    }
    reference_rotate(r, q, c->heads);
    reference_rotate(r, k, c->kv_heads);
    double *out = doubles(r->n * c->heads * c->head_dim);
    for (size_t h = 0; h < c->heads; h++)
        reference_head(r, h, (const double *const[]){q, k, v}, out);
    double *y = reference_linear(r, layer, SPW__O, out);
    free(normed), free(q), free(k), free(v), free(out);
    return y;
}

static double *reference_mlp(const reference *r, uint32_t layer, const double *x)
{
    double *normed = reference_norm(r, &r->weights->blocks[layer].norm_mlp, x, 1);
    double *gate = reference_linear(r, layer, SPW__GATE, normed);
    double *up = reference_linear(r, layer, SPW__UP, normed);
    for (size_t i = 0; i < r->n * r->weights->config.intermediate; i++)
        gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    double *y = reference_linear(r, layer, SPW__DOWN, gate);
    free(normed), free(gate), free(up);
    return y;
}

/* Logits [n, vocab] of a row. */
static double *reference_logits(const reference *r, const int32_t *tokens)
{
    size_t hidden = r->weights->config.hidden, vocab = r->weights->config.vocab;
    double *embedding = expanded(&r->weights->embedding), *head = expanded(&r->weights->head);
    double *x = doubles(r->n * hidden), *logits = doubles(r->n * vocab);
    for (size_t t = 0; t < r->n; t++)
        memcpy(x + t * hidden, embedding + (size_t)tokens[t] * hidden, hidden * sizeof *x);
    for (uint32_t layer = 0; layer < r->weights->config.layers; layer++)
        for (int half = 0; half < 2; half++) {
            double *add = half ? reference_mlp(r, layer, x) : reference_attention(r, layer, x);
            for (size_t i = 0; i < r->n * hidden; i++)
                x[i] += add[i];
            free(add);
        }
    double *normed = reference_norm(r, &r->weights->norm, x, 1);
    for (size_t t = 0; t < r->n; t++)
        for (size_t w = 0; w < vocab; w++)
            for (size_t i = 0; i < hidden; i++)
                logits[t * vocab + w] += normed[t * hidden + i] * head[w * hidden + i];
    free(embedding), free(head), free(x), free(normed);
    return logits;
}

/* The loss sum of a batch. */
static double reference_loss(const spw__weights *weights, const spw__batch *batch,
                             const spw__noise *noise)
{
    size_t vocab = weights->config.vocab;
    double loss = 0.0;
    for (uint32_t row = 0; row < batch->n_rows; row++) {
        reference r = {.weights = weights,
                       .noise = noise,
                       .first = batch->starts[row],
                       .n = batch->starts[row + 1] - batch->starts[row]};
        double *logits = reference_logits(&r, batch->tokens + r.first);
        for (size_t t = 0; t < r.n; t++) {
            int32_t target = batch->targets[r.first + t];
            double sum = 0.0;
            for (size_t w = 0; w < vocab; w++)
                sum += exp(logits[t * vocab + w]);
            if (target >= 0)
                loss += log(sum) - logits[t * vocab + (size_t)target];
        }
        free(logits);
    }
    return loss;
}

#endif
