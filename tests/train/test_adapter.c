#include "tiny.h"

#include "train/adapter.h"

#include <math.h>

static const tiny plain = {.dtype = SPW__DTYPE_BF16};

static void targets_are_parsed_by_name(void **state)
{
    (void)state;
    uint32_t targets = 0;
    assert_int_equal(spw__adapter_parse_targets("all", &targets), 0);
    assert_int_equal(targets, (1u << SPW__N_LINEAR) - 1);
    assert_int_equal(spw__adapter_parse_targets("q_proj,v_proj", &targets), 0);
    assert_int_equal(targets, 1u << SPW__Q | 1u << SPW__V);
    assert_int_equal(spw__adapter_parse_targets("mlp.down_proj", &targets), 0);
    assert_int_equal(targets, 1u << SPW__DOWN);
    static const char *const bad[] = {"",        "q_proj,",       ",q_proj", "q_proj,,v_proj", "q",
                                      "lm_head", "q_proj v_proj", "ALL",     "all,q_proj"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        targets = 99;
        assert_int_equal(spw__adapter_parse_targets(bad[i], &targets), SPW_EINVAL);
        assert_int_equal(targets, 99);
        check_said("is no linear layer: q_proj");
    }
}

typedef struct loaded {
    tiny_device device;
    spw__weights weights;
} loaded;

static loaded load_model(void)
{
    tiny_list list;
    loaded l = {.device = tiny_open_device(1 << 20)};
    const char *directory = tiny_write(&plain, &list);
    assert_int_equal(spw__weights_load(directory, l.device.pager, SPW__BASE_NF4, false, &l.weights),
                     0);
    return l;
}

static void drop_model(loaded *l)
{
    spw__weights_free(&l->weights);
    tiny_close_device(&l->device);
}

static spw__adapter_config all_of_rank(uint32_t rank)
{
    return (spw__adapter_config){
        .rank = rank, .alpha = 16, .targets = (1u << SPW__N_LINEAR) - 1, .seed = 5};
}

static void a_new_pair_adds_nothing_yet_and_has_no_gradient(void **state)
{
    (void)state;
    loaded l = load_model();
    spw__adapter_config config = all_of_rank(3);
    config.rslora = true;
    config.dropout = 0.25;
    assert_int_equal(spw__adapter_create(&l.weights, &config), 0);
    for (int which = 0; which < SPW__N_LINEAR; which++) {
        const spw__linear *linear = &l.weights.blocks[1].linear[which];
        float bound = 1 / sqrtf((float)linear->w.cols), most = 0;
        for (uint32_t i = 0; i < 3 * linear->w.cols; i++) {
            most = fmaxf(most, fabsf(linear->lora.a[i]));
            assert_true(linear->lora.grad_a[i] == 0);
        }
        assert_true(most <= bound && most > 0.8f * bound);
        for (uint32_t i = 0; i < 3 * linear->w.rows; i++)
            assert_true(linear->lora.b[i] == 0 && linear->lora.grad_b[i] == 0);
        assert_true(linear->lora.scale == (float)(16 / sqrt(3)));
        assert_true(linear->lora.dropout == 0.25f);
        assert_memory_not_equal(linear->lora.a, l.weights.blocks[0].linear[which].lora.a, 60);
    }
    drop_model(&l);
}

static void what_is_saved_is_loaded_bit_for_bit(void **state)
{
    (void)state;
    loaded l = load_model();
    spw__adapter_config config = all_of_rank(2), read;
    const char *out = folder_fresh("out");
    spw__trained *saved, *list;
    size_t n, m;
    assert_int_equal(spw__adapter_create(&l.weights, &config), 0);
    assert_int_equal(spw__weights_trained(&l.weights, &saved, &n), 0);
    for (size_t i = 0; i < n; i++)
        for (uint64_t e = 0; e < saved[i].n; e++)
            ((float *)saved[i].data)[e] = tiny_value(i, e) / 3;
    assert_int_equal(spw__adapter_save(&l.weights, &config, "some/model", out), 0);
    loaded again = load_model();
    assert_int_equal(spw__adapter_load(&again.weights, out, &read), 0);
    assert_int_equal(read.rank, 2);
    assert_true(read.alpha == 16 && read.dropout == 0 && !read.rslora);
    assert_int_equal(read.targets, config.targets);
    assert_int_equal(spw__weights_trained(&again.weights, &list, &m), 0);
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(list[i].data, saved[i].data, list[i].n * sizeof(float));
    free(list);
    free(saved);
    drop_model(&again);
    drop_model(&l);
}

static void a_save_that_fails_leaves_nothing(void **state)
{
    (void)state;
    loaded l = load_model();
    spw__adapter_config config = all_of_rank(2);
    const char *out = folder_fresh("out");
    assert_int_equal(spw__adapter_create(&l.weights, &config), 0);
    assert_int_equal(mkdir(in_folder("out/adapter_model.safetensors"), 0700), 0);
    assert_true(spw__adapter_save(&l.weights, &config, "m", out) < 0);
    check_said("out/adapter_model.safetensors");
    assert_int_equal(rmdir(in_folder("out/adapter_model.safetensors")), 0);
    assert_true(spw__adapter_save(&l.weights, &config, "\xFF", out) < 0);
    check_said("not UTF-8");
    assert_int_equal(rmdir(in_folder("out")), 0); /* empty */
    drop_model(&l);
}

