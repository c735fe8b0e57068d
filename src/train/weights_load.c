/* A model directory into device memory, tensor by tensor: the host holds one at a time. */
#include "train/weights.h"

#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "train/nf4.h"
#include "train/shards.h"
#include "train/slots.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct loader {
    spw__weights *weights;
    const char *directory;
    spw__shards shards;
    spw__slot *slots;
    size_t n_slots;
    spw__base base;
    bool full;
} loader;

static int find(const loader *l, const spw__slot *slot, const spw__tensor **tensor,
                const char **path)
{
    *tensor = spw__shards_find(&l->shards, slot->name, path);
    if (!*tensor)
        return spw__error(SPW_EFORMAT, "%s: lacks tensor %s", l->directory, slot->name);
    const spw__tensor *t = *tensor;
    bool fits = slot->is_vector
                    ? t->dims == 1 && t->shape[0] == slot->cols
                    : t->dims == 2 && t->shape[0] == slot->rows && t->shape[1] == slot->cols;
    float none; /* converting nothing tells whether the type can be */
    if (fits)
        return spw__tensor_to_fp32(t, *path, 0, 0, &none);
    return spw__error(SPW_EFORMAT,
                      "%s: tensor %s: shape [%" PRIu64 ", %" PRIu64
                      "] of %u dimensions, config.json wants [%u, %u]",
                      *path, slot->name, t->dims ? t->shape[0] : 0, t->dims > 1 ? t->shape[1] : 0,
                      t->dims, slot->rows, slot->cols);
}

/* Vectors stay fp32 in a frozen model: they are read in fp32 and weigh nothing. */
static spw__matrix_kind kind_of(const loader *l, const spw__slot *slot, const spw__tensor *tensor)
{
    bool stored_bf16 = tensor->dtype == SPW__DTYPE_BF16;
    if (l->base == SPW__BASE_FP32 || (slot->is_vector && l->base != SPW__BASE_AS_STORED))
        return SPW__MATRIX_FP32;
    if (slot->is_linear && l->base == SPW__BASE_NF4)
        return SPW__MATRIX_NF4;
    if (slot->is_linear && l->base == SPW__BASE_BF16)
        return SPW__MATRIX_BF16;
    return stored_bf16 ? SPW__MATRIX_BF16 : SPW__MATRIX_FP32;
}

static int load_fp32(const loader *l, spw__matrix *m, const spw__tensor *tensor, const char *path)
{
    int rc = spw_malloc(l->weights->pager, tensor->n * sizeof(float), &m->data);
    return rc < 0 ? rc : spw__tensor_to_fp32(tensor, path, 0, tensor->n, m->data);
}

static int load_bf16(const loader *l, spw__matrix *m, const spw__tensor *tensor, const char *path)
{
    enum { CHUNK = 4096 };
    float chunk[CHUNK];
    int rc = spw_malloc(l->weights->pager, tensor->n * sizeof(uint16_t), &m->data);
    for (uint64_t first = 0; rc == 0 && first < tensor->n; first += CHUNK) {
        uint64_t n = tensor->n - first < CHUNK ? tensor->n - first : CHUNK;
        rc = spw__tensor_to_fp32(tensor, path, first, n, chunk);
        for (uint64_t i = 0; rc == 0 && i < n; i++)
            ((uint16_t *)m->data)[first + i] = spw__bf16_of_float(chunk[i]);
    }
    return rc;
}

static int malloc_bytes(const loader *l, uint64_t bytes, uint8_t **pointer)
{
    void *memory;
    int rc = spw_malloc(l->weights->pager, bytes, &memory);
    if (rc == 0)
        *pointer = memory;
    return rc;
}

static int load_nf4(const loader *l, spw__matrix *m, const spw__tensor *tensor, const char *path)
{
    uint64_t blocks = spw__nf4_blocks(tensor->n);
    void *nested = NULL;
    float *x = spw__calloc((size_t)tensor->n, sizeof *x);
    float *absmax = spw__calloc((size_t)blocks, sizeof *absmax);
    int rc = x && absmax ? 0 : SPW_EHOSTMEM;
    if (rc == 0)
        rc = spw__tensor_to_fp32(tensor, path, 0, tensor->n, x);
    if (rc == 0)
        rc = malloc_bytes(l, (tensor->n + 1) / 2, &m->nf4.codes);
    if (rc == 0)
        rc = malloc_bytes(l, blocks, &m->nf4.absmax_codes);
    if (rc == 0)
        rc = spw_malloc(l->weights->pager, spw__nf4_nested_blocks(tensor->n) * sizeof(float),
                        &nested);
    m->nf4.nested_absmax = nested;
    if (rc == 0)
        spw__nf4_pack(x, tensor->n, NULL, absmax, &m->nf4);
    free(x);
    free(absmax);
    return rc;
}

