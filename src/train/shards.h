/*
 * shards.h - the tensors of a model directory: one safetensors file, or the shards of an index.
 *
 * Opened, looked up by name, closed; the tensors point into the files' maps until then. One thread.
 */
#ifndef SPW_TRAIN_SHARDS_H
#define SPW_TRAIN_SHARDS_H

#include "format/safetensors.h"

typedef struct spw__shards {
    spw__safetensors *files;
    size_t n_files, capacity;
} spw__shards;

/* DIR/model.safetensors, or else what DIR/model.safetensors.index.json names. */
int spw__shards_open(const char *directory, spw__shards *shards);
void spw__shards_close(spw__shards *shards);

/* NULL if no file has it; *path (may be NULL) is the file's. */
const spw__tensor *spw__shards_find(const spw__shards *shards, const char *name, const char **path);

/* Converts n elements from element `first` of an F32, BF16 or F16 tensor to fp32. */
int spw__tensor_to_fp32(const spw__tensor *tensor, const char *path, uint64_t first, uint64_t n,
                        float *out);

#endif
