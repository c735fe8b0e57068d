/* A trained model out to a Hugging Face directory. */
#include "train/weights.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What goes along unchanged, where it is there. */
static const char *const companions[] = {
    "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json", "vocab.json",
    "merges.txt",     "generation_config.json", "chat_template.jinja",
};
enum { N_COMPANIONS = sizeof companions / sizeof *companions };

static const uint64_t max_companion_bytes = 256 << 20;

static void describe(const spw__trained *trained, spw__tensor_spec *spec)
{
    *spec =
        (spw__tensor_spec){.name = trained->name,
                           .dtype = trained->type == SPW_BF16 ? SPW__DTYPE_BF16 : SPW__DTYPE_F32};
    if (trained->rows > 1)
        spec->shape[spec->dims++] = trained->rows;
    spec->shape[spec->dims++] = trained->cols;
}

static int write_tensors(const char *path, const spw__trained *list, const spw__tensor_spec *specs,
                         size_t n)
{
    spw__file_writer writer;
    int rc = spw__safetensors_begin(&writer, path, specs, n);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint64_t element = list[i].type == SPW_BF16 ? 2 : 4;
        rc = spw__file_write(&writer, list[i].data, (size_t)(list[i].n * element));
    }
    if (rc == 0)
        return spw__file_commit(&writer);
    spw__file_abandon(&writer);
    return rc;
}

static int save_tensors(const spw__weights *weights, const char *out)
{
    spw__trained *list = NULL;
    size_t n;
    int rc = spw__weights_trained(weights, &list, &n);
    if (rc < 0)
        return rc;
    spw__tensor_spec *specs = spw__calloc(n, sizeof *specs);
    char *path = spw__path_join(out, "model.safetensors");
    rc = specs && path ? 0 : SPW_EHOSTMEM;
    for (size_t i = 0; rc == 0 && i < n; i++)
        describe(&list[i], &specs[i]);
    if (rc == 0)
        rc = write_tensors(path, list, specs, n);
    free(path);
    free(specs);
    free(list);
    return rc;
}

static int put_json(const char *path, const json_t *document)
{
    char *text = json_dumps(document, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    if (!text)
        return spw__error(SPW_EHOSTMEM, "%s: out of host memory", path);
    int rc = spw__file_put(path, text, strlen(text));
    free(text);
    return rc;
}

static int save_config(const spw__weights *weights, const char *directory, const char *out)
{
    const char *dtype = weights->embedding.kind == SPW__MATRIX_BF16 ? "bfloat16" : "float32";
    char *from = spw__path_join(directory, "config.json"), *to = spw__path_join(out, "config.json");
    json_t *config = NULL;
    int rc = from && to ? spw__json_load(from, 16 << 20, &config) : SPW_EHOSTMEM;
    if (rc == 0) {
        bool old_name = json_object_get(config, "torch_dtype") != NULL;
        (void)json_object_set_new(config, old_name ? "torch_dtype" : "dtype", json_string(dtype));
        rc = put_json(to, config);
    }
    json_decref(config);
    free(from);
    free(to);
    return rc;
}

static int copy_companion(const char *directory, const char *out, const char *name)
{
    char *from = spw__path_join(directory, name), *to = spw__path_join(out, name);
    char *data = NULL;
    size_t bytes;
    int rc = from && to ? 0 : SPW_EHOSTMEM;
    if (rc == 0 && access(from, F_OK) == 0) {
        rc = spw__file_read(from, max_companion_bytes, &data, &bytes);
        if (rc == 0)
            rc = spw__file_put(to, data, bytes);
    }
    free(data);
    free(from);
    free(to);
    return rc;
}

static void remove_from(const char *out, const char *name)
{
    char *path = spw__path_join(out, name);
    if (path)
        (void)unlink(path);
    free(path);
}

/* The tensors come last: a directory that has them is complete. */
int spw__weights_save(const spw__weights *weights, const char *directory, const char *out)
{
    int rc = 0, copied = 0;
    for (; rc == 0 && copied < N_COMPANIONS; copied++)
        rc = copy_companion(directory, out, companions[copied]);
    if (rc == 0)
        rc = save_config(weights, directory, out);
    if (rc == 0)
        rc = save_tensors(weights, out);
    if (rc == 0)
        return 0;
    for (int i = 0; i < copied; i++)
        remove_from(out, companions[i]);
    remove_from(out, "config.json");
    return rc;
}
