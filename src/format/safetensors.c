#include "format/safetensors.h"

#include "base/error.h"
#include "base/mem.h"
#include "format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct dtype_info {
    const char *name;
    uint32_t bits;
    spw__dtype dtype;
} dtype_info;

static const dtype_info dtypes[] = {
    {"F32", 32, SPW__DTYPE_F32},      {"F16", 16, SPW__DTYPE_F16},
    {"BF16", 16, SPW__DTYPE_BF16},    {"U8", 8, SPW__DTYPE_U8},
    {"BOOL", 8, SPW__DTYPE_OTHER},    {"I8", 8, SPW__DTYPE_OTHER},
    {"F8_E5M2", 8, SPW__DTYPE_OTHER}, {"F8_E4M3", 8, SPW__DTYPE_OTHER},
    {"F8_E8M0", 8, SPW__DTYPE_OTHER}, {"F4", 4, SPW__DTYPE_OTHER},
    {"F6_E2M3", 6, SPW__DTYPE_OTHER}, {"F6_E3M2", 6, SPW__DTYPE_OTHER},
    {"I16", 16, SPW__DTYPE_OTHER},    {"U16", 16, SPW__DTYPE_OTHER},
    {"I32", 32, SPW__DTYPE_OTHER},    {"U32", 32, SPW__DTYPE_OTHER},
    {"I64", 64, SPW__DTYPE_OTHER},    {"U64", 64, SPW__DTYPE_OTHER},
    {"F64", 64, SPW__DTYPE_OTHER},    {"C64", 64, SPW__DTYPE_OTHER},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

static const dtype_info *find_dtype(const char *name)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            return &dtypes[i];
    return NULL;
}

static int map_file(const char *path, spw__safetensors *file)
{
    struct stat info;
    file->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0)
        return spw__error_errno(errno, "%s: cannot open", path);
    int rc = 0;
    if (fstat(file->fd, &info) < 0)
        rc = spw__error_errno(errno, "%s: cannot stat", path);
    else if (!S_ISREG(info.st_mode))
        rc = spw__error(SPW_EINVAL, "%s: not a regular file", path);
    else if (info.st_size < 8)
        rc = spw__error(SPW_EFORMAT, "%s: %" PRId64 " bytes are too few for a safetensors file",
                        path, (int64_t)info.st_size);
    if (rc == 0) {
        file->map_bytes = (size_t)info.st_size;
        file->map = mmap(NULL, file->map_bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
        if (file->map == MAP_FAILED) {
            file->map = NULL;
            rc = spw__error_errno(errno, "%s: cannot map", path);
        }
    }
    return rc;
}

static int read_header_bytes(const spw__safetensors *file, uint64_t *bytes)
{
    const unsigned char *raw = file->map;
    *bytes = 0;
    for (int i = 7; i >= 0; i--)
        *bytes = *bytes << 8 | raw[i];
    if (*bytes > (uint64_t)SPW__MOST_HEADER_BYTES)
        return spw__error(SPW_EFORMAT,
                          "%s: byte 0: a header of %" PRIu64 " bytes, at most %" PRIu64
                          " are allowed",
                          file->path, *bytes, (uint64_t)SPW__MOST_HEADER_BYTES);
    if (*bytes > file->map_bytes - 8)
        return spw__error(SPW_EFORMAT,
                          "%s: byte 0: a header of %" PRIu64 " bytes in a file of %zu: truncated?",
                          file->path, *bytes, file->map_bytes);
    return 0;
}

/* A non-negative integer of an array; SPW_EFORMAT names tensor and field. */
static int get_size(const spw__safetensors *file, const char *name, const json_t *array, size_t i,
                    uint64_t *value)
{
    const json_t *number = json_array_get(array, i);
    if (!json_is_integer(number) || json_integer_value(number) < 0)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: a shape or offset is not a whole number",
                          file->path, name);
    *value = (uint64_t)json_integer_value(number);
    return 0;
}

static int read_shape(const spw__safetensors *file, spw__tensor *tensor, const json_t *shape)
{
    if (!json_is_array(shape) || json_array_size(shape) > SPW__TENSOR_DIMS)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: shape is not a list of at most %d numbers",
                          file->path, tensor->name, SPW__TENSOR_DIMS);
    tensor->dims = (uint32_t)json_array_size(shape);
    tensor->n = 1;
    for (uint32_t i = 0; i < tensor->dims; i++) {
        int rc = get_size(file, tensor->name, shape, i, &tensor->shape[i]);
        if (rc < 0)
            return rc;
        if (__builtin_mul_overflow(tensor->n, tensor->shape[i], &tensor->n))
            return spw__error(SPW_EFORMAT, "%s: tensor %s: its shape overflows", file->path,
                              tensor->name);
    }
    return 0;
}

static int read_offsets(const spw__safetensors *file, spw__tensor *tensor, const json_t *offsets,
                        uint64_t data_begin, uint32_t bits)
{
    uint64_t begin = 0, end = 0, wanted;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: data_offsets is not a pair", file->path,
                          tensor->name);
    int rc = get_size(file, tensor->name, offsets, 0, &begin);
    if (rc == 0)
        rc = get_size(file, tensor->name, offsets, 1, &end);
    if (rc < 0)
        return rc;
    uint64_t data_bytes = file->map_bytes - data_begin;
    if (begin > end || end > data_bytes)
        return spw__error(SPW_EFORMAT,
                          "%s: tensor %s: bytes %" PRIu64 " to %" PRIu64
                          " of data that has %" PRIu64 ": truncated?",
                          file->path, tensor->name, begin, end, data_bytes);
    if (__builtin_mul_overflow(tensor->n, bits, &wanted) || wanted % 8 || wanted / 8 != end - begin)
        return spw__error(
            SPW_EFORMAT,
            "%s: tensor %s: %" PRIu64 " bytes at byte %" PRIu64 " do not fit its shape and %s",
            file->path, tensor->name, end - begin, data_begin + begin, tensor->dtype_name);
    tensor->bytes = end - begin;
    tensor->data = (const char *)file->map + data_begin + begin;
    return 0;
}

