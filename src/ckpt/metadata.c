/* What a file says beside its tensors: of which optimizer it is, and where each parameter stands.
 */
#include "ckpt/ckpt.h"

#include "base/error.h"
#include "base/mem.h"
#include "format/json.h"
#include "format/optim_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char optimizer_name[] = "adamw";
_Static_assert(SPW__BLOCK == 256, "SPW__OPTIM_BLOCK says 256");

enum { STEP_LENGTH = sizeof SPW__OPTIM_STEP - 1 };

static char *key_of(const char *prefix, const char *name)
{
    size_t bytes = strlen(prefix) + strlen(name) + 1;
    char *key = spw__calloc(bytes, 1);
    if (key)
        (void)snprintf(key, bytes, "%s%s", prefix, name);
    return key;
}

/* ---------------------------------------------------------------------------------- writing -- */

static int set(json_t *metadata, const char *prefix, const char *name, const char *value)
{
    char *key = key_of(prefix, name);
    int failed = key ? json_object_set_new(metadata, key, json_string(value)) : -1;
    free(key);
    return failed ? spw__error(SPW_EHOSTMEM, "out of host memory for a checkpoint's header") : 0;
}

static int set_progress(spw_optim *optim, size_t index, json_t *metadata)
{
    char text[48];
    const spw__param *param = &optim->params[index];
    spw__adam_progress progress = param->start;
    int rc = optim->table ? spw__kern_table_get(optim->table, index, &progress) : 0;
    (void)snprintf(text, sizeof text, "%" PRIu64, progress.step);
    return rc < 0 ? rc : set(metadata, SPW__OPTIM_STEP, param->name, text);
}

static bool has_codes(const spw_optim *optim)
{
    for (size_t i = 0; i < optim->n_params; i++)
        if (optim->params[i].is_8bit)
            return true;
    return false;
}

int spw__ckpt_metadata_make(spw_optim *optim, json_t **metadata)
{
    *metadata =
        json_pack("{s:s, s:s, s:s, s:s}", "format", SPW__OPTIM_FORMAT, "version",
                  SPW__OPTIM_VERSION, "library", spw_version(), "optimizer", optimizer_name);
    int rc = *metadata ? 0 : spw__error(SPW_EHOSTMEM, "out of host memory for a checkpoint");
    if (rc == 0 && has_codes(optim))
        rc = set(*metadata, "codes", "", SPW__OPTIM_CODES);
    if (rc == 0 && has_codes(optim))
        rc = set(*metadata, "block", "", SPW__OPTIM_BLOCK);
    for (size_t i = 0; rc == 0 && i < optim->n_params; i++)
        rc = set_progress(optim, i, *metadata);
    if (rc < 0)
        json_decref(*metadata);
    return rc;
}

/* ---------------------------------------------------------------------------------- reading -- */

static const char *get(const spw__safetensors *file, const char *prefix, const char *name)
{
    char *key = key_of(prefix, name);
    const char *value = key ? json_string_value(json_object_get(file->metadata, key)) : NULL;
    free(key);
    return value;
}

static int want(const spw__safetensors *file, const char *key, const char *wanted)
{
    const char *value = get(file, key, "");
    if (value && strcmp(value, wanted) == 0)
        return 0;
    return spw__error(SPW_ENOTSUP, "%s: its %s is %s; this version reads %s", file->path, key,
                      value ? value : "missing", wanted);
}

static int check_kind(const spw_optim *optim, const spw__safetensors *file)
{
    const char *format = get(file, "format", "");
    if (!format || strcmp(format, SPW__OPTIM_FORMAT) != 0)
        return spw__error(SPW_EFORMAT, "%s: is not a spillway optimizer's file", file->path);
    int rc = want(file, "version", SPW__OPTIM_VERSION);
    if (rc == 0)
        rc = want(file, "optimizer", optimizer_name);
    if (rc == 0 && has_codes(optim) && get(file, "codes", ""))
        rc = want(file, "codes", SPW__OPTIM_CODES);
    if (rc == 0 && has_codes(optim) && get(file, "block", ""))
        rc = want(file, "block", SPW__OPTIM_BLOCK);
    return rc;
}

static bool is_ours(const spw_optim *optim, const char *name)
{
    for (size_t i = 0; i < optim->n_params; i++)
        if (strcmp(optim->params[i].name, name) == 0)
            return true;
    return false;
}

/* Ours are all there; no others may be. */
static int check_others(const spw_optim *optim, const spw__safetensors *file)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(file->metadata, key, value) n +=
        strncmp(key, SPW__OPTIM_STEP, STEP_LENGTH) == 0;
    if (n == optim->n_params)
        return 0;
    json_object_foreach(file->metadata, key, value)
    {
        if (strncmp(key, SPW__OPTIM_STEP, STEP_LENGTH) == 0 && !is_ours(optim, key + STEP_LENGTH))
            return spw__error(SPW_EINVAL,
                              "%s: has %zu parameters, this optimizer has %zu; %s is not among "
                              "them",
                              file->path, n, optim->n_params, key + STEP_LENGTH);
    }
    return 0;
}

static int read_progress(const spw__safetensors *file, const char *name, spw__adam_progress *result)
{
    uint64_t step;
    int end = 0;
    const char *text = get(file, SPW__OPTIM_STEP, name);
    if (!text)
        return spw__error(SPW_EINVAL, "%s: has no parameter %s", file->path, name);
    if (sscanf(text, "%" SCNu64 "%n", &step, &end) != 1 || text[end])
        return spw__error(SPW_EFORMAT, "%s: parameter %s: step %s makes no sense", file->path, name,
                          text);
    *result = (spw__adam_progress){.step = step};
    return 0;
}

int spw__ckpt_metadata_read(const spw_optim *optim, const spw__safetensors *file,
                            spw__adam_progress *progress)
{
    int rc = check_kind(optim, file);
    for (size_t i = 0; rc == 0 && i < optim->n_params; i++)
        rc = read_progress(file, optim->params[i].name, &progress[i]);
    return rc == 0 ? check_others(optim, file) : rc;
}
