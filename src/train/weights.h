/*
 * weights.h - a model's tensors in device memory: what the arithmetic (model.h) works on.
 *
 * weights.c fills the struct from a model directory and writes it back; adapter.c adds LoRA pairs
 * to it; nf4.c packs matrices. All memory comes from spw_malloc of one pager, so that loading can
 * make state give way, and is freed by spw__weights_free. One thread.
 */
#ifndef SPW_TRAIN_WEIGHTS_H
#define SPW_TRAIN_WEIGHTS_H

#include "train/config.h"

#include <spillway/spillway.h>

/* How the frozen matrices of the blocks are held. Embedding, norms and head of a frozen model are
 * fp32 under FP32, else bf16 when stored as bf16. AS_STORED: bf16 or fp32 as the file has them. */
typedef enum spw__base {
    SPW__BASE_FP32,
    SPW__BASE_BF16,
    SPW__BASE_NF4,
    SPW__BASE_AS_STORED,
} spw__base;

typedef enum spw__matrix_kind {
    SPW__MATRIX_FP32,
    SPW__MATRIX_BF16,
    SPW__MATRIX_NF4
} spw__matrix_kind;

/* 4-bit NormalFloat with double quantisation, QLoRA (arXiv 2305.14314): blocks of 64 elements of
 * the flattened matrix, element 2j in the high nibble; absmax of a block = code table[absmax_code]
 * * nested_absmax[block / 256] + offset. */
typedef struct spw__nf4 {
    uint8_t *codes;        /* ceil(n / 2) */
    uint8_t *absmax_codes; /* ceil(n / 64) */
    float *nested_absmax;  /* ceil(blocks / 256) */
    float offset;          /* mean of the absmax */
} spw__nf4;

/* A tensor [rows, cols], row-major; a vector has rows 1. `grad` (fp32, device memory, zeroed by the
 * loop) is NULL unless it is trained. */
typedef struct spw__matrix {
    uint32_t rows, cols;
    spw__matrix_kind kind;
    void *data;   /* FP32 or BF16 */
    spw__nf4 nf4; /* NF4 */
    float *grad;
} spw__matrix;

/* y = W x + scale * B (A dropout(x)). arXiv 2106.09685. */
typedef struct spw__lora {
    uint32_t rank; /* 0: none */
    float scale;   /* alpha / rank, or alpha / sqrt(rank) with rslora */
    float dropout; /* probability, 0..1 */
    float *a;      /* [rank, in] */
    float *b;      /* [out, rank] */
    float *grad_a, *grad_b;
} spw__lora;

typedef struct spw__linear {
    spw__matrix w;    /* [out, in] */
    spw__matrix bias; /* [1, out]; data NULL: none */
    spw__lora lora;
} spw__linear;

enum spw__linear_name {
    SPW__Q,
    SPW__K,
    SPW__V,
    SPW__O,
    SPW__GATE,
    SPW__UP,
    SPW__DOWN,
    SPW__N_LINEAR
};

typedef struct spw__block {
    spw__linear linear[SPW__N_LINEAR];
    spw__matrix norm_attention, norm_mlp; /* [1, hidden] */
    spw__matrix norm_q, norm_k;           /* [1, head_dim]; qk_norm only */
} spw__block;

typedef struct spw__weights {
    spw__model_config config;
    spw_pager *pager;
    spw__matrix embedding; /* [vocab, hidden] */
    spw__matrix head;      /* [vocab, hidden]; when tied: a copy of the struct above (same data and
                              grad, owned by embedding) */
    spw__matrix norm;      /* [1, hidden] */
    spw__block *blocks;    /* config.layers of them */
    bool full;             /* every tensor is trained */
} spw__weights;

/* Names of the seven linear layers: "self_attn.q_proj", ... "mlp.down_proj". */
extern const char *const spw__linear_names[SPW__N_LINEAR];

/* Loads DIR (model.safetensors, or the shards of model.safetensors.index.json). `full` gives every
 * tensor a zeroed fp32 gradient (base FP32 or AS_STORED only). SPW_ENOMEM leaves nothing behind. */
int spw__weights_load(const char *directory, spw_pager *pager, spw__base base, bool full,
                      spw__weights *weights);
void spw__weights_free(spw__weights *weights);

/* Device bytes that loading will take, from the headers of the files alone. */
int spw__weights_plan(const char *directory, spw__base base, bool full, uint64_t *bytes);

/* Writes a full model to OUT: model.safetensors (FP32 tensors as F32, BF16 ones as BF16, metadata
 * format pt), config.json (dtype set to match) and the tokenizer's files copied from DIR. */
int spw__weights_save(const spw__weights *weights, const char *directory, const char *out);

/* One trained tensor, as the optimizer and the checkpoint see it. */
typedef struct spw__trained {
    char name[160]; /* its key in the file that is written out */
    void *data;
    float *grad;
    uint64_t n;
    uint32_t rows, cols;
    spw_type type;
} spw__trained;

/* All trained tensors in a fixed order (full: file order of a Llama model; LoRA: A then B of each
 * linear, block by block); new memory, free() it. */
int spw__weights_trained(const spw__weights *weights, spw__trained **list, size_t *n);

/* CRC-32C of all tensors as they are held: does a run go on with the model it began with? */
int spw__weights_checksum(const spw__weights *weights, uint32_t *crc);

/* Expands rows [row, row + n) of a matrix of any kind to fp32, `out` [n, cols]. */
void spw__matrix_expand(const spw__matrix *matrix, uint32_t row, uint32_t n, float *out);

#endif
