/*
 * tiny.h - a small model directory that a test writes itself, tensor by tensor, and what is in it.
 *
 * Hidden 20, intermediate 28, 2 layers, 4 heads of 6 and 2 for keys: no row begins with a block of
 * NF4 but by chance, and q is wider than hidden. Element e of tensor t is a multiple of 1/64 below
 * 2, so bf16 and fp16 hold it exactly.
 */
#ifndef TESTS_TRAIN_TINY_H
#define TESTS_TRAIN_TINY_H

#include "folder.h"

#include "base/half.h"
#include "format/safetensors.h"
#include "train/weights.h"

enum {
    TINY_VOCAB = 11,
    TINY_HIDDEN = 20,
    TINY_INTER = 28,
    TINY_LAYERS = 2,
    TINY_Q = 24,
    TINY_KV = 12,
    TINY_HEAD = 6,
    TINY_TENSORS = 64
};

typedef struct tiny {
    const char *model_type; /* NULL: llama */
    bool tied;
    spw__dtype dtype;
    const char *left_out; /* this tensor is not written */
    const char *turned;   /* this one has its shape the other way round */
    int shards;           /* 0: model.safetensors; 1 or 2: shards with an index */
} tiny;

typedef struct tiny_list {
    char names[TINY_TENSORS][96];
    spw__tensor_spec specs[TINY_TENSORS];
    size_t n;
} tiny_list;

static inline void tiny_add(tiny_list *list, const char *name, uint64_t rows, uint64_t cols)
{
    assert_true(list->n < TINY_TENSORS);
    spw__tensor_spec *spec = &list->specs[list->n];
    (void)snprintf(list->names[list->n], sizeof list->names[0], "%s", name);
    *spec = (spw__tensor_spec){.name = list->names[list->n++]};
    if (rows)
        spec->shape[spec->dims++] = rows;
    spec->shape[spec->dims++] = cols;
}

static inline void tiny_add_in(tiny_list *list, int layer, const char *name, uint64_t rows,
                               uint64_t cols)
{
    char full[96];
    (void)snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    tiny_add(list, full, rows, cols);
}

static inline void tiny_add_attention(tiny_list *list, int layer, bool bias, bool norms)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
    } maps[] = {{"q", TINY_Q, TINY_HIDDEN},
                {"k", TINY_KV, TINY_HIDDEN},
                {"v", TINY_KV, TINY_HIDDEN},
                {"o", TINY_HIDDEN, TINY_Q}};
    char name[64];
    for (int i = 0; i < 4; i++) {
        (void)snprintf(name, sizeof name, "self_attn.%s_proj.weight", maps[i].name);
        tiny_add_in(list, layer, name, maps[i].rows, maps[i].cols);
        (void)snprintf(name, sizeof name, "self_attn.%s_proj.bias", maps[i].name);
        if (bias && i < 3)
            tiny_add_in(list, layer, name, 0, maps[i].rows);
    }
    if (!norms)
        return;
    tiny_add_in(list, layer, "self_attn.q_norm.weight", 0, TINY_HEAD);
    tiny_add_in(list, layer, "self_attn.k_norm.weight", 0, TINY_HEAD);
}

/* The tensors in the order of a Llama file. */
static inline void tiny_tensors(const tiny *t, tiny_list *list)
{
    const char *type = t->model_type ? t->model_type : "llama";
    *list = (tiny_list){.n = 0};
    tiny_add(list, "model.embed_tokens.weight", TINY_VOCAB, TINY_HIDDEN);
    for (int layer = 0; layer < TINY_LAYERS; layer++) {
        tiny_add_in(list, layer, "input_layernorm.weight", 0, TINY_HIDDEN);
        tiny_add_attention(list, layer, strcmp(type, "qwen2") == 0, strcmp(type, "qwen3") == 0);
        tiny_add_in(list, layer, "post_attention_layernorm.weight", 0, TINY_HIDDEN);
        tiny_add_in(list, layer, "mlp.gate_proj.weight", TINY_INTER, TINY_HIDDEN);
        tiny_add_in(list, layer, "mlp.up_proj.weight", TINY_INTER, TINY_HIDDEN);
        tiny_add_in(list, layer, "mlp.down_proj.weight", TINY_HIDDEN, TINY_INTER);
    }
    tiny_add(list, "model.norm.weight", 0, TINY_HIDDEN);
    if (!t->tied)
        tiny_add(list, "lm_head.weight", TINY_VOCAB, TINY_HIDDEN);
}

static inline uint64_t tiny_count(const spw__tensor_spec *spec)
{
    return spec->dims == 2 ? spec->shape[0] * spec->shape[1] : spec->shape[0];
}

static inline float tiny_value(size_t tensor, uint64_t element)
{
    return (float)((int)((tensor * 31 + element * 37 + element / 7) % 255) - 127) / 64.0f;
}

