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
 * Files: safetensors.c (reading), safetensors_write.c; checked.c, files with checksums.
 */
#ifndef SPW_FORMAT_SAFETENSORS_H
#define SPW_FORMAT_SAFETENSORS_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

struct json_t; /* format/json.h */

typedef enum spw__dtype {
    SPW__DTYPE_F32,
    SPW__DTYPE_F16,
    SPW__DTYPE_BF16,
    SPW__DTYPE_U8,
    SPW__DTYPE_OTHER, /* known to the format, not to us: its name is in the tensor */
} spw__dtype;

enum { SPW__TENSOR_DIMS = 8, SPW__MOST_HEADER_BYTES = 100000000 };

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
    struct json_t *metadata; /* an object of strings; NULL: the file has none */
    void *map;
    size_t map_bytes;
    int fd; /* for spw__tensor_read */
} spw__safetensors;

int spw__safetensors_open(const char *path, spw__safetensors *file);
void spw__safetensors_close(spw__safetensors *file); /* a zeroed one is allowed */
const spw__tensor *spw__safetensors_find(const spw__safetensors *file, const char *name);

/* The place of its first byte in the file. */
uint64_t spw__tensor_offset(const spw__safetensors *file, const spw__tensor *tensor);

/* Reads n bytes from byte `first` of a tensor. Unlike the map it takes no memory for what was read,
 * and a file that shrank meanwhile is an error. */
int spw__tensor_read(const spw__safetensors *file, const spw__tensor *tensor, uint64_t first,
                     void *bytes, size_t n);

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

uint64_t spw__tensor_spec_bytes(const spw__tensor_spec *spec);

/* All that stands before the data (length, JSON, padding), in new memory; the tensors' data follows
 * in the order of `specs`. `metadata`, an object of strings, comes first in it, in its own order.
 * SPW_EINVAL: over what the format allows. */
int spw__safetensors_header(const spw__tensor_spec *specs, size_t n, struct json_t *metadata,
                            char **header, size_t *bytes);

#endif
