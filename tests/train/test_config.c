#include "folder.h"

#include "format/json.h"
#include "train/config.h"

#include <math.h>

static const char *const llama =
    "{\"model_type\": \"llama\", \"vocab_size\": 1000, \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 8,"
    " \"num_key_value_heads\": 2, \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5,"
    " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"attention_bias\": false,"
    " \"mlp_bias\": false, \"rope_theta\": 500000.0, \"rope_scaling\": null,"
    " \"bos_token_id\": 128000, \"eos_token_id\": [128001, 128008], \"torch_dtype\": \"bfloat16\"}";

#define LLAMA3                                                                                     \
    "\"factor\": 8, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"                          \
    " \"original_max_position_embeddings\": 64"

/* Reads that config.json with the fields of `patch` put over it. A null takes a field away. */
static int load_patched(const char *patch, spw__model_config *config)
{
    json_t *root = json_loads(llama, 0, NULL), *fields = json_loads(patch, 0, NULL);
    if (!fields)
        print_error("no JSON: %s\n", patch);
    assert_non_null(root);
    assert_non_null(fields);
    assert_int_equal(json_object_update(root, fields), 0);
    char *text = json_dumps(root, 0);
    folder_put("config.json", text);
    free(text);
    json_decref(root);
    json_decref(fields);
    return spw__model_config_load(in_folder(""), config);
}

static spw__model_config good(const char *patch)
{
    spw__model_config config;
    int rc = load_patched(patch, &config);
    if (rc < 0)
        print_error("%s\n", spw_last_error());
    assert_int_equal(rc, 0);
    return config;
}

/* ------------------------------------------------------------------------------------- good -- */

static void a_llama_of_transformers_4_is_read(void **state)
{
    (void)state;
    spw__model_config c = good("{}");
    assert_int_equal(c.vocab, 1000);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.intermediate, 96);
    assert_int_equal(c.layers, 3);
    assert_int_equal(c.heads, 8);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.max_positions, 8192);
    assert_true(c.rms_eps == 1e-5f);
    assert_false(c.tied || c.qkv_bias || c.o_bias || c.qk_norm);
    assert_int_equal(c.rope, SPW__ROPE_DEFAULT);
    assert_true(c.rope_theta == 500000.0);
    assert_int_equal(c.bos, 128000);
    assert_int_equal(c.eos, 128001);
    assert_true(c.stored_bf16);
    assert_string_equal(c.model_type, "llama");
}

static void absent_fields_have_the_familys_defaults(void **state)
{
    (void)state;
    spw__model_config c =
        good("{\"num_key_value_heads\": null, \"rms_norm_eps\": null, \"hidden_act\": null,"
             "\"max_position_embeddings\": null, \"rope_theta\": null, \"bos_token_id\": null,"
             "\"eos_token_id\": null, \"torch_dtype\": null, \"tie_word_embeddings\": null}");
    assert_int_equal(c.kv_heads, 8);
    assert_int_equal(c.max_positions, 2048);
    assert_true(c.rms_eps == 1e-6f);
    assert_true(c.rope_theta == 10000.0);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.eos, -1);
    assert_false(c.stored_bf16);
    assert_false(c.tied);
}

static void check_llama3(const spw__model_config *c)
{
    assert_int_equal(c->rope, SPW__ROPE_LLAMA3);
    assert_true(c->rope_theta == 500000.0);
    assert_true(c->rope_factor == 8 && c->rope_low == 1 && c->rope_high == 4);
    assert_true(c->rope_original == 64);
}

static void rope_is_read_in_the_way_of_4_and_of_5(void **state)
{
    (void)state;
    spw__model_config c = good("{\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}}");
    check_llama3(&c);
    c = good("{\"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}");
    check_llama3(&c);
    c = good("{\"rope_theta\": null, \"rope_parameters\": {\"rope_type\": \"llama3\","
             "\"rope_theta\": 500000.0, " LLAMA3 "}}");
    check_llama3(&c);
    c = good("{\"rope_theta\": null, \"rope_parameters\": {\"rope_type\": \"default\","
             "\"rope_theta\": 1234}, \"dtype\": \"float32\", \"torch_dtype\": null}");
    assert_int_equal(c.rope, SPW__ROPE_DEFAULT);
    assert_true(c.rope_theta == 1234);
    assert_false(c.stored_bf16);
    c = good("{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2.5}}");
    assert_int_equal(c.rope, SPW__ROPE_LINEAR);
    assert_true(c.rope_factor == 2.5);
}