/* The fp16 of a multiple of 1/64 below 2. */
static inline uint16_t tiny_fp16(float value)
{
    uint32_t bits = spw__bits_of_float(value);
    if (value == 0)
        return 0;
    return (uint16_t)(bits >> 16 & 0x8000u) |
           (uint16_t)((((bits >> 23 & 255u) - 112) << 10) | (bits >> 13 & 0x3FFu));
}

static inline void tiny_write_tensor(spw__file_writer *writer, spw__dtype dtype, size_t tensor,
                                     uint64_t n)
{
    for (uint64_t e = 0; e < n; e++) {
        float value = tiny_value(tensor, e);
        uint16_t half = dtype == SPW__DTYPE_F16 ? tiny_fp16(value) : spw__bf16_of_float(value);
        bool whole = dtype == SPW__DTYPE_F32;
        assert_int_equal(spw__file_write(writer, whole ? (void *)&value : (void *)&half,
                                         whole ? sizeof value : sizeof half),
                         0);
    }
}

/* Tensors first, first + step, ... into one file. */
static inline void tiny_write_file(const tiny *t, const tiny_list *list, const char *name,
                                   size_t first, size_t step)
{
    spw__tensor_spec specs[TINY_TENSORS];
    size_t from[TINY_TENSORS], n = 0;
    spw__file_writer writer;
    for (size_t i = first; i < list->n; i += step) {
        if (t->left_out && strcmp(t->left_out, list->specs[i].name) == 0)
            continue;
        specs[n] = list->specs[i];
        specs[n].dtype = t->dtype;
        if (t->turned && strcmp(t->turned, specs[n].name) == 0) {
            specs[n].shape[0] = list->specs[i].shape[1];
            specs[n].shape[1] = list->specs[i].shape[0];
        }
        from[n++] = i;
    }
    assert_int_equal(spw__safetensors_begin(&writer, in_folder(name), specs, n), 0);
    for (size_t i = 0; i < n; i++)
        tiny_write_tensor(&writer, t->dtype, from[i], tiny_count(&specs[i]));
    assert_int_equal(spw__file_commit(&writer), 0);
}

static inline void tiny_write_config(const tiny *t)
{
    char *text;
    assert_true(
        asprintf(&text,
                 "{\"model_type\": \"%s\", \"vocab_size\": %d, \"hidden_size\": %d,"
                 " \"intermediate_size\": %d, \"num_hidden_layers\": %d,"
                 " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": %d,"
                 " \"tie_word_embeddings\": %s, \"torch_dtype\": \"%s\"}",
                 t->model_type ? t->model_type : "llama", TINY_VOCAB, TINY_HIDDEN, TINY_INTER,
                 TINY_LAYERS, TINY_HEAD, t->tied ? "true" : "false",
                 t->dtype == SPW__DTYPE_BF16 ? "bfloat16" : "float32") > 0);
    folder_put("tiny/config.json", text);
    free(text);
}

static inline void tiny_write_index(const tiny *t, const tiny_list *list)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    (void)fputs("{\"weight_map\": {", out);
    for (size_t i = 0; i < list->n; i++)
        (void)fprintf(out, "%s\"%s\": \"part-%zu.safetensors\"", i ? ", " : "", list->specs[i].name,
                      i % (size_t)t->shards);
    (void)fputs("}}", out);
    (void)fclose(out);
    folder_put("tiny/model.safetensors.index.json", text);
    free(text);
}

/* Makes the directory anew; its path. */
static inline const char *tiny_write(const tiny *t, tiny_list *list)
{
    (void)folder_fresh("tiny");
    tiny_tensors(t, list);
    tiny_write_config(t);
    if (!t->shards) {
        tiny_write_file(t, list, "tiny/model.safetensors", 0, 1);
        return in_folder("tiny");
    }
    for (size_t part = 0; part < (size_t)t->shards; part++) {
        char name[64];
        (void)snprintf(name, sizeof name, "tiny/part-%zu.safetensors", part);
        tiny_write_file(t, list, name, part, (size_t)t->shards);
    }
    tiny_write_index(t, list);
    return in_folder("tiny");
}

/* ------------------------------------------------------------------------------------ device -- */

typedef struct tiny_device {
    spw_device *device;
    spw_pager *pager;
} tiny_device;

static inline tiny_device tiny_open_device(uint64_t mem)
{
    tiny_device d;
    spw_device_config config;
    spw_device_config_default(&config);
    config.threads = 1;
    config.mem = mem;
    assert_int_equal(spw_device_open("cpu", &config, &d.device), 0);
    assert_int_equal(spw_pager_create(d.device, NULL, &d.pager), 0);
    return d;
}

static inline uint64_t tiny_in_use(const tiny_device *d)
{
    spw_device_stats stats;
    assert_int_equal(spw_device_stats_get(d->device, &stats), 0);
    return stats.in_use_bytes;
}

/* Nothing may be left on it. */
static inline void tiny_close_device(tiny_device *d)
{
    assert_int_equal(tiny_in_use(d), 0);
    spw_pager_destroy(d->pager);
    spw_device_close(d->device);
}

#endif