typedef struct bad {
    const char *text;
    int code;
    const char *words;
} bad;

static const bad bads[] = {
    {"{}", SPW_EFORMAT, "lacks \"target_modules\""},
    {"[]", SPW_EFORMAT, "its root is not an object"},
    {"{\"r\"", SPW_EFORMAT, "not JSON"},
    {"{\"target_modules\": [\"q_proj\"], \"r\": 0}", SPW_EFORMAT, "r 0 "},
    {"{\"target_modules\": [\"q_proj\"], \"r\": 70000}", SPW_EFORMAT, "r 70000 "},
    {"{\"target_modules\": [\"q_proj\"], \"r\": \"4\"}", SPW_EFORMAT, "\"r\" is not an integer"},
    {"{\"target_modules\": [\"q_proj\"], \"lora_alpha\": []}", SPW_EFORMAT, "\"lora_alpha\""},
    {"{\"target_modules\": [\"q_proj\"], \"lora_dropout\": 1}", SPW_EFORMAT, "lora_dropout 1"},
    {"{\"target_modules\": [\"q_proj\"], \"use_rslora\": 1}", SPW_EFORMAT, "\"use_rslora\""},
    {"{\"target_modules\": [\"embed_tokens\"]}", SPW_ENOTSUP, "\"embed_tokens\""},
    {"{\"target_modules\": [3]}", SPW_ENOTSUP, "(not a string)"},
    {"{\"target_modules\": \".*_proj\"}", SPW_ENOTSUP, "\".*_proj\""},
    {"{\"target_modules\": [\"q_proj\"], \"use_dora\": true}", SPW_ENOTSUP, "\"use_dora\""},
    {"{\"target_modules\": [\"q_proj\"], \"bias\": \"all\"}", SPW_ENOTSUP, "bias all"},
    {"{\"target_modules\": [\"q_proj\"], \"peft_type\": \"LOHA\"}", SPW_ENOTSUP, "peft_type LOHA"},
    {"{\"target_modules\": [\"q_proj\"], \"alpha_pattern\": {\"q\": 1}}", SPW_ENOTSUP,
     "\"alpha_pattern\""},
    {"{\"target_modules\": [\"q_proj\"], \"init_lora_weights\": \"pissa_niter_4\"}", SPW_ENOTSUP,
     "pissa_niter_4 changes the base"},
    {"{\"target_modules\": [\"q_proj\"]}", SPW_EFORMAT, "its shape is not [8, 20]"},
    {"{\"target_modules\": [\"q_proj\"], \"r\": 2}", SPW_ENOTSUP, "has 28 tensors"},
};

static void what_is_wrong_or_not_done_is_named(void **state)
{
    (void)state;
    loaded l = load_model();
    spw__adapter_config config = all_of_rank(2);
    assert_int_equal(spw__adapter_create(&l.weights, &config), 0);
    assert_int_equal(spw__adapter_save(&l.weights, &config, "m", folder_fresh("out")), 0);
    drop_model(&l);
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        l = load_model();
        folder_put("out/adapter_config.json", bads[i].text);
        int rc = spw__adapter_load(&l.weights, in_folder("out"), &config);
        if (rc != bads[i].code)
            print_error("%d for %s\n", rc, bads[i].text);
        assert_int_equal(rc, bads[i].code);
        check_said("out/adapter_");
        check_said(bads[i].words);
        drop_model(&l);
    }
}

static void an_adapter_cut_anywhere_is_refused(void **state)
{
    (void)state;
    loaded l = load_model();
    spw__adapter_config config = all_of_rank(1);
    char *raw;
    size_t bytes;
    const char *path;
    assert_int_equal(spw__adapter_create(&l.weights, &config), 0);
    assert_int_equal(spw__adapter_save(&l.weights, &config, "m", folder_fresh("out")), 0);
    path = in_folder("out/adapter_model.safetensors");
    assert_int_equal(spw__file_read(path, 1 << 20, &raw, &bytes), 0);
    drop_model(&l);
    for (size_t n = 0; n < bytes; n += n < 32 ? 1 : 499) {
        l = load_model();
        path = in_folder("out/adapter_model.safetensors");
        assert_int_equal(spw__file_put(path, raw, n), 0);
        assert_int_equal(spw__adapter_load(&l.weights, in_folder("out"), &config), SPW_EFORMAT);
        check_said("adapter_model.safetensors: ");
        drop_model(&l);
    }
    free(raw);
}

static void a_device_too_small_says_so_and_leaves_nothing(void **state)
{
    (void)state;
    loaded l = load_model();
    uint64_t before = tiny_in_use(&l.device);
    spw__adapter_config config = all_of_rank(60000);
    assert_int_equal(spw__adapter_create(&l.weights, &config), SPW_ENOMEM);
    assert_true(tiny_in_use(&l.device) >= before);
    drop_model(&l); /* the pairs that were made go with the weights */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets_are_parsed_by_name),
        cmocka_unit_test(a_new_pair_adds_nothing_yet_and_has_no_gradient),
        cmocka_unit_test(what_is_saved_is_loaded_bit_for_bit),
        cmocka_unit_test(a_save_that_fails_leaves_nothing),
        cmocka_unit_test(what_is_wrong_or_not_done_is_named),
        cmocka_unit_test(an_adapter_cut_anywhere_is_refused),
        cmocka_unit_test(a_device_too_small_says_so_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
