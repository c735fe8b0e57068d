/*
 * From one layout of an optimizer's state to another: first the parameters are found in the file
 * that is there, then the tensors of the new one are listed, each with how its bytes are made, and
 * written one after another, a chunk at a time.
 */
#include "base/error.h"
#include "base/mem.h"
#include "cli/ckpt.h"
#include "format/checked.h"
#include "format/json.h"
#include "format/optim_file.h"

#include <spillway/spillway.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 256,
    OLD_BLOCK = 2048,
    CHUNK = 65536 /* elements */,
    MOMENTS = 2,
    MOST_EACH = 7 /* products of a parameter */
};

const char *const spw__layout_words[] = {"spillway", "bitsandbytes", "torch", NULL};

/* What stands behind a parameter's name; NULL: the layout has no such tensor. */
typedef struct suffixes {
    const char *moment[MOMENTS]; /* m, v */
    const char *absmax[MOMENTS];
    const char *table[MOMENTS];
    const char *step; /* a tensor; all layouts have it in the metadata too */
} suffixes;

static const suffixes layouts[] = {
    [SPW__LAYOUT_SPILLWAY] = {{".m", ".v"}, {".absmax_m", ".absmax_v"}, {NULL, NULL}, NULL},
    [SPW__LAYOUT_BITSANDBYTES] = {{".state1", ".state2"},
                                  {".absmax1", ".absmax2"},
                                  {".qmap1", ".qmap2"},
                                  ".step"},
    [SPW__LAYOUT_TORCH] = {{".exp_avg", ".exp_avg_sq"}, {NULL, NULL}, {NULL, NULL}, ".step"},
};

/* A parameter's state as the file has it; m is always there. */
typedef struct state {
    char *name;
    uint64_t step;
    const spw__tensor *moment[MOMENTS], *absmax[MOMENTS];
    uint32_t block; /* elements of an absmax; 0: 32-bit */
} state;

typedef enum making { COPY, COPY_CODES, SPREAD_ABSMAX, DEQUANTISE, TABLE, STEP } making;

/* A tensor of the new file. */
typedef struct product {
    const state *from;
    int which; /* moment */
    making making;
} product;

typedef struct job {
    spw__safetensors file;
    spw__layout layout; /* of it */
    state *states;
    size_t n_states, n_used; /* n_used: tensors of the file that have been understood */
    spw__tensor_spec *specs;
    product *products;
    size_t n; /* of both */
} job;

static char *joined(const char *name, const char *suffix)
{
    size_t bytes = strlen(name) + strlen(suffix) + 1;
    char *text = spw__calloc(bytes, 1);
    if (text)
        (void)snprintf(text, bytes, "%s%s", name, suffix);
    return text;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), end = strlen(suffix);
    return length > end && strcmp(text + length - end, suffix) == 0;
}

/* ---------------------------------------------------------------------------------- finding -- */

/* *tensor is NULL where there is none; those that are there count as understood. */
static int find(job *j, const char *name, const char *suffix, const spw__tensor **tensor)
{
    *tensor = NULL;
    if (!suffix)
        return 0;
    char *key = joined(name, suffix);
    if (!key)
        return SPW_EHOSTMEM;
    *tensor = spw__safetensors_find(&j->file, key);
    j->n_used += *tensor != NULL;
    free(key);
    return 0;
}

static int find_step(job *j, state *s)
{
    const spw__tensor *tensor;
    char *key = joined(SPW__OPTIM_STEP, s->name), *end = NULL;
    int rc = key ? find(j, s->name, layouts[j->layout].step, &tensor) : SPW_EHOSTMEM;
    if (rc < 0) {
        free(key);
        return rc;
    }
    const char *text = json_string_value(json_object_get(j->file.metadata, key));
    free(key);
    float real;
    if (text && *text) {
        s->step = strtoull(text, &end, 10);
        return *end ? spw__error(SPW_EFORMAT, "%s: the step of %s is no number", j->file.path,
                                 s->name)
                    : 0;
    }
    if (tensor && tensor->n == 1 && strcmp(tensor->dtype_name, "I64") == 0) {
        memcpy(&s->step, tensor->data, sizeof s->step);
        return 0;
    }
    if (tensor && tensor->n == 1 && tensor->dtype == SPW__DTYPE_F32) {
        memcpy(&real, tensor->data, sizeof real);
        if (real >= 0 && real < 9e15f) {
            s->step = (uint64_t)real;
            return 0;
        }
    }
    return spw__error(SPW_EFORMAT,
                      "%s: no step of %s: it stands in the metadata as step.NAME, or as a tensor "
                      "NAME.step of one F32 or I64",
                      j->file.path, s->name);
}