static int read_tensor(spw__safetensors *file, const char *name, const json_t *entry,
                       uint64_t data_begin)
{
    spw__tensor *tensor = &file->tensors[file->n_tensors];
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const dtype_info *info = dtype ? find_dtype(dtype) : NULL;
    if (!info)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: dtype %s is not known", file->path, name,
                          dtype ? dtype : "(none)");
    *tensor = (spw__tensor){.name = spw__strdup(name), .dtype = info->dtype};
    if (!tensor->name)
        return SPW_EHOSTMEM;
    file->n_tensors++;
    strncpy(tensor->dtype_name, info->name, sizeof tensor->dtype_name - 1);
    int rc = read_shape(file, tensor, json_object_get(entry, "shape"));
    if (rc == 0)
        rc = read_offsets(file, tensor, json_object_get(entry, "data_offsets"), data_begin,
                          info->bits);
    return rc;
}

static int by_data(const void *a, const void *b)
{
    const spw__tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const spw__tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Every data byte belongs to exactly one tensor. */
static int check_cover(spw__safetensors *file, uint64_t data_begin)
{
    const char *at = (const char *)file->map + data_begin;
    const char *end = (const char *)file->map + file->map_bytes;
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_data);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const spw__tensor *tensor = &file->tensors[i];
        if (tensor->data != at)
            return spw__error(SPW_EFORMAT, "%s: tensor %s: %s at byte %" PRIu64, file->path,
                              tensor->name,
                              (const char *)tensor->data < at ? "overlaps another" : "a hole",
                              (uint64_t)(at - (const char *)file->map));
        at += tensor->bytes;
    }
    if (at != end)
        return spw__error(SPW_EFORMAT, "%s: %" PRIu64 " bytes at the end belong to no tensor",
                          file->path, (uint64_t)(end - at));
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_name);
    return 0;
}

static int take_metadata(spw__safetensors *file, json_t *metadata)
{
    const char *key;
    json_t *value;
    bool fine = json_is_object(metadata);
    json_object_foreach(metadata, key, value) fine = fine && json_is_string(value);
    if (!fine)
        return spw__error(SPW_EFORMAT, "%s: byte 8: __metadata__ is not an object of strings",
                          file->path);
    file->metadata = json_incref(metadata);
    return 0;
}

static int read_tensors(spw__safetensors *file, json_t *header, uint64_t data_begin)
{
    const char *name;
    json_t *entry;
    file->tensors = spw__calloc(json_object_size(header), sizeof *file->tensors);
    if (!file->tensors)
        return SPW_EHOSTMEM;
    json_object_foreach(header, name, entry)
    {
        int rc = strcmp(name, "__metadata__") == 0 ? take_metadata(file, entry)
                                                   : read_tensor(file, name, entry, data_begin);
        if (rc < 0)
            return rc;
    }
    return check_cover(file, data_begin);
}

static int read_header(spw__safetensors *file)
{
    uint64_t bytes;
    json_t *header;
    int rc = read_header_bytes(file, &bytes);
    if (rc < 0)
        return rc;
    const char *text = (const char *)file->map + 8;
    if (bytes == 0 || text[0] != '{')
        return spw__error(SPW_EFORMAT, "%s: byte 8: the header is not a JSON object", file->path);
    rc = spw__json_parse(text, (size_t)bytes, file->path, true, &header);
    if (rc < 0)
        return rc;
    rc = json_is_object(header)
             ? read_tensors(file, header, 8 + bytes)
             : spw__error(SPW_EFORMAT, "%s: byte 8: the header is not a JSON object", file->path);
    json_decref(header);
    return rc;
}

int spw__safetensors_open(const char *path, spw__safetensors *file)
{
    *file = (spw__safetensors){.path = spw__strdup(path), .fd = -1};
    int rc = file->path ? map_file(path, file) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = read_header(file);
    if (rc < 0)
        spw__safetensors_close(file);
    return rc;
}

void spw__safetensors_close(spw__safetensors *file)
{
    for (size_t i = 0; i < file->n_tensors; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    if (file->map)
        (void)munmap(file->map, file->map_bytes);
    if (file->path && file->fd >= 0)
        (void)close(file->fd);
    json_decref(file->metadata);
    free(file->path);
    *file = (spw__safetensors){.fd = -1};
}

uint64_t spw__tensor_offset(const spw__safetensors *file, const spw__tensor *tensor)
{
    return (uint64_t)((const char *)tensor->data - (const char *)file->map);
}

int spw__tensor_read(const spw__safetensors *file, const spw__tensor *tensor, uint64_t first,
                     void *bytes, size_t n)
{
    char *to = bytes;
    uint64_t at = spw__tensor_offset(file, tensor) + first;
    while (n) {
        ssize_t got = pread(file->fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return spw__error_errno(errno, "%s: tensor %s: cannot read %zu bytes at byte %" PRIu64,
                                    file->path, tensor->name, n, at);
        if (got == 0)
            return spw__error(SPW_EIO, "%s: tensor %s: the file ends at byte %" PRIu64, file->path,
                              tensor->name, at);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

const spw__tensor *spw__safetensors_find(const spw__safetensors *file, const char *name)
{
    size_t low = 0, high = file->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(file->tensors[middle].name, name);
        if (order == 0)
            return &file->tensors[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
