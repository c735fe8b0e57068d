/*
 * model_probe.c - runs a model once over token rows and writes what it computed, for
 * tests/python/test_parity_model.py to compare with transformers and PEFT.
 *
 *     model_probe MODEL ROWS OUT [--adapter DIR] [--base fp32|bf16|nf4] [--full] [--threads N]
 *
 * ROWS has a JSON value a line: [ids], each the target of the one before, or {"tokens": [...],
 * "targets": [...]} with -1 where there is no loss. OUT.bin gets floats, OUT.json says which:
 * {"loss_sum", "n_targets", "tensors": [{"name", "rows", "cols", "offset"}]}; tensor "logits.N" is
 * the last token's of row N, the others are gradients of the mean loss over the targets.
 */
#include "base/file.h"
#include "train/adapter.h"
#include "train/model.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *model, *rows, *out, *adapter;
    spw__base base;
    bool full;
    unsigned threads;
} options;

typedef struct probe {
    options options;
    spw_device *device;
    spw_pager *pager;
    spw__pool *pool;
    spw__weights weights;
    spw__model *model;
    int32_t *tokens, *targets; /* of all rows */
    uint32_t *starts;
    spw__batch batch;
    FILE *floats;
    uint64_t offset; /* floats written */
    json_t *tensors;
} probe;

static void die(const char *what)
{
    fprintf(stderr, "model_probe: %s: %s\n", what, spw_last_error());
    exit(1);
}

static void check(int rc, const char *what)
{
    if (rc < 0)
        die(what);
}

static void *need(void *memory)
{
    if (!memory)
        die("out of host memory");
    return memory;
}

static spw__base parse_base(const char *name)
{
    if (strcmp(name, "fp32") == 0)
        return SPW__BASE_FP32;
    if (strcmp(name, "bf16") == 0)
        return SPW__BASE_BF16;
    if (strcmp(name, "nf4") != 0)
        die("--base is fp32, bf16 or nf4");
    return SPW__BASE_NF4;
}

static options parse_options(int argc, char **argv)
{
    options o = {.base = SPW__BASE_FP32, .threads = 2};
    if (argc < 4)
        die("usage: MODEL ROWS OUT [--adapter DIR] [--base fp32|bf16|nf4] [--full] [--threads N]");
    o.model = argv[1], o.rows = argv[2], o.out = argv[3];
    for (int i = 4; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--full") == 0)
            o.full = true;
        else if (has_value && strcmp(argv[i], "--adapter") == 0)
            o.adapter = argv[++i];
        else if (has_value && strcmp(argv[i], "--base") == 0)
            o.base = parse_base(argv[++i]);
        else if (has_value && strcmp(argv[i], "--threads") == 0)
            o.threads = (unsigned)atoi(argv[++i]);
        else
            die(argv[i]);
    }
    return o;
}

/* ------------------------------------------------------------------------------------ rows -- */

static void append_row(probe *p, const json_t *row)
{
    bool plain = json_is_array(row);
    const json_t *tokens = plain ? row : json_object_get(row, "tokens");
    const json_t *targets = plain ? row : json_object_get(row, "targets");
    size_t n = json_array_size(tokens) - (plain ? 1 : 0), at = p->batch.n_tokens;
    p->tokens = need(realloc(p->tokens, (at + n) * sizeof *p->tokens));
    p->targets = need(realloc(p->targets, (at + n) * sizeof *p->targets));
    p->starts = need(realloc(p->starts, (p->batch.n_rows + 2) * sizeof *p->starts));
    for (size_t i = 0; i < n; i++) {
        p->tokens[at + i] = (int32_t)json_integer_value(json_array_get(tokens, i));
        p->targets[at + i] =
            (int32_t)json_integer_value(json_array_get(targets, i + (plain ? 1 : 0)));
    }
    p->starts[p->batch.n_rows++] = (uint32_t)at;
    p->batch.n_tokens = (uint32_t)(at + n);
    p->starts[p->batch.n_rows] = p->batch.n_tokens;
}

