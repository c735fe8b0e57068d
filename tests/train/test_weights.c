#include "tiny.h"

#include "train/adapter.h"
#include "train/nf4.h"

#include <math.h>

static const tiny plain = {.dtype = SPW__DTYPE_F32};

/* ---------------------------------------------------------------------------------- looking -- */

/* A tensor of the model by its name, in a list of its own making. */
static const spw__matrix *matrix_of(const spw__weights *w, const char *name)
{
    unsigned layer;
    int at = 0;
    if (strcmp(name, "model.embed_tokens.weight") == 0)
        return &w->embedding;
    if (strcmp(name, "model.norm.weight") == 0)
        return &w->norm;
    if (strcmp(name, "lm_head.weight") == 0)
        return &w->head;
    assert_int_equal(sscanf(name, "model.layers.%u.%n", &layer, &at), 1);
    const spw__block *block = &w->blocks[layer];
    const char *rest = name + at;
    if (strcmp(rest, "input_layernorm.weight") == 0)
        return &block->norm_attention;
    if (strcmp(rest, "post_attention_layernorm.weight") == 0)
        return &block->norm_mlp;
    if (strcmp(rest, "self_attn.q_norm.weight") == 0)
        return &block->norm_q;
    if (strcmp(rest, "self_attn.k_norm.weight") == 0)
        return &block->norm_k;
    for (int which = 0; which < SPW__N_LINEAR; which++) {
        size_t length = strlen(spw__linear_names[which]);
        if (strncmp(rest, spw__linear_names[which], length) != 0)
            continue;
        return strcmp(rest + length, ".bias") == 0 ? &block->linear[which].bias
                                                   : &block->linear[which].w;
    }
    fail_msg("%s", name);
    return NULL;
}

static bool is_linear(const char *name)
{
    return strstr(name, "_proj.weight") != NULL;
}

static void check_exact(const spw__matrix *m, size_t tensor, uint64_t n)
{
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    spw__matrix_expand(m, 0, m->rows, values);
    for (uint64_t e = 0; e < n; e++)
        assert_true(values[e] == tiny_value(tensor, e));
    free(values);
}

/* The bits of packing the same values here. */
static void check_packed(const spw__matrix *m, size_t tensor, uint64_t n)
{
    enum { MOST = 1024 };
    float x[MOST], absmax[MOST / 64], nested[1];
    uint8_t codes[MOST / 2], absmax_codes[MOST / 64];
    spw__nf4 nf4 = {.codes = codes, .absmax_codes = absmax_codes, .nested_absmax = nested};
    assert_true(n <= MOST);
    for (uint64_t e = 0; e < n; e++)
        x[e] = tiny_value(tensor, e);
    spw__nf4_pack(x, n, NULL, absmax, &nf4);
    assert_memory_equal(m->nf4.codes, codes, (n + 1) / 2);
    assert_memory_equal(m->nf4.absmax_codes, absmax_codes, (n + 63) / 64);
    assert_true(m->nf4.nested_absmax[0] == nested[0] && m->nf4.offset == nf4.offset);
}

static void check_all(const spw__weights *w, const tiny_list *list, spw__matrix_kind linear,
                      spw__matrix_kind tables, spw__matrix_kind vectors)
{
    for (size_t i = 0; i < list->n; i++) {
        const spw__tensor_spec *spec = &list->specs[i];
        const spw__matrix *m = matrix_of(w, spec->name);
        bool vector = spec->dims == 1;
        spw__matrix_kind kind = is_linear(spec->name) ? linear : vector ? vectors : tables;
        assert_int_equal(m->rows, vector ? 1 : spec->shape[0]);
        assert_int_equal(m->cols, spec->shape[spec->dims - 1]);
        if (m->kind != kind)
            print_error("%s is held as %d\n", spec->name, (int)m->kind);
        assert_int_equal(m->kind, kind);
        if (kind == SPW__MATRIX_NF4)
            check_packed(m, i, tiny_count(spec));
        else
            check_exact(m, i, tiny_count(spec));
    }
}

static void check_no_more_is_taken_than_planned(const tiny_device *d, const char *directory,
                                                spw__base base, bool full)
{
    uint64_t planned;
    assert_int_equal(spw__weights_plan(directory, base, full, &planned), 0);
    assert_int_equal(tiny_in_use(d), planned);
}

