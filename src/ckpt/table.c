/* Which tensors an optimizer's file has. */
#include "ckpt/ckpt.h"

#include "base/error.h"
#include "base/mem.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    const char *x, *y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return strcmp(x, y);
}

static int check_utf8(const char *name, size_t index)
{
    json_t *string = json_string(name);
    if (!string)
        return spw__error(SPW_EINVAL,
                          "parameter %zu: its name is not UTF-8, so it has no key in a "
                          "checkpoint",
                          index);
    json_decref(string);
    return 0;
}

static int check_names(const spw_optim *optim)
{
    const char **names = spw__calloc(optim->n_params, sizeof *names);
    if (!names)
        return SPW_EHOSTMEM;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < optim->n_params; i++) {
        names[i] = optim->params[i].name;
        rc = *names[i] ? check_utf8(names[i], i)
                       : spw__error(SPW_EINVAL,
                                    "parameter %zu has no name, so it has no key in a "
                                    "checkpoint: give it one",
                                    i);
    }
    if (rc == 0)
        qsort(names, optim->n_params, sizeof *names, by_name);
    for (size_t i = 1; rc == 0 && i < optim->n_params; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            rc = spw__error(SPW_EINVAL,
                            "two parameters have the name %s, so a checkpoint cannot "
                            "tell them apart: name each differently",
                            names[i]);
    free(names);
    return rc;
}

static bool is_codes(const spw__param *param, int part)
{
    return param->is_8bit && spw__part_kinds[part].coded;
}

static int add(spw__ckpt_table *table, const spw__param *param, int part, uint64_t bytes)
{
    bool codes = is_codes(param, part);
    size_t room = strlen(param->name) + strlen(spw__part_kinds[part].name) + 2;
    char *name = spw__calloc(room, 1);
    if (!name)
        return SPW_EHOSTMEM;
    (void)snprintf(name, room, "%s.%s", param->name, spw__part_kinds[part].name);
    table->specs[table->n++] = (spw__tensor_spec){.name = name,
                                                  .shape = {codes ? bytes : bytes / sizeof(float)},
                                                  .dims = 1,
                                                  .dtype = codes ? SPW__DTYPE_U8 : SPW__DTYPE_F32};
    return 0;
}

/* All tensors of floats, or all of codes. */
static int add_all(const spw_optim *optim, spw__ckpt_table *table, bool codes)
{
    for (size_t i = 0; i < optim->n_params; i++) {
        const spw__param *param = &optim->params[i];
        spw__parts parts = spw__ckpt_parts(optim, i, param->n);
        for (int part = 0; part < SPW__PARTS; part++) {
            if (!parts.bytes[part] || is_codes(param, part) != codes)
                continue;
            table->of[i * SPW__PARTS + (size_t)part] = table->n;
            int rc = add(table, param, part, parts.bytes[part]);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int spw__ckpt_table_make(const spw_optim *optim, spw__ckpt_table *table)
{
    *table = (spw__ckpt_table){.n = 0};
    int rc = check_names(optim);
    if (rc < 0)
        return rc;
    size_t most = optim->n_params * SPW__PARTS;
    table->specs = spw__calloc(most, sizeof *table->specs);
    table->of = spw__calloc(most, sizeof *table->of);
    rc = table->specs && table->of ? 0 : SPW_EHOSTMEM;
    for (size_t i = 0; rc == 0 && i < most; i++)
        table->of[i] = SPW__NO_TENSOR;
    if (rc == 0)
        rc = add_all(optim, table, false);
    if (rc == 0)
        rc = add_all(optim, table, true);
    if (rc < 0)
        spw__ckpt_table_free(table);
    return rc;
}

void spw__ckpt_table_free(spw__ckpt_table *table)
{
    for (size_t i = 0; i < table->n; i++)
        free((char *)(uintptr_t)table->specs[i].name); /* add() made it */
    free(table->specs);
    free(table->of);
    *table = (spw__ckpt_table){.n = 0};
}