static uint64_t blocks_of(uint64_t n, uint64_t block)
{
    return n / block + (n % block != 0);
}

/* The absmax tells how long blocks are: files of bitsandbytes before 0.44 had longer ones. */
static int find_absmax(job *j, state *s, int which)
{
    const spw__tensor *m = s->moment[which], *absmax;
    int rc = find(j, s->name, layouts[j->layout].absmax[which], &absmax);
    if (rc < 0)
        return rc;
    s->absmax[which] = absmax;
    if (m->dtype == SPW__DTYPE_F32 && !absmax)
        return 0;
    if (m->dtype != SPW__DTYPE_U8 || !absmax || absmax->dtype != SPW__DTYPE_F32)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: is neither F32 nor U8 with an F32 absmax",
                          j->file.path, m->name);
    bool is_new = absmax->n == blocks_of(m->n, BLOCK);
    if (!is_new && absmax->n != blocks_of(m->n, OLD_BLOCK))
        return spw__error(SPW_EFORMAT,
                          "%s: tensor %s: %" PRIu64 " scales for %" PRIu64
                          " elements: neither blocks of 256 nor of 2048",
                          j->file.path, absmax->name, absmax->n, m->n);
    s->block = is_new ? BLOCK : OLD_BLOCK;
    return 0;
}

static int check_table(job *j, state *s, int which)
{
    const spw__tensor *table;
    int rc = find(j, s->name, layouts[j->layout].table[which], &table);
    if (rc < 0 || !table)
        return rc;
    const float *ours = spw_code_table(which == 0);
    if (table->dtype == SPW__DTYPE_F32 && table->n == 256 &&
        memcmp(table->data, ours, 256 * sizeof *ours) == 0)
        return 0;
    return spw__error(SPW_ENOTSUP,
                      "%s: tensor %s: is not bitsandbytes' dynamic table, so its codes cannot be "
                      "kept",
                      j->file.path, table->name);
}

static int find_moment(job *j, state *s, int which)
{
    int rc = find(j, s->name, layouts[j->layout].moment[which], &s->moment[which]);
    const spw__tensor *m = s->moment[which];
    if (rc < 0 || !m) /* Lion has no v */
        return rc;
    if (m->n != s->moment[0]->n || m->dtype != s->moment[0]->dtype)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: is not of the size and type of %s",
                          j->file.path, m->name, s->moment[0]->name);
    rc = find_absmax(j, s, which);
    return rc < 0 ? rc : check_table(j, s, which);
}

static int find_state(job *j, const char *tensor)
{
    state *s = &j->states[j->n_states];
    *s = (state){.name = spw__strdup(tensor)};
    if (!s->name)
        return SPW_EHOSTMEM;
    j->n_states++;
    s->name[strlen(tensor) - strlen(layouts[j->layout].moment[0])] = '\0';
    int rc = find_step(j, s);
    for (int which = 0; rc == 0 && which < MOMENTS; which++)
        rc = find_moment(j, s, which);
    return rc;
}

static int find_layout(job *j)
{
    const char *format = json_string_value(json_object_get(j->file.metadata, "format"));
    if (format && strcmp(format, SPW__OPTIM_FORMAT) == 0)
        return 0;
    for (size_t i = 0; i < j->file.n_tensors; i++)
        for (int layout = SPW__LAYOUT_BITSANDBYTES; layout <= SPW__LAYOUT_TORCH; layout++)
            if (ends_with(j->file.tensors[i].name, layouts[layout].moment[0])) {
                j->layout = (spw__layout)layout;
                return 0;
            }
    return spw__error(SPW_EFORMAT,
                      "%s: is no optimizer's file: it has neither spillway's metadata nor a tensor "
                      "NAME.state1 or NAME.exp_avg",
                      j->file.path);
}

static int check_intact(const job *j, const char *from)
{
    spw__safetensors checked;
    if (j->layout != SPW__LAYOUT_SPILLWAY)
        return 0;
    int rc = spw__checked_open(from, &checked);
    if (rc < 0)
        return rc;
    rc = spw__checked_verify(&checked);
    spw__safetensors_close(&checked);
    return rc;
}