/* ----------------------------------------------------------------------------------- loading -- */

typedef struct holding {
    spw__dtype stored;
    spw__base base;
    spw__matrix_kind linear, tables, vectors;
} holding;

#define FP32 SPW__MATRIX_FP32
#define BF16 SPW__MATRIX_BF16
#define NF4 SPW__MATRIX_NF4
static const holding holdings[] = {
    {SPW__DTYPE_F32, SPW__BASE_FP32, FP32, FP32, FP32},
    {SPW__DTYPE_BF16, SPW__BASE_FP32, FP32, FP32, FP32},
    {SPW__DTYPE_F16, SPW__BASE_FP32, FP32, FP32, FP32},
    {SPW__DTYPE_F32, SPW__BASE_BF16, BF16, FP32, FP32},
    {SPW__DTYPE_BF16, SPW__BASE_BF16, BF16, BF16, FP32},
    {SPW__DTYPE_F16, SPW__BASE_BF16, BF16, FP32, FP32},
    {SPW__DTYPE_F32, SPW__BASE_NF4, NF4, FP32, FP32},
    {SPW__DTYPE_BF16, SPW__BASE_NF4, NF4, BF16, FP32},
    {SPW__DTYPE_F32, SPW__BASE_AS_STORED, FP32, FP32, FP32},
    {SPW__DTYPE_BF16, SPW__BASE_AS_STORED, BF16, BF16, BF16},
};

static void every_base_holds_every_stored_type(void **state)
{
    (void)state;
    static const char *const types[] = {"llama", "qwen2", "qwen3"};
    tiny_list list;
    for (size_t i = 0; i < 2 * 3 * sizeof holdings / sizeof *holdings; i++) {
        const holding *h = &holdings[i / 6];
        tiny t = {.model_type = types[i % 3], .tied = i / 3 % 2, .dtype = h->stored};
        const char *directory = tiny_write(&t, &list);
        tiny_device d = tiny_open_device(1 << 20);
        spw__weights w;
        assert_int_equal(spw__weights_load(directory, d.pager, h->base, false, &w), 0);
        check_all(&w, &list, h->linear, h->tables, h->vectors);
        check_no_more_is_taken_than_planned(&d, directory, h->base, false);
        if (t.tied)
            assert_ptr_equal(w.head.data, w.embedding.data);
        spw__weights_free(&w);
        tiny_close_device(&d);
    }
}

static void shards_are_one_model(void **state)
{
    (void)state;
    tiny_list list;
    for (int shards = 1; shards <= 2; shards++) {
        tiny t = {.dtype = SPW__DTYPE_BF16, .shards = shards};
        const char *directory = tiny_write(&t, &list);
        tiny_device d = tiny_open_device(1 << 20);
        spw__weights w;
        assert_int_equal(spw__weights_load(directory, d.pager, SPW__BASE_FP32, false, &w), 0);
        check_all(&w, &list, FP32, FP32, FP32);
        check_no_more_is_taken_than_planned(&d, directory, SPW__BASE_FP32, false);
        spw__weights_free(&w);
        tiny_close_device(&d);
    }
}

static void rows_of_any_kind_are_expanded_where_they_lie(void **state)
{
    (void)state;
    tiny_list list;
    const char *directory = tiny_write(&plain, &list);
    for (int base = SPW__BASE_FP32; base <= SPW__BASE_NF4; base++) {
        float whole[TINY_INTER * TINY_HIDDEN], part[TINY_INTER * TINY_HIDDEN];
        tiny_device d = tiny_open_device(1 << 20);
        spw__weights w;
        assert_int_equal(spw__weights_load(directory, d.pager, (spw__base)base, false, &w), 0);
        const spw__matrix *m = &w.blocks[1].linear[SPW__UP].w;
        spw__matrix_expand(m, 0, TINY_INTER, whole);
        for (uint32_t row = 0; row < TINY_INTER; row++) {
            spw__matrix_expand(m, row, TINY_INTER - row, part);
            assert_memory_equal(part, whole + (size_t)row * TINY_HIDDEN,
                                (TINY_INTER - row) * TINY_HIDDEN * sizeof *part);
        }
        spw__weights_free(&w);
        tiny_close_device(&d);
    }
}

