#include "train/config.h"

#include "base/error.h"
#include "base/file.h"
#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t max_config_bytes = 16 << 20;

/* What a field of a config.json may be. */
typedef struct reader {
    const json_t *root;
    const char *path;
    spw__model_config *config;
} reader;

static int get_count(const reader *r, const char *key, int64_t highest, bool required,
                     uint32_t *value)
{
    int64_t number = *value;
    int rc = spw__json_get_integer(r->root, key, r->path, required, &number);
    if (rc < 0)
        return rc;
    if (number < 1 || number > highest)
        return spw__error(SPW_EFORMAT, "%s: \"%s\" is %" PRId64 ", not 1 to %" PRId64, r->path, key,
                          number, highest);
    *value = (uint32_t)number;
    return 0;
}

/* ---------------------------------------------------------------------------------- family -- */

typedef struct family {
    const char *model_type;
    bool qkv_bias, qk_norm;
} family;

static const family families[] = {
    {"llama", false, false},
    {"mistral", false, false},
    {"qwen2", true, false},
    {"qwen3", false, true},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

static int read_family(const reader *r)
{
    const char *type = NULL;
    int rc = spw__json_get_string(r->root, "model_type", r->path, true, &type);
    if (rc < 0)
        return rc;
    for (int i = 0; i < N_FAMILIES; i++) {
        if (strcmp(type, families[i].model_type) != 0)
            continue;
        strncpy(r->config->model_type, type, sizeof r->config->model_type - 1);
        r->config->qkv_bias = families[i].qkv_bias;
        r->config->qk_norm = families[i].qk_norm;
        return 0;
    }
    return spw__error(SPW_ENOTSUP,
                      "%s: model_type \"%s\" is not of the Llama family: llama, mistral, qwen2 and "
                      "qwen3 are",
                      r->path, type);
}

static bool is_true(const reader *r, const char *key)
{
    return json_is_true(json_object_get(r->root, key));
}

/* Windows narrower than the positions would change attention. */
static int check_window(const reader *r)
{
    const json_t *window = json_object_get(r->root, "sliding_window");
    bool always_on = strcmp(r->config->model_type, "mistral") == 0;
    bool on = always_on || is_true(r, "use_sliding_window");
    if (on && json_is_integer(window) &&
        json_integer_value(window) < (json_int_t)r->config->max_positions)
        return spw__error(SPW_ENOTSUP,
                          "%s: \"sliding_window\" %lld is narrower than the positions: not "
                          "supported",
                          r->path, (long long)json_integer_value(window));
    return 0;
}

/* Fields that would change the arithmetic. */
static int check_unsupported(const reader *r)
{
    const char *activation = "silu";
    int rc = spw__json_get_string(r->root, "hidden_act", r->path, false, &activation);
    if (rc < 0)
        return rc;
    if (strcmp(activation, "silu") != 0)
        return spw__error(SPW_ENOTSUP, "%s: \"hidden_act\" %s: only silu is supported", r->path,
                          activation);
    if (is_true(r, "mlp_bias"))
        return spw__error(SPW_ENOTSUP, "%s: \"mlp_bias\" is not supported", r->path);
    const json_t *quantised = json_object_get(r->root, "quantization_config");
    if (quantised && !json_is_null(quantised))
        return spw__error(SPW_ENOTSUP,
                          "%s: \"quantization_config\": give the directory of the model before it "
                          "was quantised; --base nf4 quantises it here",
                          r->path);
    return check_window(r);
}

/* ---------------------------------------------------------------------------------- numbers -- */

static int read_counts(const reader *r)
{
    spw__model_config *c = r->config;
    int rc = get_count(r, "vocab_size", 1 << 24, true, &c->vocab);
    if (rc == 0)
        rc = get_count(r, "hidden_size", 1 << 20, true, &c->hidden);
    if (rc == 0)
        rc = get_count(r, "intermediate_size", 1 << 22, true, &c->intermediate);
    if (rc == 0)
        rc = get_count(r, "num_hidden_layers", 4096, true, &c->layers);
    if (rc == 0)
        rc = get_count(r, "num_attention_heads", 4096, true, &c->heads);
    c->kv_heads = c->heads;
    if (rc == 0)
        rc = get_count(r, "num_key_value_heads", 4096, false, &c->kv_heads);
    c->head_dim = c->heads ? c->hidden / c->heads : 0;
    if (rc == 0)
        rc = get_count(r, "head_dim", 4096, false, &c->head_dim);
    c->max_positions = 2048;
    if (rc == 0)
        rc = get_count(r, "max_position_embeddings", 1 << 30, false, &c->max_positions);
    return rc;
}

static int check_counts(const reader *r)
{
    const spw__model_config *c = r->config;
    if (c->heads % c->kv_heads)
        return spw__error(SPW_EFORMAT,
                          "%s: \"num_key_value_heads\" %u does not divide "
                          "\"num_attention_heads\" %u",
                          r->path, c->kv_heads, c->heads);
    if (c->head_dim % 2)
        return spw__error(SPW_EFORMAT, "%s: \"head_dim\" %u is odd", r->path, c->head_dim);
    return 0;
}

static int read_flags(const reader *r)
{
    spw__model_config *c = r->config;
    double eps = 1e-6;
    bool bias = false;
    int rc = spw__json_get_real(r->root, "rms_norm_eps", r->path, false, &eps);
    if (rc == 0)
        rc = spw__json_get_bool(r->root, "tie_word_embeddings", r->path, false, &c->tied);
    if (rc == 0)
        rc = spw__json_get_bool(r->root, "attention_bias", r->path, false, &bias);
    if (rc < 0)
        return rc;
    if (!(eps >= 0 && eps < 1))
        return spw__error(SPW_EFORMAT, "%s: \"rms_norm_eps\" %g is not 0 to 1", r->path, eps);
    c->rms_eps = (float)eps;
    c->qkv_bias = c->qkv_bias || bias;
    c->o_bias = bias; /* Llama and Qwen3 give o the bias too; Qwen2 has no such field */
    const char *dtype = json_string_value(json_object_get(r->root, "dtype"));
    if (!dtype)
        dtype = json_string_value(json_object_get(r->root, "torch_dtype"));
    c->stored_bf16 = dtype && strcmp(dtype, "bfloat16") == 0;
    return 0;
}

static int64_t token_id(const reader *r, const char *key)
{
    const json_t *value = json_object_get(r->root, key);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* ----------------------------------------------------------------------------------- rotary -- */

/* transformers 5 writes rope_parameters with everything; 4 writes rope_scaling and rope_theta. */
static const json_t *rope_object(const reader *r)
{
    const json_t *rope = json_object_get(r->root, "rope_parameters");
    return json_is_object(rope) ? rope : json_object_get(r->root, "rope_scaling");
}

static int read_rope_factors(const reader *r, const json_t *rope)
{
    spw__model_config *c = r->config;
    int rc = spw__json_get_real(rope, "factor", r->path, true, &c->rope_factor);
    if (rc == 0 && c->rope == SPW__ROPE_LLAMA3) {
        rc = spw__json_get_real(rope, "low_freq_factor", r->path, true, &c->rope_low);
        if (rc == 0)
            rc = spw__json_get_real(rope, "high_freq_factor", r->path, true, &c->rope_high);
        if (rc == 0)
            rc = spw__json_get_real(rope, "original_max_position_embeddings", r->path, true,
                                    &c->rope_original);
    }
    if (rc < 0)
        return rc;
    bool apart = c->rope != SPW__ROPE_LLAMA3 ||
                 (c->rope_low > 0 && c->rope_high > c->rope_low && c->rope_original > 0);
    if (!(c->rope_factor >= 1) || !apart)
        return spw__error(SPW_EFORMAT, "%s: the factors of its rope scaling make no sense",
                          r->path);
    return 0;
}

static int read_rope_type(const reader *r, const json_t *rope)
{
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(rope, "type"));
    if (!type || strcmp(type, "default") == 0)
        return 0;
    if (strcmp(type, "linear") == 0)
        r->config->rope = SPW__ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        r->config->rope = SPW__ROPE_LLAMA3;
    else
        return spw__error(SPW_ENOTSUP, "%s: rope type %s: default, linear and llama3 are supported",
                          r->path, type);
    return read_rope_factors(r, rope);
}

/* Both versions of transformers may have it; 5 puts it beside theta. */
static int check_whole_rotation(const reader *r, const json_t *object)
{
    double partial = 1;
    int rc = spw__json_get_real(object, "partial_rotary_factor", r->path, false, &partial);
    if (rc == 0 && partial != 1)
        rc = spw__error(SPW_ENOTSUP, "%s: \"partial_rotary_factor\" %g: only 1 is supported",
                        r->path, partial);
    return rc;
}

static int read_rope(const reader *r)
{
    spw__model_config *c = r->config;
    const json_t *rope = rope_object(r);
    c->rope_theta = 10000;
    int rc = spw__json_get_real(r->root, "rope_theta", r->path, false, &c->rope_theta);
    if (rc == 0)
        rc = check_whole_rotation(r, r->root);
    if (rc == 0 && json_is_object(rope)) {
        rc = spw__json_get_real(rope, "rope_theta", r->path, false, &c->rope_theta);
        if (rc == 0)
            rc = check_whole_rotation(r, rope);
        if (rc == 0)
            rc = read_rope_type(r, rope);
    }
    if (rc == 0 && !(c->rope_theta >= 1))
        rc = spw__error(SPW_EFORMAT, "%s: \"rope_theta\" is %g, not 1 or more", r->path,
                        c->rope_theta);
    return rc;
}

/* -------------------------------------------------------------------------------------------- */

static int read_all(const reader *r)
{
    int rc = read_family(r);
    if (rc == 0)
        rc = read_counts(r);
    if (rc == 0)
        rc = check_counts(r);
    if (rc == 0)
        rc = check_unsupported(r);
    if (rc == 0)
        rc = read_flags(r);
    if (rc == 0)
        rc = read_rope(r);
    r->config->bos = token_id(r, "bos_token_id");
    r->config->eos = token_id(r, "eos_token_id");
    return rc;
}

int spw__model_config_load(const char *directory, spw__model_config *config)
{
    json_t *root = NULL;
    char *path = spw__path_join(directory, "config.json");
    if (!path)
        return SPW_EHOSTMEM;
    *config = (spw__model_config){.bos = -1, .eos = -1};
    int rc = spw__json_load(path, max_config_bytes, &root);
    if (rc == 0)
        rc = read_all(&(reader){root, path, config});
    json_decref(root);
    free(path);
    return rc;
}

/* llama3 scaling: long waves are slowed by the factor, short ones left, those between blended. */
static float scale_llama3(const spw__model_config *c, float inverse)
{
    const float pi = 3.14159265358979323846f;
    float factor = (float)c->rope_factor, original = (float)c->rope_original;
    float low = (float)c->rope_low, high = (float)c->rope_high;
    float wave = 2.0f * pi / inverse;
    if (wave < original / high)
        return inverse;
    if (wave > original / low)
        return inverse / factor;
    float smooth = (original / wave - low) / (high - low);
    return (1.0f - smooth) * inverse / factor + smooth * inverse;
}

void spw__rope_frequencies(const spw__model_config *config, float *inverse)
{
    for (uint32_t i = 0; i < config->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)config->head_dim;
        inverse[i] = 1.0f / powf((float)config->rope_theta, exponent);
        if (config->rope == SPW__ROPE_LINEAR)
            inverse[i] /= (float)config->rope_factor;
        else if (config->rope == SPW__ROPE_LLAMA3)
            inverse[i] = scale_llama3(config, inverse[i]);
    }
}