static int load_grad(const loader *l, spw__matrix *m)
{
    void *grad;
    uint64_t bytes = (uint64_t)m->rows * m->cols * sizeof(float);
    int rc = spw_malloc(l->weights->pager, bytes, &grad);
    if (rc < 0)
        return rc;
    memset(grad, 0, (size_t)bytes);
    m->grad = grad;
    return 0;
}

static int load_slot(const loader *l, const spw__slot *slot)
{
    const spw__tensor *tensor;
    const char *path;
    int rc = find(l, slot, &tensor, &path);
    if (rc < 0)
        return rc;
    spw__matrix *m = slot->matrix;
    m->rows = slot->rows;
    m->cols = slot->cols;
    m->kind = kind_of(l, slot, tensor);
    if (m->kind == SPW__MATRIX_NF4)
        rc = load_nf4(l, m, tensor, path);
    else
        rc = m->kind == SPW__MATRIX_BF16 ? load_bf16(l, m, tensor, path)
                                         : load_fp32(l, m, tensor, path);
    return rc == 0 && l->full ? load_grad(l, m) : rc;
}

static int open_loader(loader *l)
{
    spw__weights *w = l->weights;
    int rc = spw__model_config_load(l->directory, &w->config);
    if (rc < 0)
        return rc;
    w->blocks = spw__calloc(w->config.layers, sizeof *w->blocks);
    rc = w->blocks ? spw__shards_open(l->directory, &l->shards) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = spw__slots_list(w, &l->slots, &l->n_slots);
    return rc;
}

static void close_loader(loader *l)
{
    spw__shards_close(&l->shards);
    free(l->slots);
}

int spw__weights_load(const char *directory, spw_pager *pager, spw__base base, bool full,
                      spw__weights *weights)
{
    *weights = (spw__weights){.pager = pager, .full = full};
    loader l = {.weights = weights, .directory = directory, .base = base, .full = full};
    int rc = 0;
    if (full && base != SPW__BASE_FP32 && base != SPW__BASE_AS_STORED)
        rc = spw__error(SPW_EINVAL,
                        "a full fine-tune trains fp32 or the stored type, not this base");
    if (rc == 0)
        rc = open_loader(&l);
    for (size_t i = 0; rc == 0 && i < l.n_slots; i++)
        rc = load_slot(&l, &l.slots[i]);
    close_loader(&l);
    if (rc < 0) {
        spw__weights_free(weights);
        return rc;
    }
    if (weights->config.tied)
        weights->head = weights->embedding;
    return 0;
}

static uint64_t device_bytes(uint64_t bytes)
{
    return spw__round_up(bytes ? bytes : 1, 64); /* as the device rounds */
}

static uint64_t slot_bytes(const loader *l, const spw__slot *slot, const spw__tensor *tensor)
{
    uint64_t n = tensor->n, grad = l->full ? device_bytes(n * sizeof(float)) : 0;
    switch (kind_of(l, slot, tensor)) {
    case SPW__MATRIX_NF4:
        return device_bytes((n + 1) / 2) + device_bytes(spw__nf4_blocks(n)) +
               device_bytes(spw__nf4_nested_blocks(n) * sizeof(float));
    case SPW__MATRIX_BF16:
        return device_bytes(n * sizeof(uint16_t)) + grad;
    default:
        return device_bytes(n * sizeof(float)) + grad;
    }
}

int spw__weights_plan(const char *directory, spw__base base, bool full, uint64_t *bytes)
{
    spw__weights weights = {.pager = NULL};
    loader l = {.weights = &weights, .directory = directory, .base = base, .full = full};
    *bytes = 0;
    int rc = open_loader(&l);
    for (size_t i = 0; rc == 0 && i < l.n_slots; i++) {
        const spw__tensor *tensor;
        const char *path;
        rc = find(&l, &l.slots[i], &tensor, &path);
        if (rc == 0)
            *bytes += slot_bytes(&l, &l.slots[i], tensor);
    }
    close_loader(&l);
    free(weights.blocks);
    return rc;
}
