/* The tensors of a model: their list, what is trained, expanding and freeing them. */
#include "train/weights.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "train/nf4.h"
#include "train/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const spw__linear_names[SPW__N_LINEAR] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

/* ------------------------------------------------------------------------------------ slots -- */

typedef struct lister {
    spw__slot *slots;
    size_t n;
} lister;

static spw__slot *add(lister *list, const char *name, spw__matrix *matrix, uint32_t rows,
                      uint32_t cols)
{
    spw__slot *slot = &list->slots[list->n++];
    *slot = (spw__slot){.matrix = matrix, .rows = rows, .cols = cols};
    (void)snprintf(slot->name, sizeof slot->name, "%s", name);
    return slot;
}

static void add_vector(lister *list, uint32_t layer, const char *name, spw__matrix *matrix,
                       uint32_t cols)
{
    char full[96];
    (void)snprintf(full, sizeof full, "model.layers.%u.%.64s", layer, name);
    add(list, full, matrix, 1, cols)->is_vector = true;
}

static void linear_shape(const spw__model_config *c, int which, uint32_t *rows, uint32_t *cols)
{
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const uint32_t out[] = {q, kv, kv, c->hidden, c->intermediate, c->intermediate, c->hidden};
    const uint32_t in[] = {c->hidden, c->hidden, c->hidden,      q,
                           c->hidden, c->hidden, c->intermediate};
    *rows = out[which];
    *cols = in[which];
}

static bool has_bias(const spw__model_config *c, int which)
{
    bool qkv = which == SPW__Q || which == SPW__K || which == SPW__V;
    return (qkv && c->qkv_bias) || (which == SPW__O && c->o_bias);
}

static void add_linear(lister *list, spw__weights *weights, uint32_t layer, int which)
{
    spw__linear *linear = &weights->blocks[layer].linear[which];
    uint32_t rows, cols;
    char name[96];
    linear_shape(&weights->config, which, &rows, &cols);
    (void)snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, spw__linear_names[which]);
    add(list, name, &linear->w, rows, cols)->is_linear = true;
    if (!has_bias(&weights->config, which))
        return;
    (void)snprintf(name, sizeof name, "%s.bias", spw__linear_names[which]);
    add_vector(list, layer, name, &linear->bias, rows);
}

static void add_block(lister *list, spw__weights *weights, uint32_t layer)
{
    const spw__model_config *c = &weights->config;
    spw__block *block = &weights->blocks[layer];
    add_vector(list, layer, "input_layernorm.weight", &block->norm_attention, c->hidden);
    for (int which = SPW__Q; which <= SPW__O; which++)
        add_linear(list, weights, layer, which);
    if (c->qk_norm) {
        add_vector(list, layer, "self_attn.q_norm.weight", &block->norm_q, c->head_dim);
        add_vector(list, layer, "self_attn.k_norm.weight", &block->norm_k, c->head_dim);
    }
    add_vector(list, layer, "post_attention_layernorm.weight", &block->norm_mlp, c->hidden);
    for (int which = SPW__GATE; which <= SPW__DOWN; which++)
        add_linear(list, weights, layer, which);
}

int spw__slots_list(spw__weights *weights, spw__slot **slots, size_t *n)
{
    const spw__model_config *c = &weights->config;
    lister list = {.slots = spw__calloc((size_t)c->layers * 16 + 3, sizeof *list.slots)};
    if (!list.slots)
        return SPW_EHOSTMEM;
    add(&list, "model.embed_tokens.weight", &weights->embedding, c->vocab, c->hidden);
    for (uint32_t layer = 0; layer < c->layers; layer++)
        add_block(&list, weights, layer);
    add(&list, "model.norm.weight", &weights->norm, 1, c->hidden)->is_vector = true;
    if (!c->tied)
        add(&list, "lm_head.weight", &weights->head, c->vocab, c->hidden);
    *slots = list.slots;
    *n = list.n;
    return 0;
}

/* ---------------------------------------------------------------------------------- trained -- */

static int list_full(const spw__weights *weights, spw__trained *list, size_t *n)
{
    /* The list is of pointers into the weights and changes nothing in them. */
    spw__weights *unconst = (spw__weights *)(uintptr_t)weights;
    spw__slot *slots;
    int rc = spw__slots_list(unconst, &slots, n);
    for (size_t i = 0; rc == 0 && i < *n; i++) {
        const spw__matrix *m = slots[i].matrix;
        list[i] = (spw__trained){.data = m->data,
                                 .grad = m->grad,
                                 .n = (uint64_t)m->rows * m->cols,
                                 .rows = m->rows,
                                 .cols = m->cols,
                                 .type = m->kind == SPW__MATRIX_BF16 ? SPW_BF16 : SPW_FP32};
        (void)snprintf(list[i].name, sizeof list[i].name, "%s", slots[i].name);
    }
    free(rc == 0 ? slots : NULL);
    return rc;
}