static int find_states(job *j, const char *from)
{
    int rc = find_layout(j);
    if (rc == 0)
        rc = check_intact(j, from);
    if (rc == 0 && !(j->states = spw__calloc(j->file.n_tensors, sizeof *j->states)))
        rc = SPW_EHOSTMEM;
    for (size_t i = 0; rc == 0 && i < j->file.n_tensors; i++)
        if (ends_with(j->file.tensors[i].name, layouts[j->layout].moment[0]))
            rc = find_state(j, j->file.tensors[i].name);
    if (rc == 0 && j->n_used != j->file.n_tensors)
        rc = spw__error(SPW_ENOTSUP,
                        "%s: %zu of its %zu tensors are not of Adam's or Lion's state as %s has it",
                        j->file.path, j->file.n_tensors - j->n_used, j->file.n_tensors,
                        spw__layout_words[j->layout]);
    return rc;
}

/* ---------------------------------------------------------------------------------- listing -- */

static int add(job *j, const product *made, const char *suffix, uint64_t n)
{
    bool codes = made->making == COPY_CODES;
    char *name = joined(made->from->name, suffix);
    if (!name)
        return SPW_EHOSTMEM;
    j->products[j->n] = *made;
    j->specs[j->n++] = (spw__tensor_spec){.name = name,
                                          .shape = {n},
                                          .dims = made->making == STEP ? 0 : 1,
                                          .dtype = codes ? SPW__DTYPE_U8 : SPW__DTYPE_F32};
    return 0;
}

/* Of one moment, what is floats. */
static int list_floats(job *j, const state *s, int which, spw__layout to)
{
    const suffixes *names = &layouts[to];
    uint64_t n = s->moment[which]->n;
    product moment = {s, which, s->block ? DEQUANTISE : COPY};
    product scales = {s, which, SPREAD_ABSMAX}, table = {s, which, TABLE};
    if (!s->block || !names->absmax[which])
        return add(j, &moment, names->moment[which], n);
    int rc = add(j, &scales, names->absmax[which], blocks_of(n, BLOCK));
    return rc < 0 || !names->table[which] ? rc : add(j, &table, names->table[which], 256);
}

static int list_codes(job *j, const state *s, int which, spw__layout to)
{
    product codes = {s, which, COPY_CODES};
    bool has_codes = s->block && layouts[to].absmax[which];
    return has_codes ? add(j, &codes, layouts[to].moment[which], s->moment[which]->n) : 0;
}

static int list_state(job *j, const state *s, spw__layout to, bool codes)
{
    product step = {s, 0, STEP};
    int rc = !codes && layouts[to].step ? add(j, &step, layouts[to].step, 1) : 0;
    for (int which = 0; rc == 0 && which < MOMENTS; which++)
        if (s->moment[which])
            rc = codes ? list_codes(j, s, which, to) : list_floats(j, s, which, to);
    return rc;
}

/* Floats first, so that they are aligned. */
static int list_products(job *j, spw__layout to)
{
    int rc = 0;
    j->specs = spw__calloc(j->n_states * MOST_EACH, sizeof *j->specs);
    j->products = spw__calloc(j->n_states * MOST_EACH, sizeof *j->products);
    if (!j->specs || !j->products)
        return SPW_EHOSTMEM;
    for (int codes = 0; codes < 2; codes++)
        for (size_t i = 0; rc == 0 && i < j->n_states; i++)
            rc = list_state(j, &j->states[i], to, codes);
    return rc;
}

/* ---------------------------------------------------------------------------------- writing -- */

static float absmax_of(const state *s, int which, uint64_t element)
{
    float value;
    memcpy(&value, (const char *)s->absmax[which]->data + element / s->block * sizeof value,
           sizeof value);
    return value;
}

/* Elements [first, first + n) of a product that is floats. */
static void make(const product *p, uint64_t first, size_t n, float *out)
{
    const state *s = p->from;
    const float *table = spw_code_table(p->which == 0);
    const unsigned char *codes = s->moment[p->which]->data;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        switch (p->making) {
        case SPREAD_ABSMAX:
            out[i] = absmax_of(s, p->which, at * BLOCK);
            break;
        case DEQUANTISE:
            out[i] = table[codes[at]] * absmax_of(s, p->which, at);
            break;
        case TABLE:
            out[i] = table[at];
            break;
        default:
            out[i] = (float)s->step;
        }
    }
}

