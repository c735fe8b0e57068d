#include "format/checked.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/mem.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 8, CHUNK = 256 << 10 };

/* What follows the header's length: the digits stand behind it. */
static const char opening[] = "{\"__metadata__\":{\"header_crc32c\":\"";
enum { DIGITS_AT = 8 + sizeof opening - 1 };

/* ---------------------------------------------------------------------------------- writing -- */

static json_t *hex(uint32_t crc)
{
    char digits[DIGITS + 1];
    (void)snprintf(digits, sizeof digits, "%08" PRIx32, crc);
    return json_string(digits);
}

static int set_crc(json_t *metadata, const char *name, uint32_t crc)
{
    size_t bytes = strlen(name) + sizeof "crc32c.";
    char *key = spw__calloc(bytes, 1);
    if (!key)
        return SPW_EHOSTMEM;
    (void)snprintf(key, bytes, "crc32c.%s", name);
    int failed = json_object_set_new(metadata, key, hex(crc));
    free(key);
    return failed ? spw__error(SPW_EINVAL, "a tensor's name is not UTF-8") : 0;
}

/* The header with the checksums known so far. Its size does not depend on them. */
static int make_header(const spw__checked_writer *writer, char **header, size_t *bytes)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < writer->n; i++)
        rc = set_crc(writer->metadata, writer->specs[i].name, writer->tensors[i].crc);
    if (rc == 0)
        rc = spw__safetensors_header(writer->specs, writer->n, writer->metadata, header, bytes);
    if (rc < 0)
        return rc;
    char digits[DIGITS + 1];
    (void)snprintf(digits, sizeof digits, "%08" PRIx32, spw__crc32c(0, *header, *bytes));
    memcpy(*header + DIGITS_AT, digits, DIGITS);
    return 0;
}

static int write_header(spw__checked_writer *writer, uint64_t *data_begin)
{
    char *header;
    size_t bytes;
    int rc = make_header(writer, &header, &bytes);
    if (rc < 0)
        return rc;
    rc = spw__file_write_at(&writer->file, 0, header, bytes);
    *data_begin = bytes;
    free(header);
    return rc;
}

static int prepare(spw__checked_writer *writer, const json_t *metadata)
{
    writer->tensors = spw__calloc(writer->n, sizeof *writer->tensors);
    writer->metadata = json_pack("{s:s}", "header_crc32c", "00000000");
    if (!writer->tensors || !writer->metadata ||
        json_object_update(writer->metadata, (json_t *)(uintptr_t)metadata) < 0)
        return spw__error(SPW_EHOSTMEM, "out of host memory for a checkpoint's header");
    uint64_t at;
    int rc = write_header(writer, &at);
    for (size_t i = 0; rc == 0 && i < writer->n; i++) {
        uint64_t bytes = spw__tensor_spec_bytes(&writer->specs[i]);
        writer->tensors[i] = (spw__checked_tensor){.offset = at, .bytes = bytes};
        at += bytes;
    }
    return rc;
}

int spw__checked_begin(spw__checked_writer *writer, const char *path, const spw__tensor_spec *specs,
                       size_t n, const json_t *metadata)
{
    *writer = (spw__checked_writer){.specs = specs, .n = n};
    int rc = spw__file_begin(&writer->file, path);
    if (rc < 0)
        return rc;
    rc = prepare(writer, metadata);
    if (rc < 0)
        spw__checked_abandon(writer);
    return rc;
}

int spw__checked_write(spw__checked_writer *writer, size_t index, const void *bytes, size_t n)
{
    spw__checked_tensor *tensor = &writer->tensors[index];
    if (n > tensor->bytes - tensor->done)
        return spw__error(SPW_EINVAL, "%s: tensor %s: more than its %" PRIu64 " bytes",
                          writer->file.path, writer->specs[index].name, tensor->bytes);
    int rc = spw__file_write_at(&writer->file, tensor->offset + tensor->done, bytes, n);
    tensor->crc = spw__crc32c(tensor->crc, bytes, n);
    tensor->done += n;
    return rc;
}

static int check_complete(const spw__checked_writer *writer)
{
    for (size_t i = 0; i < writer->n; i++)
        if (writer->tensors[i].done != writer->tensors[i].bytes)
            return spw__error(SPW_EINVAL, "%s: tensor %s: %" PRIu64 " of %" PRIu64 " bytes",
                              writer->file.path, writer->specs[i].name, writer->tensors[i].done,
                              writer->tensors[i].bytes);
    return 0;
}

static void free_tables(spw__checked_writer *writer)
{
    free(writer->tensors);
    json_decref(writer->metadata);
    writer->tensors = NULL;
    writer->metadata = NULL;
}