static void the_other_families_differ_as_they_do(void **state)
{
    (void)state;
    spw__model_config c = good("{\"model_type\": \"qwen2\", \"use_sliding_window\": false,"
                               "\"sliding_window\": 4096, \"tie_word_embeddings\": true,"
                               "\"attention_bias\": null, \"eos_token_id\": 7}");
    assert_true(c.qkv_bias && !c.o_bias && !c.qk_norm && c.tied);
    assert_int_equal(c.eos, 7);
    c = good("{\"model_type\": \"qwen3\", \"head_dim\": 128, \"use_sliding_window\": false}");
    assert_true(c.qk_norm && !c.qkv_bias && !c.o_bias);
    assert_int_equal(c.head_dim, 128);
    c = good("{\"model_type\": \"mistral\", \"sliding_window\": null, \"head_dim\": null}");
    assert_string_equal(c.model_type, "mistral");
    c = good("{\"model_type\": \"mistral\", \"sliding_window\": 8192}"); /* as wide as positions */
    assert_false(c.qkv_bias);
    c = good("{\"attention_bias\": true}");
    assert_true(c.qkv_bias && c.o_bias);
}

/* -------------------------------------------------------------------------------------- bad -- */

typedef struct bad {
    const char *patch;
    int code;
    const char *words;
} bad;

static const bad bads[] = {
    {"{\"model_type\": \"gpt2\"}", SPW_ENOTSUP, "model_type \"gpt2\" is not of the Llama family"},
    {"{\"model_type\": \"gemma3_text\"}", SPW_ENOTSUP, "\"gemma3_text\""},
    {"{\"model_type\": null}", SPW_EFORMAT, "lacks \"model_type\""},
    {"{\"model_type\": 3}", SPW_EFORMAT, "\"model_type\" is not a string"},
    {"{\"vocab_size\": null}", SPW_EFORMAT, "lacks \"vocab_size\""},
    {"{\"hidden_size\": null}", SPW_EFORMAT, "lacks \"hidden_size\""},
    {"{\"intermediate_size\": null}", SPW_EFORMAT, "lacks \"intermediate_size\""},
    {"{\"num_hidden_layers\": null}", SPW_EFORMAT, "lacks \"num_hidden_layers\""},
    {"{\"num_attention_heads\": null}", SPW_EFORMAT, "lacks \"num_attention_heads\""},
    {"{\"hidden_size\": \"64\"}", SPW_EFORMAT, "\"hidden_size\" is not an integer"},
    {"{\"hidden_size\": 64.5}", SPW_EFORMAT, "\"hidden_size\" is not an integer"},
    {"{\"vocab_size\": true}", SPW_EFORMAT, "\"vocab_size\" is not an integer"},
    {"{\"vocab_size\": 0}", SPW_EFORMAT, "\"vocab_size\" is 0, not 1 to"},
    {"{\"vocab_size\": -1}", SPW_EFORMAT, "\"vocab_size\" is -1"},
    {"{\"vocab_size\": 4294967297}", SPW_EFORMAT, "\"vocab_size\" is 4294967297"},
    {"{\"num_attention_heads\": 0}", SPW_EFORMAT, "\"num_attention_heads\" is 0"},
    {"{\"num_key_value_heads\": 0}", SPW_EFORMAT, "\"num_key_value_heads\" is 0"},
    {"{\"num_key_value_heads\": 3}", SPW_EFORMAT, "\"num_key_value_heads\" 3 does not divide"},
    {"{\"num_key_value_heads\": 16}", SPW_EFORMAT, "\"num_key_value_heads\" 16 does not divide"},
    {"{\"num_attention_heads\": 4000}", SPW_EFORMAT, "\"head_dim\" is 0"},
    {"{\"head_dim\": 7}", SPW_EFORMAT, "\"head_dim\" 7 is odd"},
    {"{\"num_hidden_layers\": 100000}", SPW_EFORMAT, "\"num_hidden_layers\" is 100000"},
    {"{\"model_type\": \"mistral\", \"sliding_window\": 4096}", SPW_ENOTSUP, "\"sliding_window\""},
    {"{\"model_type\": \"qwen2\", \"sliding_window\": 4096, \"use_sliding_window\": true}",
     SPW_ENOTSUP, "\"sliding_window\" 4096"},
    {"{\"hidden_act\": \"gelu\"}", SPW_ENOTSUP, "\"hidden_act\" gelu: only silu"},
    {"{\"hidden_act\": 1}", SPW_EFORMAT, "\"hidden_act\" is not a string"},
    {"{\"mlp_bias\": true}", SPW_ENOTSUP, "\"mlp_bias\""},
    {"{\"quantization_config\": {\"quant_method\": \"bitsandbytes\"}}", SPW_ENOTSUP,
     "\"quantization_config\""},
    {"{\"rms_norm_eps\": \"x\"}", SPW_EFORMAT, "\"rms_norm_eps\" is not a number"},
    {"{\"rms_norm_eps\": -1}", SPW_EFORMAT, "\"rms_norm_eps\""},
    {"{\"tie_word_embeddings\": 1}", SPW_EFORMAT, "\"tie_word_embeddings\" is not true or false"},
    {"{\"attention_bias\": \"no\"}", SPW_EFORMAT, "\"attention_bias\" is not true or false"},
    {"{\"rope_theta\": \"x\"}", SPW_EFORMAT, "\"rope_theta\" is not a number"},
    {"{\"rope_theta\": 0}", SPW_EFORMAT, "\"rope_theta\""},
    {"{\"partial_rotary_factor\": 0.5}", SPW_ENOTSUP, "\"partial_rotary_factor\" 0.5"},
    {"{\"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}}", SPW_ENOTSUP,
     "\"partial_rotary_factor\" 0.5"},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}", SPW_ENOTSUP, "rope type yarn"},
    {"{\"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 4}}", SPW_ENOTSUP,
     "rope type dynamic"},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\"}}", SPW_EFORMAT, "lacks \"factor\""},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}", SPW_EFORMAT,
     "make no sense"},
    {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", SPW_EFORMAT,
     "lacks \"low_freq_factor\""},
};

