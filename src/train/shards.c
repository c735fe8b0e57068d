#include "train/shards.h"

#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t max_index_bytes = 64 << 20;

static int open_shard(const char *directory, const char *name, spw__shards *shards)
{
    char *path = spw__path_join(directory, name);
    if (!path)
        return SPW_EHOSTMEM;
    int rc =
        spw__grow(&shards->files, &shards->capacity, shards->n_files + 1, sizeof *shards->files);
    if (rc == 0)
        rc = spw__safetensors_open(path, &shards->files[shards->n_files]);
    if (rc == 0)
        shards->n_files++;
    free(path);
    return rc;
}

static const spw__safetensors *find_open(const spw__shards *shards, const char *name)
{
    for (size_t i = 0; i < shards->n_files; i++) {
        const char *slash = strrchr(shards->files[i].path, '/');
        if (strcmp(slash ? slash + 1 : shards->files[i].path, name) == 0)
            return &shards->files[i];
    }
    return NULL;
}

static bool is_plain_name(const char *name)
{
    return name && *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* One line of the index: opens the file where it is not open yet. */
static int open_for(const char *directory, const char *index_path, const char *tensor,
                    const char *name, spw__shards *shards)
{
    if (!is_plain_name(name))
        return spw__error(SPW_EFORMAT, "%s: tensor %s: its file is not a plain name", index_path,
                          tensor);
    int rc = find_open(shards, name) ? 0 : open_shard(directory, name, shards);
    if (rc < 0)
        return rc;
    if (!spw__safetensors_find(find_open(shards, name), tensor))
        return spw__error(SPW_EFORMAT, "%s: tensor %s is not in %s", index_path, tensor, name);
    return 0;
}

static int open_named(const char *directory, const char *index_path, const json_t *map,
                      spw__shards *shards)
{
    const char *tensor;
    json_t *value;
    if (!json_is_object(map))
        return spw__error(SPW_EFORMAT, "%s: lacks \"weight_map\"", index_path);
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        int rc = open_for(directory, index_path, tensor, json_string_value(value), shards);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int open_index(const char *directory, spw__shards *shards)
{
    char *path = spw__path_join(directory, "model.safetensors.index.json");
    json_t *index = NULL;
    if (!path)
        return SPW_EHOSTMEM;
    int rc = access(path, R_OK) == 0
                 ? spw__json_load(path, max_index_bytes, &index)
                 : spw__error(SPW_ENOENT,
                              "%s: has neither model.safetensors nor model.safetensors.index.json",
                              directory);
    if (rc == 0)
        rc = open_named(directory, path, json_object_get(index, "weight_map"), shards);
    json_decref(index);
    free(path);
    return rc;
}

int spw__shards_open(const char *directory, spw__shards *shards)
{
    *shards = (spw__shards){.files = NULL};
    char *single = spw__path_join(directory, "model.safetensors");
    if (!single)
        return SPW_EHOSTMEM;
    bool is_single = access(single, F_OK) == 0;
    free(single);
    int rc = is_single ? open_shard(directory, "model.safetensors", shards)
                       : open_index(directory, shards);
    if (rc < 0)
        spw__shards_close(shards);
    return rc;
}

void spw__shards_close(spw__shards *shards)
{
    for (size_t i = 0; i < shards->n_files; i++)
        spw__safetensors_close(&shards->files[i]);
    free(shards->files);
    *shards = (spw__shards){.files = NULL};
}

const spw__tensor *spw__shards_find(const spw__shards *shards, const char *name, const char **path)
{
    for (size_t i = 0; i < shards->n_files; i++) {
        const spw__tensor *tensor = spw__safetensors_find(&shards->files[i], name);
        if (tensor && path)
            *path = shards->files[i].path;
        if (tensor)
            return tensor;
    }
    return NULL;
}

int spw__tensor_to_fp32(const spw__tensor *tensor, const char *path, uint64_t first, uint64_t n,
                        float *out)
{
    const uint16_t *halves = (const uint16_t *)tensor->data + first;
    uint16_t half;
    switch (tensor->dtype) {
    case SPW__DTYPE_F32:
        memcpy(out, (const char *)tensor->data + first * 4, (size_t)n * 4);
        return 0;
    case SPW__DTYPE_BF16:
    case SPW__DTYPE_F16:
        for (uint64_t i = 0; i < n; i++) {
            memcpy(&half, (const char *)halves + 2 * i, sizeof half); /* may lie at an odd byte */
            out[i] = tensor->dtype == SPW__DTYPE_BF16 ? spw__float_of_bf16(half)
                                                      : spw__float_of_fp16(half);
        }
        return 0;
    default:
        return spw__error(SPW_ENOTSUP, "%s: tensor %s: dtype %s: F32, BF16 and F16 are supported",
                          path, tensor->name, tensor->dtype_name);
    }
}
