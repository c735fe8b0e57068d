/*
 * config.h - the shape of a model, read from a Hugging Face config.json.
 *
 * The Llama family: pre-norm blocks, RMSNorm, rotary positions (rotate-half), grouped-query
 * attention, SwiGLU. A config.json of another family is refused by name, and so is every field
 * that would change the arithmetic and is not implemented.
 */
#ifndef SPW_TRAIN_CONFIG_H
#define SPW_TRAIN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum spw__rope_type {
    SPW__ROPE_DEFAULT,
    SPW__ROPE_LINEAR,
    SPW__ROPE_LLAMA3
} spw__rope_type;

typedef struct spw__model_config {
    uint32_t vocab;        /* rows of the embedding */
    uint32_t hidden;       /* H */
    uint32_t intermediate; /* I */
    uint32_t layers;
    uint32_t heads;    /* query heads */
    uint32_t kv_heads; /* divides heads */
    uint32_t head_dim; /* even; heads * head_dim need not be hidden */
    uint32_t max_positions;
    float rms_eps;
    bool tied;     /* the output matrix is the embedding */
    bool qkv_bias; /* Qwen2, or attention_bias on q, k, v */
    bool o_bias;   /* attention_bias of Llama also on o */
    bool qk_norm;  /* Qwen3: RMSNorm over head_dim of q and k before rotation */
    spw__rope_type rope;
    double rope_theta;
    double rope_factor, rope_low, rope_high, rope_original; /* llama3 and linear scaling */
    int64_t bos, eos;    /* token ids; -1: none (the first, where eos is a list) */
    bool stored_bf16;    /* torch_dtype or dtype is bfloat16 */
    char model_type[32]; /* "llama", "mistral", "qwen2", "qwen3" */
} spw__model_config;

/* Reads DIR/config.json. Errors name the file, the field and what is allowed. */
int spw__model_config_load(const char *directory, spw__model_config *config);

/* The inverse frequency of each of the head_dim / 2 pairs, scaled as rope says, in fp32 as
 * transformers computes them (modeling_rope_utils.py). */
void spw__rope_frequencies(const spw__model_config *config, float *inverse);

#endif