/* ----------------------------------------------------------------------------------- refusals --
 */

static void check_refused(const char *directory, int code, const char *words)
{
    static const spw__base bases[] = {SPW__BASE_FP32, SPW__BASE_NF4};
    for (int i = 0; i < 2; i++) {
        tiny_device d = tiny_open_device(1 << 20);
        spw__weights w;
        int rc = spw__weights_load(directory, d.pager, bases[i], false, &w);
        if (rc != code)
            print_error("%d: %s\n", rc, spw_last_error());
        assert_int_equal(rc, code);
        check_said(words);
        tiny_close_device(&d); /* in use: nothing */
    }
    uint64_t bytes;
    assert_int_equal(spw__weights_plan(directory, SPW__BASE_FP32, false, &bytes), code);
    check_said(words);
}

static void a_missing_or_misshapen_tensor_is_named(void **state)
{
    (void)state;
    tiny_list list;
    tiny t = {.dtype = SPW__DTYPE_F32, .left_out = "model.layers.1.mlp.up_proj.weight"};
    check_refused(tiny_write(&t, &list), SPW_EFORMAT,
                  "lacks tensor model.layers.1.mlp.up_proj.weight");
    t.left_out = "lm_head.weight";
    check_refused(tiny_write(&t, &list), SPW_EFORMAT, "lacks tensor lm_head.weight");
    t = (tiny){.dtype = SPW__DTYPE_F32, .turned = "model.layers.0.self_attn.k_proj.weight"};
    check_refused(tiny_write(&t, &list), SPW_EFORMAT,
                  "tensor model.layers.0.self_attn.k_proj.weight: shape [20, 12] of 2 dimensions, "
                  "config.json wants [12, 20]");
    t = (tiny){.dtype = SPW__DTYPE_F32, .model_type = "qwen2"};
    t.left_out = "model.layers.0.self_attn.v_proj.bias";
    check_refused(tiny_write(&t, &list), SPW_EFORMAT, "v_proj.bias");
}

static void a_type_that_cannot_be_read_is_named_before_anything_is_taken(void **state)
{
    (void)state;
    tiny_list list;
    tiny t = {.dtype = SPW__DTYPE_F16};
    char *raw;
    size_t bytes;
    (void)tiny_write(&t, &list);
    assert_int_equal(spw__file_read(in_folder("tiny/model.safetensors"), 1 << 20, &raw, &bytes), 0);
    for (char *at = raw; (at = memmem(at, bytes - (size_t)(at - raw), "\"F16\"", 5)); at++)
        memcpy(at, "\"I16\"", 5);
    assert_int_equal(spw__file_put(in_folder("tiny/model.safetensors"), raw, bytes), 0);
    free(raw);
    check_refused(in_folder("tiny"), SPW_ENOTSUP, "dtype I16: F32, BF16 and F16 are supported");
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    tiny_list list;
    char *raw;
    size_t bytes;
    (void)tiny_write(&plain, &list);
    assert_int_equal(spw__file_read(in_folder("tiny/model.safetensors"), 1 << 20, &raw, &bytes), 0);
    for (size_t n = 0; n < bytes; n += n < 64 ? 1 : 997) {
        assert_int_equal(spw__file_put(in_folder("tiny/model.safetensors"), raw, n), 0);
        check_refused(in_folder("tiny"), SPW_EFORMAT, "tiny/model.safetensors: ");
    }
    free(raw);
}