static spw__trained lora_tensor(uint32_t layer, int which, const spw__linear *linear, bool is_b)
{
    const spw__lora *lora = &linear->lora;
    spw__trained t = {.data = is_b ? lora->b : lora->a,
                      .grad = is_b ? lora->grad_b : lora->grad_a,
                      .rows = is_b ? linear->w.rows : lora->rank,
                      .cols = is_b ? lora->rank : linear->w.cols,
                      .type = SPW_FP32};
    t.n = (uint64_t)t.rows * t.cols;
    (void)snprintf(t.name, sizeof t.name, "base_model.model.model.layers.%u.%s.lora_%c.weight",
                   layer, spw__linear_names[which], is_b ? 'B' : 'A');
    return t;
}

static void list_lora(const spw__weights *weights, spw__trained *list, size_t *n)
{
    *n = 0;
    for (uint32_t layer = 0; layer < weights->config.layers; layer++) {
        for (int which = 0; which < SPW__N_LINEAR; which++) {
            const spw__linear *linear = &weights->blocks[layer].linear[which];
            if (!linear->lora.rank)
                continue;
            list[(*n)++] = lora_tensor(layer, which, linear, false);
            list[(*n)++] = lora_tensor(layer, which, linear, true);
        }
    }
}

int spw__weights_trained(const spw__weights *weights, spw__trained **list, size_t *n)
{
    size_t most = (size_t)weights->config.layers * 16 + 3;
    spw__trained *trained = spw__calloc(most, sizeof *trained);
    if (!trained)
        return SPW_EHOSTMEM;
    int rc = 0;
    if (weights->full)
        rc = list_full(weights, trained, n);
    else
        list_lora(weights, trained, n);
    if (rc < 0) {
        free(trained);
        return rc;
    }
    *list = trained;
    return 0;
}

static uint32_t checksum(uint32_t crc, const spw__matrix *m)
{
    uint64_t n = (uint64_t)m->rows * m->cols;
    if (m->kind == SPW__MATRIX_FP32)
        return spw__crc32c(crc, m->data, (size_t)n * sizeof(float));
    if (m->kind == SPW__MATRIX_BF16)
        return spw__crc32c(crc, m->data, (size_t)n * sizeof(uint16_t));
    crc = spw__crc32c(crc, m->nf4.codes, (size_t)(n + 1) / 2);
    crc = spw__crc32c(crc, m->nf4.absmax_codes, (size_t)spw__nf4_blocks(n));
    crc = spw__crc32c(crc, m->nf4.nested_absmax, (size_t)spw__nf4_nested_blocks(n) * sizeof(float));
    return spw__crc32c(crc, &m->nf4.offset, sizeof m->nf4.offset);
}

int spw__weights_checksum(const spw__weights *weights, uint32_t *crc)
{
    spw__weights *unconst = (spw__weights *)(uintptr_t)weights; /* as list_full */
    spw__slot *slots;
    size_t n;
    int rc = spw__slots_list(unconst, &slots, &n);
    if (rc < 0)
        return rc;
    *crc = 0;
    for (size_t i = 0; i < n; i++)
        *crc = checksum(*crc, slots[i].matrix);
    free(slots);
    return 0;
}

/* ----------------------------------------------------------------------------------- memory -- */

static void free_matrix(spw_pager *pager, spw__matrix *matrix)
{
    spw_free(pager, matrix->data);
    spw_free(pager, matrix->nf4.codes);
    spw_free(pager, matrix->nf4.absmax_codes);
    spw_free(pager, matrix->nf4.nested_absmax);
    spw_free(pager, matrix->grad);
    *matrix = (spw__matrix){.data = NULL};
}

static void free_lora(spw_pager *pager, spw__lora *lora)
{
    spw_free(pager, lora->a);
    spw_free(pager, lora->b);
    spw_free(pager, lora->grad_a);
    spw_free(pager, lora->grad_b);
    *lora = (spw__lora){.rank = 0};
}

void spw__weights_free(spw__weights *weights)
{
    spw_pager *pager = weights->pager;
    for (uint32_t layer = 0; weights->blocks && layer < weights->config.layers; layer++) {
        spw__block *block = &weights->blocks[layer];
        for (int which = 0; which < SPW__N_LINEAR; which++) {
            free_matrix(pager, &block->linear[which].w);
            free_matrix(pager, &block->linear[which].bias);
            free_lora(pager, &block->linear[which].lora);
        }
        free_matrix(pager, &block->norm_attention);
        free_matrix(pager, &block->norm_mlp);
        free_matrix(pager, &block->norm_q);
        free_matrix(pager, &block->norm_k);
    }
    if (!weights->config.tied)
        free_matrix(pager, &weights->head);
    free_matrix(pager, &weights->embedding);
    free_matrix(pager, &weights->norm);
    free(weights->blocks);
    *weights = (spw__weights){.pager = NULL};
}

void spw__matrix_expand(const spw__matrix *matrix, uint32_t row, uint32_t n, float *out)
{
    uint64_t first = (uint64_t)row * matrix->cols, count = (uint64_t)n * matrix->cols;
    if (matrix->kind == SPW__MATRIX_NF4) {
        spw__nf4_unpack(&matrix->nf4, first, count, out);
    } else if (matrix->kind == SPW__MATRIX_BF16) {
        const uint16_t *halves = (const uint16_t *)matrix->data + first;
        for (uint64_t i = 0; i < count; i++)
            out[i] = spw__float_of_bf16(halves[i]);
    } else {
        memcpy(out, (const float *)matrix->data + first, (size_t)count * sizeof *out);
    }
}
