/*
 * State in from a file: first everything is checked, header, sizes and checksums, then one walk
 * over the pages reads it again, straight to where it rests.
 */
#include "ckpt/ckpt.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    const spw__tensor *tensor;
    uint64_t done; /* bytes of it */
    uint32_t crc;  /* of them */
} source;

typedef struct loading {
    spw_optim *optim;
    spw__safetensors file;
    spw__ckpt_table table;
    source *sources;              /* [table.n] */
    spw__adam_progress *progress; /* [n_params] */
} loading;

/* --------------------------------------------------------------------------------- the checks --
 */

static int check_tensor(const loading *l, const spw__tensor_spec *spec, const spw__tensor *tensor)
{
    if (!tensor)
        return spw__error(SPW_EINVAL, "%s: has no tensor %s", l->file.path, spec->name);
    if (tensor->dtype != spec->dtype)
        return spw__error(SPW_EINVAL,
                          "%s: tensor %s at byte %" PRIu64 ": is %s, here it is %s: was the state "
                          "of another number of bits?",
                          l->file.path, spec->name, spw__tensor_offset(&l->file, tensor),
                          tensor->dtype_name, spec->dtype == SPW__DTYPE_U8 ? "U8" : "F32");
    if (tensor->n != spec->shape[0])
        return spw__error(SPW_EINVAL,
                          "%s: tensor %s at byte %" PRIu64 ": has %" PRIu64
                          " elements, here it has %" PRIu64,
                          l->file.path, spec->name, spw__tensor_offset(&l->file, tensor), tensor->n,
                          spec->shape[0]);
    return 0;
}

/* All of ours are in the file, so one more has another name. */
static int refuse_stranger(const loading *l)
{
    const char *name = "";
    for (size_t i = 0; !*name && i < l->file.n_tensors; i++) {
        bool ours = false;
        for (size_t j = 0; !ours && j < l->table.n; j++)
            ours = l->sources[j].tensor == &l->file.tensors[i];
        name = ours ? "" : l->file.tensors[i].name;
    }
    return spw__error(SPW_EINVAL, "%s: tensor %s is none of this optimizer's state", l->file.path,
                      name);
}

/* In order of parameters, so that the first that differs is the one that is named. */
static int check_param(loading *l, size_t param)
{
    int rc = 0;
    for (int part = 0; rc == 0 && part < SPW__PARTS; part++) {
        size_t index = spw__ckpt_tensor_of(&l->table, param, part);
        if (index == SPW__NO_TENSOR)
            continue;
        const spw__tensor_spec *spec = &l->table.specs[index];
        l->sources[index].tensor = spw__safetensors_find(&l->file, spec->name);
        rc = check_tensor(l, spec, l->sources[index].tensor);
    }
    return rc;
}

static int check_tensors(loading *l)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < l->optim->n_params; i++)
        rc = check_param(l, i);
    if (rc == 0 && l->file.n_tensors != l->table.n)
        rc = refuse_stranger(l);
    return rc < 0 ? rc : spw__checked_verify(&l->file);
}

static int take_tables(loading *l)
{
    int rc = spw__ckpt_table_make(l->optim, &l->table);
    if (rc < 0)
        return rc;
    l->sources = spw__calloc(l->table.n, sizeof *l->sources);
    l->progress = spw__calloc(l->optim->n_params, sizeof *l->progress);
    return l->sources && l->progress ? 0 : SPW_EHOSTMEM;
}

/* --------------------------------------------------------------------------------- the loading --
 */

static int read_piece(loading *l, const spw__piece *piece, char *page)
{
    spw__parts parts = spw__ckpt_parts(l->optim, piece->param, piece->n);
    int rc = 0;
    for (int part = 0; rc == 0 && part < SPW__PARTS; part++) {
        if (!parts.bytes[part])
            continue;
        source *from = &l->sources[spw__ckpt_tensor_of(&l->table, piece->param, part)];
        char *to = page + piece->offset + parts.at[part];
        rc = spw__tensor_read(&l->file, from->tensor, from->done, to, (size_t)parts.bytes[part]);
        from->done += parts.bytes[part];
        if (rc == 0)
            from->crc = spw__crc32c(from->crc, to, (size_t)parts.bytes[part]);
        if (rc == 0 && from->done == from->tensor->bytes) /* changed since it was checked? */
            rc = spw__checked_compare(&l->file, from->tensor, from->crc);
    }
    return rc;
}

static int read_page(loading *l, uint64_t page)
{
    spw_optim *optim = l->optim;
    char *bytes;
    int rc = spw__pager_open_page(optim->pager, &bytes);
    if (rc < 0)
        return rc;
    memset(bytes, 0, (size_t)optim->pager->page_bytes);
    for (uint64_t i = optim->page_first[page]; rc == 0 && i < optim->page_first[page + 1]; i++)
        rc = read_piece(l, &optim->pieces[i], bytes);
    return rc < 0 ? rc : spw__pager_put_page(optim->pager, page);
}

static int set_progress(spw_optim *optim, size_t index, const spw__adam_progress *progress)
{
    optim->params[index].start = *progress;
    return spw__kern_table_set(optim->table, index, progress);
}

static int take_over(loading *l)
{
    spw_optim *optim = l->optim;
    int rc = 0;
    optim->torn = true;
    for (uint64_t page = 0; rc == 0 && page < optim->n_pages; page++)
        rc = read_page(l, page);
    for (size_t i = 0; rc == 0 && i < optim->n_params; i++)
        rc = set_progress(optim, i, &l->progress[i]);
    optim->torn = rc < 0;
    return rc;
}

static int load(loading *l, const char *path)
{
    int rc = take_tables(l);
    if (rc == 0)
        rc = spw__checked_open(path, &l->file);
    if (rc == 0)
        rc = spw__ckpt_metadata_read(l->optim, &l->file, l->progress);
    if (rc == 0)
        rc = check_tensors(l);
    if (rc == 0)
        rc = spw__optim_lay_out(l->optim);
    if (rc == 0)
        rc = spw__pager_prepare(l->optim->pager);
    return rc == 0 ? take_over(l) : rc;
}

int spw_optim_load(spw_optim *optim, const char *path)
{
    if (!optim || !path || !*path)
        return spw__error(SPW_EINVAL, "spw_optim_load: optim and path may not be NULL or empty");
    loading l = {.optim = optim};
    int rc = load(&l, path);
    spw__safetensors_close(&l.file);
    spw__ckpt_table_free(&l.table);
    free(l.sources);
    free(l.progress);
    return rc;
}