static void an_index_that_lies_is_refused(void **state)
{
    (void)state;
    tiny_list list;
    tiny t = {.dtype = SPW__DTYPE_F32, .shards = 2};
    const char *index = "tiny/model.safetensors.index.json";
    static const struct {
        const char *text;
        int code;
        const char *words;
    } lies[] = {
        {"{\"weight_map\": {\"a\": \"absent.safetensors\"}}", SPW_ENOENT, "absent.safetensors"},
        {"{\"weight_map\": {\"a\": \"../x\"}}", SPW_EFORMAT, "a: its file is not a plain name"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", SPW_EFORMAT, "its file is not a plain name"},
        {"{\"weight_map\": {\"a\": \"..\"}}", SPW_EFORMAT, "a: its file is not a plain name"},
        {"{\"weight_map\": {\"a\": \"\"}}", SPW_EFORMAT, "a: its file is not a plain name"},
        {"{\"weight_map\": {\"a\": 3}}", SPW_EFORMAT, "a: its file is not a plain name"},
        {"{\"weight_map\": {\"a\": \"part-0.safetensors\"}}", SPW_EFORMAT,
         "tensor a is not in part-0.safetensors"},
        {"{\"weight_map\": []}", SPW_EFORMAT, "lacks \"weight_map\""},
        {"{}", SPW_EFORMAT, "lacks \"weight_map\""},
        {"{\"weight_map\": {}}", SPW_EFORMAT, "lacks tensor model.embed_tokens.weight"},
        {"{\"weight", SPW_EFORMAT, "index.json: not JSON"},
    };
    const char *directory = tiny_write(&t, &list);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        folder_put(index, lies[i].text);
        check_refused(directory, lies[i].code, lies[i].words);
    }
    assert_int_equal(unlink(in_folder(index)), 0);
    check_refused(in_folder("tiny"), SPW_ENOENT, "has neither model.safetensors nor");
}

/* A tensor that the index puts into one shard but that lies in another. */
static void a_tensor_is_looked_for_in_the_shard_the_index_names(void **state)
{
    (void)state;
    tiny_list list;
    tiny t = {.dtype = SPW__DTYPE_F32, .shards = 2};
    char *text;
    size_t bytes;
    const char *directory = tiny_write(&t, &list);
    assert_int_equal(
        spw__file_read(in_folder("tiny/model.safetensors.index.json"), 1 << 20, &text, &bytes), 0);
    char *last = strstr(text, "model.norm.weight");
    assert_non_null(last);
    char *part = strstr(last, "part-") + strlen("part-");
    *part = *part == '0' ? '1' : '0';
    folder_put("tiny/model.safetensors.index.json", text);
    free(text);
    check_refused(directory, SPW_EFORMAT, "tensor model.norm.weight is not in part-");
}

static void a_base_that_cannot_be_trained_in_full_is_refused(void **state)
{
    (void)state;
    tiny_list list;
    const char *directory = tiny_write(&plain, &list);
    tiny_device d = tiny_open_device(1 << 20);
    spw__weights w;
    assert_int_equal(spw__weights_load(directory, d.pager, SPW__BASE_NF4, true, &w), SPW_EINVAL);
    assert_int_equal(spw__weights_load(directory, d.pager, SPW__BASE_BF16, true, &w), SPW_EINVAL);
    tiny_close_device(&d);
}

/* ------------------------------------------------------------------------------------- memory --
 */

/* Loads on ever larger devices until it fits; how often it did not. */
static int count_refusals(const char *directory, spw__base base, bool full, uint64_t step)
{
    int refused = 0;
    for (uint64_t mem = step;; mem += step, refused++) {
        spw__weights w;
        void *before;
        tiny_device d = tiny_open_device(mem);
        assert_int_equal(spw_malloc(d.pager, 64, &before), 0);
        uint64_t in_use = tiny_in_use(&d);
        int rc = spw__weights_load(directory, d.pager, base, full, &w);
        if (rc == 0)
            spw__weights_free(&w);
        else
            assert_int_equal(rc, SPW_ENOMEM);
        assert_int_equal(tiny_in_use(&d), in_use);
        spw_free(d.pager, before);
        tiny_close_device(&d);
        if (rc == 0)
            return refused;
    }
}

static void a_device_too_small_is_left_as_it_was(void **state)
{
    (void)state;
    tiny_list list;
    const char *directory = tiny_write(&plain, &list);
    assert_true(count_refusals(directory, SPW__BASE_FP32, false, 4096) > 4);
    assert_true(count_refusals(directory, SPW__BASE_FP32, true, 4096) > 9);
    assert_true(count_refusals(directory, SPW__BASE_NF4, false, 1024) > 4);
}

/* ------------------------------------------------------------------------------------ trained --
 */

