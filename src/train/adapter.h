/*
 * adapter.h - LoRA pairs: new ones, ones read from a PEFT adapter directory, and written as one.
 *
 * Files: adapter_config.json and adapter_model.safetensors with keys
 * base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight [r, in] and lora_B.weight [out,
 * r]. Fields of PEFT that would change the arithmetic and are not implemented (dora,
 * modules_to_save, bias, rank_pattern ...) are refused by name.
 */
#ifndef SPW_TRAIN_ADAPTER_H
#define SPW_TRAIN_ADAPTER_H

#include "train/weights.h"

typedef struct spw__adapter_config {
    uint32_t rank;
    double alpha;
    double dropout;
    bool rslora;
    uint32_t targets; /* bit i: SPW__Q + i; all: (1 << SPW__N_LINEAR) - 1 */
    uint64_t seed;    /* of the new A matrices (Philox): uniform in +-1/sqrt(in); B = 0 */
} spw__adapter_config;

/* "q_proj,v_proj" or "all" to a bit set; SPW_EINVAL names the word that is none. */
int spw__adapter_parse_targets(const char *text, uint32_t *targets);

/* Gives the target layers new pairs, with zeroed gradients. */
int spw__adapter_create(spw__weights *weights, const spw__adapter_config *config);

/* Gives them the pairs of a PEFT directory; rank, alpha, dropout and targets come from it and are
 * put into *config. */
int spw__adapter_load(spw__weights *weights, const char *directory, spw__adapter_config *config);

/* Writes both files into OUT (which exists); `base` is the model directory as the user named it. */
int spw__adapter_save(const spw__weights *weights, const spw__adapter_config *config,
                      const char *base, const char *out);

#endif
