/*
 * slots.h - every tensor of a model by its Hugging Face name: the one list that loading, planning,
 * saving and training walk.
 *
 * Inside the weights files (weights*.c) only.
 */
#ifndef SPW_TRAIN_SLOTS_H
#define SPW_TRAIN_SLOTS_H

#include "train/weights.h"

typedef struct spw__slot {
    char name[96]; /* "model.layers.0.self_attn.q_proj.weight" */
    spw__matrix *matrix;
    uint32_t rows, cols; /* cols alone is the shape of a vector: rows 1 */
    bool is_vector;
    bool is_linear; /* one of the seven of a block: what --base is about */
} spw__slot;

/* In the order of a Llama file; new memory, free() it. weights->config and ->blocks are set. */
int spw__slots_list(spw__weights *weights, spw__slot **slots, size_t *n);

#endif