static void read_rows(probe *p)
{
    FILE *file = need(fopen(p->options.rows, "r"));
    json_error_t error;
    json_t *row;
    while ((row = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error))) {
        append_row(p, row);
        json_decref(row);
    }
    fclose(file);
    if (p->batch.n_rows == 0)
        die("no row");
    p->batch.tokens = p->tokens;
    p->batch.targets = p->targets;
    p->batch.starts = p->starts;
}

/* ------------------------------------------------------------------------------------- out -- */

static void put_tensor(probe *p, const char *name, const float *values, uint32_t rows,
                       uint32_t cols)
{
    size_t n = (size_t)rows * cols;
    if (fwrite(values, sizeof *values, n, p->floats) != n)
        die("cannot write the floats");
    json_array_append_new(p->tensors,
                          json_pack("{s:s, s:i, s:i, s:I}", "name", name, "rows", (int)rows, "cols",
                                    (int)cols, "offset", (json_int_t)p->offset));
    p->offset += n;
}

static void put_logits(probe *p)
{
    uint32_t vocab = p->weights.config.vocab;
    float *logits = need(malloc(vocab * sizeof *logits));
    for (uint32_t row = 0; row < p->batch.n_rows; row++) {
        uint32_t first = p->starts[row];
        char name[32];
        snprintf(name, sizeof name, "logits.%" PRIu32, row);
        check(spw__model_logits(p->model, p->tokens + first, p->starts[row + 1] - first, logits),
              "logits");
        put_tensor(p, name, logits, 1, vocab);
    }
    free(logits);
}

static void put_gradients(probe *p)
{
    spw__trained *list;
    size_t n;
    check(spw__weights_trained(&p->weights, &list, &n), "trained tensors");
    for (size_t i = 0; i < n; i++)
        put_tensor(p, list[i].name, list[i].grad, list[i].rows, list[i].cols);
    free(list);
}

static char *out_name(const probe *p, const char *extension)
{
    char *name = need(malloc(strlen(p->options.out) + 8));
    sprintf(name, "%s.%s", p->options.out, extension);
    return name;
}

static void put_index(probe *p, double loss_sum, unsigned n_targets)
{
    char *name = out_name(p, "json");
    json_t *index = json_pack("{s:f, s:i, s:o}", "loss_sum", loss_sum, "n_targets", (int)n_targets,
                              "tensors", p->tensors);
    if (!index || json_dump_file(index, name, 0) != 0)
        die("cannot write the index");
    json_decref(index);
    free(name);
}

/* ------------------------------------------------------------------------------------ work -- */

static void load(probe *p)
{
    options *o = &p->options;
    check(spw_device_open("cpu", NULL, &p->device), "device");
    check(spw_pager_create(p->device, NULL, &p->pager), "pager");
    check(spw__pool_create(o->threads, &p->pool), "threads");
    check(spw__weights_load(o->model, p->pager, o->base, o->full, &p->weights), "model");
    spw__adapter_config adapter;
    if (o->adapter)
        check(spw__adapter_load(&p->weights, o->adapter, &adapter), "adapter");
    check(spw__model_create(&p->weights, p->pool, &p->model), "model");
}

static unsigned count_targets(const probe *p)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < p->batch.n_tokens; i++)
        n += p->targets[i] >= 0;
    return n;
}

static void run(probe *p)
{
    char *name = out_name(p, "bin");
    p->floats = need(fopen(name, "wb"));
    p->tensors = need(json_array());
    unsigned n_targets = count_targets(p);
    bool trains = p->options.full || p->options.adapter;
    double loss_sum;
    check(spw__model_loss(p->model, &p->batch, trains ? 1.0 / n_targets : 0.0, NULL, &loss_sum),
          "loss");
    put_logits(p);
    if (trains)
        put_gradients(p);
    if (fclose(p->floats) != 0)
        die("cannot write the floats");
    put_index(p, loss_sum, n_targets);
    free(name);
}

int main(int argc, char **argv)
{
    probe p = {.options = parse_options(argc, argv)};
    read_rows(&p);
    load(&p);
    run(&p);
    spw__model_destroy(p.model);
    spw__weights_free(&p.weights);
    spw__pool_destroy(p.pool);
    spw_pager_destroy(p.pager);
    spw_device_close(p.device);
    free(p.tokens);
    free(p.targets);
    free(p.starts);
    return 0;
}
