/*
 * checked.h - safetensors files that carry checksums: what optimizer checkpoints are made of.
 *
 * A file is an ordinary safetensors file. In its __metadata__ stand, as 8 hexadecimal digits,
 * "header_crc32c" (the very first key of the header), the CRC-32C of everything before the data
 * with its own digits taken as zeros, and "crc32c.NAME" for every tensor. So each byte of the file
 * is under a checksum. A file that another program wrote anew has lost them and is refused.
 *
 * A writer takes the tensors in any order and in parts, and is under a temporary name until it is
 * committed (base/file.h). One thread each.
 */
#ifndef SPW_FORMAT_CHECKED_H
#define SPW_FORMAT_CHECKED_H

#include "format/safetensors.h"

typedef struct spw__checked_tensor {
    uint64_t offset; /* in the file */
    uint64_t bytes;
    uint64_t done; /* so far */
    uint32_t crc;  /* of them */
} spw__checked_tensor;

typedef struct spw__checked_writer {
    spw__file_writer file;
    const spw__tensor_spec *specs; /* the caller's, as long as the writer lives */
    spw__checked_tensor *tensors;  /* [n] */
    size_t n;
    struct json_t *metadata;
} spw__checked_writer;

/* `metadata`: an object of strings, without the checksums. */
int spw__checked_begin(spw__checked_writer *writer, const char *path, const spw__tensor_spec *specs,
                       size_t n, const struct json_t *metadata);

/* The next bytes of tensor `index`. */
int spw__checked_write(spw__checked_writer *writer, size_t index, const void *bytes, size_t n);

/* After all bytes of all tensors. Both end the writer, whatever they return. */
int spw__checked_commit(spw__checked_writer *writer);
void spw__checked_abandon(spw__checked_writer *writer); /* a zeroed one is allowed */

/* spw__safetensors_open, and the header is as it was written. SPW_EFORMAT also where it has no
 * checksums. */
int spw__checked_open(const char *path, spw__safetensors *file);

/* What the file says a tensor's checksum is; SPW_EFORMAT if it says nothing. */
int spw__checked_crc(const spw__safetensors *file, const spw__tensor *tensor, uint32_t *crc);

/* 0 if `crc` is the file's word, else SPW_EFORMAT that names the tensor and where it lies. */
int spw__checked_compare(const spw__safetensors *file, const spw__tensor *tensor, uint32_t crc);

/* Reads a tensor, or all of them, and compares. */
int spw__checked_verify_tensor(const spw__safetensors *file, const spw__tensor *tensor);
int spw__checked_verify(const spw__safetensors *file);

#endif