static void what_is_wrong_or_not_done_is_named(void **state)
{
    (void)state;
    spw__model_config config;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        int rc = load_patched(bads[i].patch, &config);
        if (rc != bads[i].code)
            print_error("%d for %s\n", rc, bads[i].patch);
        assert_int_equal(rc, bads[i].code);
        check_said(in_folder("config.json"));
        check_said(bads[i].words);
    }
}

static void a_file_that_is_no_object_is_named(void **state)
{
    (void)state;
    spw__model_config config;
    folder_put("config.json", "[]");
    assert_int_equal(spw__model_config_load(in_folder(""), &config), SPW_EFORMAT);
    check_said("config.json: its root is not an object");
    (void)unlink(in_folder("config.json"));
    assert_int_equal(spw__model_config_load(in_folder(""), &config), SPW_ENOENT);
    check_said("config.json");
}

static void a_config_cut_anywhere_is_refused(void **state)
{
    (void)state;
    spw__model_config config;
    for (size_t n = 0; n < strlen(llama); n++) {
        assert_int_equal(spw__file_put(in_folder("config.json"), llama, n), 0);
        assert_int_equal(spw__model_config_load(in_folder(""), &config), SPW_EFORMAT);
        check_said("config.json: not JSON");
    }
}

/* -------------------------------------------------------------------------------------- rope -- */

/* The llama3 rule in double, from its description. */
static double llama3_of(double inverse, double factor, double original)
{
    double wave = 2 * acos(-1.0) / inverse, low = 1, high = 4;
    if (wave < original / high)
        return inverse;
    if (wave > original / low)
        return inverse / factor;
    double smooth = (original / wave - low) / (high - low);
    return (1 - smooth) * inverse / factor + smooth * inverse;
}

static void frequencies_follow_the_rule(void **state)
{
    (void)state;
    float plain[32], linear[32], llama3[32];
    spw__model_config c = good("{\"head_dim\": 64}");
    spw__rope_frequencies(&c, plain);
    c = good("{\"head_dim\": 64, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}");
    spw__rope_frequencies(&c, linear);
    c = good("{\"head_dim\": 64, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}}");
    spw__rope_frequencies(&c, llama3);
    int blended = 0;
    for (int i = 0; i < 32; i++) {
        double inverse = pow(500000.0, -2.0 * i / 64), scaled = llama3_of(inverse, 8, 64);
        assert_true(fabs(plain[i] / inverse - 1) < 2e-6);
        assert_true(fabs(linear[i] * 4 / inverse - 1) < 2e-6);
        assert_true(fabs(llama3[i] / scaled - 1) < 2e-6);
        blended += scaled < inverse && scaled > inverse / 8;
    }
    assert_true(blended > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_of_transformers_4_is_read),
        cmocka_unit_test(absent_fields_have_the_familys_defaults),
        cmocka_unit_test(rope_is_read_in_the_way_of_4_and_of_5),
        cmocka_unit_test(the_other_families_differ_as_they_do),
        cmocka_unit_test(what_is_wrong_or_not_done_is_named),
        cmocka_unit_test(a_file_that_is_no_object_is_named),
        cmocka_unit_test(a_config_cut_anywhere_is_refused),
        cmocka_unit_test(frequencies_follow_the_rule),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
