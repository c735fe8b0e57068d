/* safetensors files out: the header, then data as it comes. */
#include "format/safetensors.h"

#include "base/error.h"
#include "base/mem.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* By spw__dtype: what can be written. */
static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [SPW__DTYPE_F32] = {"F32", 4},
    [SPW__DTYPE_F16] = {"F16", 2},
    [SPW__DTYPE_BF16] = {"BF16", 2},
    [SPW__DTYPE_U8] = {"U8", 1},
};

uint64_t spw__tensor_spec_bytes(const spw__tensor_spec *spec)
{
    uint64_t bytes = dtypes[spec->dtype].bytes;
    for (uint32_t i = 0; i < spec->dims; i++)
        bytes *= spec->shape[i];
    return bytes;
}

static json_t *describe(const spw__tensor_spec *spec, uint64_t *offset)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < spec->dims; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)spec->shape[i]));
    uint64_t begin = *offset;
    *offset += spw__tensor_spec_bytes(spec);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[spec->dtype].name, "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)*offset);
}

static char *make_text(const spw__tensor_spec *specs, size_t n, json_t *metadata)
{
    uint64_t offset = 0;
    json_t *header = json_object();
    (void)json_object_set(header, "__metadata__", metadata);
    for (size_t i = 0; i < n; i++)
        if (json_object_set_new(header, specs[i].name, describe(&specs[i], &offset)) < 0)
            break;
    bool complete = json_object_size(header) == n + 1;
    char *text = complete ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        (void)spw__error(SPW_EHOSTMEM, "no safetensors header: out of host memory, or a name is "
                                       "there twice or not UTF-8");
    return text;
}

/* The header is padded with spaces so that the data begins at a multiple of 8. */
int spw__safetensors_header(const spw__tensor_spec *specs, size_t n, json_t *metadata,
                            char **header, size_t *bytes)
{
    char *text = make_text(specs, n, metadata);
    if (!text)
        return SPW_EHOSTMEM;
    size_t length = strlen(text), padded = (size_t)spw__round_up(length, 8);
    char *raw = padded <= SPW__MOST_HEADER_BYTES ? spw__calloc(8 + padded, 1) : NULL;
    if (raw) {
        for (int i = 0; i < 8; i++)
            raw[i] = (char)(unsigned char)((uint64_t)padded >> (8 * i));
        memcpy(raw + 8, text, length);
        memset(raw + 8 + length, ' ', padded - length);
        *bytes = 8 + padded;
        *header = raw;
    }
    free(text);
    if (raw)
        return 0;
    return padded <= SPW__MOST_HEADER_BYTES
               ? SPW_EHOSTMEM
               : spw__error(SPW_EINVAL,
                            "a safetensors header of %zu bytes: %d are allowed; fewer tensors or "
                            "shorter names",
                            padded, SPW__MOST_HEADER_BYTES);
}

int spw__safetensors_begin(spw__file_writer *writer, const char *path,
                           const spw__tensor_spec *specs, size_t n)
{
    char *header = NULL;
    size_t bytes;
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    int rc = spw__safetensors_header(specs, n, metadata, &header, &bytes);
    json_decref(metadata);
    if (rc < 0)
        return rc;
    rc = spw__file_begin(writer, path);
    if (rc == 0) {
        rc = spw__file_write(writer, header, bytes);
        if (rc < 0)
            spw__file_abandon(writer);
    }
    free(header);
    return rc;
}