static void a_full_model_has_zeroed_gradients_in_the_order_of_the_file(void **state)
{
    (void)state;
    static const tiny kinds[] = {{.dtype = SPW__DTYPE_F32},
                                 {.dtype = SPW__DTYPE_BF16, .tied = true, .model_type = "qwen2"},
                                 {.dtype = SPW__DTYPE_BF16, .model_type = "qwen3"}};
    for (size_t k = 0; k < 3; k++) {
        tiny_list list;
        spw__weights w;
        spw__trained *trained;
        size_t n;
        const char *directory = tiny_write(&kinds[k], &list);
        tiny_device d = tiny_open_device(1 << 20);
        assert_int_equal(spw__weights_load(directory, d.pager, SPW__BASE_AS_STORED, true, &w), 0);
        check_no_more_is_taken_than_planned(&d, directory, SPW__BASE_AS_STORED, true);
        assert_int_equal(spw__weights_trained(&w, &trained, &n), 0);
        assert_int_equal(n, list.n);
        for (size_t i = 0; i < n; i++) {
            assert_string_equal(trained[i].name, list.specs[i].name);
            assert_int_equal(trained[i].n, tiny_count(&list.specs[i]));
            assert_int_equal(trained[i].type,
                             kinds[k].dtype == SPW__DTYPE_BF16 ? SPW_BF16 : SPW_FP32);
            assert_ptr_equal(trained[i].data, matrix_of(&w, trained[i].name)->data);
            for (uint64_t e = 0; e < trained[i].n; e++)
                assert_true(trained[i].grad[e] == 0);
        }
        if (kinds[k].tied)
            assert_ptr_equal(w.head.grad, w.embedding.grad);
        free(trained);
        spw__weights_free(&w);
        tiny_close_device(&d);
    }
}

static void a_frozen_model_without_an_adapter_trains_nothing(void **state)
{
    (void)state;
    tiny_list list;
    spw__weights w;
    spw__trained *trained;
    size_t n;
    tiny_device d = tiny_open_device(1 << 20);
    assert_int_equal(
        spw__weights_load(tiny_write(&plain, &list), d.pager, SPW__BASE_FP32, false, &w), 0);
    assert_int_equal(spw__weights_trained(&w, &trained, &n), 0);
    assert_int_equal(n, 0);
    assert_null(w.embedding.grad);
    free(trained);
    spw__weights_free(&w);
    tiny_close_device(&d);
}

static void pairs_are_listed_a_then_b_block_by_block(void **state)
{
    (void)state;
    static const char *const names[] = {"self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"};
    static const uint32_t in[] = {TINY_HIDDEN, TINY_HIDDEN, TINY_INTER};
    static const uint32_t out[] = {TINY_Q, TINY_KV, TINY_HIDDEN};
    tiny_list list;
    spw__weights w;
    spw__trained *trained;
    size_t n;
    spw__adapter_config config = {.rank = 3, .alpha = 6, .seed = 1};
    config.targets = 1u << SPW__Q | 1u << SPW__V | 1u << SPW__DOWN;
    tiny_device d = tiny_open_device(1 << 20);
    assert_int_equal(
        spw__weights_load(tiny_write(&plain, &list), d.pager, SPW__BASE_NF4, false, &w), 0);
    assert_int_equal(spw__adapter_create(&w, &config), 0);
    assert_int_equal(spw__weights_trained(&w, &trained, &n), 0);
    assert_int_equal(n, 2 * 3 * TINY_LAYERS);
    for (size_t i = 0; i < n; i++) {
        char name[160];
        bool b = i % 2;
        size_t which = i / 2 % 3;
        (void)snprintf(name, sizeof name, "base_model.model.model.layers.%zu.%s.lora_%c.weight",
                       i / 6, names[which], b ? 'B' : 'A');
        assert_string_equal(trained[i].name, name);
        assert_int_equal(trained[i].rows, b ? out[which] : 3);
        assert_int_equal(trained[i].cols, b ? 3 : in[which]);
        assert_int_equal(trained[i].n, trained[i].rows * trained[i].cols);
        assert_int_equal(trained[i].type, SPW_FP32);
    }
    free(trained);
    spw__weights_free(&w);
    tiny_close_device(&d);
}

/* ------------------------------------------------------------------------------------- saving --
 */

