/*
 * safetensors.h - reading and writing safetensors files.
 *
 * Format (huggingface/safetensors): a u64 little-endian header length of at most 100,000,000, a
 * JSON object {name: {dtype, shape, data_offsets [begin, end)}, "__metadata__": {string: string}},
 * then the data, row-major little-endian, without holes or overlaps. A reader trusts nothing: a lie
 * is SPW_EFORMAT and names the file, the tensor and the byte.
 *
 * A reader maps the file; tensors point into the map until it is closed. A writer streams tensors
 * in the order it was told, under a temporary name (base/file.h). One thread each.
 */
#ifndef SPW_FORMAT_SAFETENSORS_H
#define SPW_FORMAT_SAFETENSORS_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

typedef enum spw__dtype {
    SPW__DTYPE_F32,
    SPW__DTYPE_F16,
    SPW__DTYPE_BF16,
    SPW__DTYPE_U8,
    SPW__DTYPE_OTHER, /* known to the format, not to us: its name is in the tensor */
} spw__dtype;

enum { SPW__TENSOR_DIMS = 8 };

typedef struct spw__tensor {
    char *name;
    const void *data;
    uint64_t n; /* elements */
    uint64_t bytes;
    uint64_t shape[SPW__TENSOR_DIMS];
    uint32_t dims;
    spw__dtype dtype;
    char dtype_name[12];
} spw__tensor;

typedef struct spw__safetensors {
    char *path;
    spw__tensor *tensors; /* by name, ascending */
    size_t n_tensors;
    void *map;
    size_t map_bytes;
} spw__safetensors;

int spw__safetensors_open(const char *path, spw__safetensors *file);
void spw__safetensors_close(spw__safetensors *file); /* a zeroed one is allowed */
const spw__tensor *spw__safetensors_find(const spw__safetensors *file, const char *name);

/* One tensor of a file to be written. */
typedef struct spw__tensor_spec {
    const char *name;
    uint64_t shape[SPW__TENSOR_DIMS];
    uint32_t dims;
    spw__dtype dtype; /* F32, BF16, F16 or U8 */
} spw__tensor_spec;

/* Writes the header (metadata {"format": "pt"}); then the data follows by spw__file_write, exactly
 * in the order of `specs`, and spw__file_commit or spw__file_abandon. */
int spw__safetensors_begin(spw__file_writer *writer, const char *path,
                           const spw__tensor_spec *specs, size_t n);

#endif