static int write_product(const job *j, spw__checked_writer *writer, size_t index, float *chunk)
{
    const product *p = &j->products[index];
    const spw__tensor *source = p->from->moment[p->which];
    if (p->making == COPY || p->making == COPY_CODES)
        return spw__checked_write(writer, index, source->data, (size_t)source->bytes);
    uint64_t n = spw__tensor_spec_bytes(&j->specs[index]) / sizeof *chunk;
    int rc = 0;
    for (uint64_t first = 0; rc == 0 && first < n; first += CHUNK) {
        size_t now = n - first < CHUNK ? (size_t)(n - first) : CHUNK;
        make(p, first, now, chunk);
        rc = spw__checked_write(writer, index, chunk, now * sizeof *chunk);
    }
    return rc;
}

static json_t *copy_ours(const job *j)
{
    const char *key;
    json_t *value, *metadata = json_object();
    json_object_foreach(j->file.metadata, key, value) if (strncmp(key, "crc32c.", 7) != 0 &&
                                                          strcmp(key, "header_crc32c") != 0)(void)
        json_object_set(metadata, key, value);
    return metadata;
}

static bool any(const job *j, bool (*is)(const state *))
{
    for (size_t i = 0; i < j->n_states; i++)
        if (is(&j->states[i]))
            return true;
    return false;
}

static bool has_codes(const state *s)
{
    return s->block != 0;
}

static bool has_v(const state *s)
{
    return s->moment[1] != NULL;
}

static json_t *make_metadata(const job *j, spw__layout to)
{
    if (to == SPW__LAYOUT_SPILLWAY && j->layout == SPW__LAYOUT_SPILLWAY)
        return copy_ours(j);
    json_t *metadata = to == SPW__LAYOUT_SPILLWAY
                           ? json_pack("{s:s, s:s, s:s, s:s}", "format", SPW__OPTIM_FORMAT,
                                       "version", SPW__OPTIM_VERSION, "library", spw_version(),
                                       "optimizer", any(j, has_v) ? "adamw" : "lion")
                           : json_pack("{s:s}", "format", "pt");
    if (to == SPW__LAYOUT_SPILLWAY && any(j, has_codes)) {
        (void)json_object_set_new(metadata, "codes", json_string(SPW__OPTIM_CODES));
        (void)json_object_set_new(metadata, "block", json_string(SPW__OPTIM_BLOCK));
    }
    for (size_t i = 0; i < j->n_states; i++) {
        char *key = joined(SPW__OPTIM_STEP, j->states[i].name), text[24];
        (void)snprintf(text, sizeof text, "%" PRIu64, j->states[i].step);
        if (key)
            (void)json_object_set_new(metadata, key, json_string(text));
        free(key);
    }
    return metadata;
}

static int write_all(const job *j, const char *to, spw__layout layout)
{
    spw__checked_writer writer;
    float *chunk = spw__calloc(CHUNK, sizeof *chunk);
    json_t *metadata = make_metadata(j, layout);
    int rc = chunk && metadata ? spw__checked_begin(&writer, to, j->specs, j->n, metadata)
                               : spw__error(SPW_EHOSTMEM, "out of host memory for %s", to);
    json_decref(metadata);
    if (rc < 0) {
        free(chunk);
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < j->n; i++)
        rc = write_product(j, &writer, i, chunk);
    free(chunk);
    if (rc == 0)
        return spw__checked_commit(&writer);
    spw__checked_abandon(&writer);
    return rc;
}

static void free_job(job *j)
{
    for (size_t i = 0; i < j->n; i++)
        free((char *)(uintptr_t)j->specs[i].name); /* add() made it */
    for (size_t i = 0; i < j->n_states; i++)
        free(j->states[i].name);
    free(j->specs);
    free(j->products);
    free(j->states);
    spw__safetensors_close(&j->file);
}

int spw__ckpt_convert(const char *from, const char *to, spw__layout layout)
{
    job j = {.layout = SPW__LAYOUT_SPILLWAY};
    int rc = spw__safetensors_open(from, &j.file);
    if (rc < 0)
        return rc;
    rc = find_states(&j, from);
    if (rc == 0)
        rc = list_products(&j, layout);
    if (rc == 0)
        rc = write_all(&j, to, layout);
    free_job(&j);
    return rc;
}