static void check_same_bits(const spw__weights *a, const spw__weights *b)
{
    spw__trained *left, *right;
    size_t n, m;
    assert_int_equal(spw__weights_trained(a, &left, &n), 0);
    assert_int_equal(spw__weights_trained(b, &right, &m), 0);
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(left[i].name, right[i].name);
        assert_int_equal(left[i].type, right[i].type);
        assert_memory_equal(left[i].data, right[i].data,
                            left[i].n * (left[i].type == SPW_BF16 ? 2 : 4));
    }
    free(left);
    free(right);
}

/* So that what is saved is not what was loaded. */
static void change(const spw__weights *w)
{
    spw__trained *list;
    size_t n;
    assert_int_equal(spw__weights_trained(w, &list, &n), 0);
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)list[i].data)[i % 4] ^= 1;
    free(list);
}

static void what_is_saved_is_loaded_bit_for_bit(void **state)
{
    (void)state;
    static const tiny kinds[] = {{.dtype = SPW__DTYPE_F32, .shards = 2},
                                 {.dtype = SPW__DTYPE_BF16, .tied = true, .model_type = "qwen2"},
                                 {.dtype = SPW__DTYPE_F16, .model_type = "qwen3"}};
    for (size_t k = 0; k < 3; k++) {
        tiny_list list;
        spw__weights w, again;
        char *copied;
        size_t bytes;
        const char *directory = tiny_write(&kinds[k], &list), *out = folder_fresh("out");
        folder_put("tiny/tokenizer.json", "{\"this\": \"is copied\"}");
        tiny_device d = tiny_open_device(1 << 20);
        assert_int_equal(spw__weights_load(directory, d.pager, SPW__BASE_AS_STORED, true, &w), 0);
        change(&w);
        assert_int_equal(spw__weights_save(&w, directory, out), 0);
        assert_int_equal(spw__weights_load(out, d.pager, SPW__BASE_AS_STORED, true, &again), 0);
        check_same_bits(&w, &again);
        assert_int_equal(again.config.stored_bf16, kinds[k].dtype == SPW__DTYPE_BF16);
        assert_int_equal(again.config.tied, kinds[k].tied);
        assert_int_equal(spw__file_read(in_folder("out/tokenizer.json"), 100, &copied, &bytes), 0);
        assert_string_equal(copied, "{\"this\": \"is copied\"}");
        free(copied);
        spw__weights_free(&w);
        spw__weights_free(&again);
        tiny_close_device(&d);
    }
}

static void a_save_that_fails_leaves_nothing(void **state)
{
    (void)state;
    tiny_list list;
    spw__weights w;
    const char *directory = tiny_write(&plain, &list), *out = folder_fresh("out");
    folder_put("tiny/tokenizer.json", "{}");
    tiny_device d = tiny_open_device(1 << 20);
    assert_int_equal(spw__weights_load(directory, d.pager, SPW__BASE_AS_STORED, true, &w), 0);
    assert_int_equal(mkdir(in_folder("out/model.safetensors"), 0700), 0); /* in its way */
    assert_true(spw__weights_save(&w, directory, out) < 0);
    check_said("out/model.safetensors");
    assert_int_equal(rmdir(in_folder("out/model.safetensors")), 0);
    assert_int_equal(rmdir(in_folder("out")), 0);                        /* empty */
    assert_true(spw__weights_save(&w, directory, in_folder("out")) < 0); /* not there */
    check_said("out/");
    spw__weights_free(&w);
    tiny_close_device(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_base_holds_every_stored_type),
        cmocka_unit_test(shards_are_one_model),
        cmocka_unit_test(rows_of_any_kind_are_expanded_where_they_lie),
        cmocka_unit_test(a_missing_or_misshapen_tensor_is_named),
        cmocka_unit_test(a_type_that_cannot_be_read_is_named_before_anything_is_taken),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(a_tensor_is_looked_for_in_the_shard_the_index_names),
        cmocka_unit_test(a_base_that_cannot_be_trained_in_full_is_refused),
        cmocka_unit_test(a_device_too_small_is_left_as_it_was),
        cmocka_unit_test(a_full_model_has_zeroed_gradients_in_the_order_of_the_file),
        cmocka_unit_test(a_frozen_model_without_an_adapter_trains_nothing),
        cmocka_unit_test(pairs_are_listed_a_then_b_block_by_block),
        cmocka_unit_test(what_is_saved_is_loaded_bit_for_bit),
        cmocka_unit_test(a_save_that_fails_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