int spw__checked_commit(spw__checked_writer *writer)
{
    uint64_t data_begin;
    int rc = check_complete(writer);
    if (rc == 0)
        rc = write_header(writer, &data_begin);
    free_tables(writer);
    if (rc == 0)
        return spw__file_commit(&writer->file);
    spw__file_abandon(&writer->file);
    return rc;
}

void spw__checked_abandon(spw__checked_writer *writer)
{
    free_tables(writer);
    if (writer->file.path)
        spw__file_abandon(&writer->file);
}

/* ---------------------------------------------------------------------------------- reading -- */

static int parse_crc(const char *digits, uint32_t *crc)
{
    static const char sixteen[] = "0123456789abcdef";
    uint32_t value = 0;
    for (int i = 0; i < DIGITS; i++) {
        const char *digit = memchr(sixteen, digits[i], 16);
        if (!digit)
            return SPW_EFORMAT;
        value = value << 4 | (uint32_t)(digit - sixteen);
    }
    *crc = value;
    return 0;
}

static uint64_t header_bytes(const spw__safetensors *file)
{
    const unsigned char *raw = file->map;
    uint64_t bytes = 0;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | raw[i];
    return 8 + bytes;
}

static int check_header(const spw__safetensors *file)
{
    const char *raw = file->map;
    uint64_t bytes = header_bytes(file);
    uint32_t wanted;
    if (bytes < DIGITS_AT + DIGITS || memcmp(raw + 8, opening, sizeof opening - 1) != 0 ||
        parse_crc(raw + DIGITS_AT, &wanted) < 0)
        return spw__error(SPW_EFORMAT,
                          "%s: byte 8: no header_crc32c: damaged, or not written by spillway",
                          file->path);
    uint32_t crc = spw__crc32c(0, raw, DIGITS_AT);
    crc = spw__crc32c(crc, "00000000", DIGITS);
    crc = spw__crc32c(crc, raw + DIGITS_AT + DIGITS, (size_t)bytes - DIGITS_AT - DIGITS);
    if (crc == wanted)
        return 0;
    return spw__error(SPW_EFORMAT,
                      "%s: the header, bytes 0 to %" PRIu64 ": damaged: its checksum is %08" PRIx32
                      ", not %08" PRIx32,
                      file->path, bytes, crc, wanted);
}

int spw__checked_open(const char *path, spw__safetensors *file)
{
    int rc = spw__safetensors_open(path, file);
    if (rc < 0)
        return rc;
    rc = check_header(file);
    if (rc < 0)
        spw__safetensors_close(file);
    return rc;
}

int spw__checked_crc(const spw__safetensors *file, const spw__tensor *tensor, uint32_t *crc)
{
    size_t bytes = strlen(tensor->name) + sizeof "crc32c.";
    char *key = spw__calloc(bytes, 1);
    if (!key)
        return SPW_EHOSTMEM;
    (void)snprintf(key, bytes, "crc32c.%s", tensor->name);
    const char *digits = json_string_value(json_object_get(file->metadata, key));
    free(key);
    if (digits && strlen(digits) == DIGITS && parse_crc(digits, crc) == 0)
        return 0;
    return spw__error(SPW_EFORMAT, "%s: tensor %s: has no checksum", file->path, tensor->name);
}

int spw__checked_compare(const spw__safetensors *file, const spw__tensor *tensor, uint32_t crc)
{
    uint32_t wanted;
    int rc = spw__checked_crc(file, tensor, &wanted);
    if (rc < 0 || crc == wanted)
        return rc;
    uint64_t begin = spw__tensor_offset(file, tensor);
    return spw__error(SPW_EFORMAT,
                      "%s: tensor %s, bytes %" PRIu64 " to %" PRIu64
                      ": damaged: its checksum is %08" PRIx32 ", not %08" PRIx32,
                      file->path, tensor->name, begin, begin + tensor->bytes, crc, wanted);
}

static int verify(const spw__safetensors *file, const spw__tensor *tensor, char *chunk)
{
    uint32_t crc = 0;
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < tensor->bytes; at += CHUNK) {
        size_t n = tensor->bytes - at < CHUNK ? (size_t)(tensor->bytes - at) : CHUNK;
        rc = spw__tensor_read(file, tensor, at, chunk, n);
        if (rc == 0)
            crc = spw__crc32c(crc, chunk, n);
    }
    return rc < 0 ? rc : spw__checked_compare(file, tensor, crc);
}

int spw__checked_verify_tensor(const spw__safetensors *file, const spw__tensor *tensor)
{
    char *chunk = spw__calloc(CHUNK, 1);
    if (!chunk)
        return SPW_EHOSTMEM;
    int rc = verify(file, tensor, chunk);
    free(chunk);
    return rc;
}

int spw__checked_verify(const spw__safetensors *file)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < file->n_tensors; i++)
        rc = spw__checked_verify_tensor(file, &file->tensors[i]);
    return rc;
}
