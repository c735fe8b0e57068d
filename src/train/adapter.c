#include "train/adapter.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/philox.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "train/shards.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t max_config_bytes = 16 << 20;
static const uint32_t all_targets = (1u << SPW__N_LINEAR) - 1;

/* "q_proj" of "self_attn.q_proj". */
static const char *short_name(int which)
{
    return strchr(spw__linear_names[which], '.') + 1;
}

static int target_of(const char *word, size_t length)
{
    for (int which = 0; which < SPW__N_LINEAR; which++) {
        const char *names[] = {short_name(which), spw__linear_names[which]};
        for (int i = 0; i < 2; i++)
            if (strlen(names[i]) == length && memcmp(names[i], word, length) == 0)
                return which;
    }
    return -1;
}

int spw__adapter_parse_targets(const char *text, uint32_t *targets)
{
    uint32_t found = 0;
    if (strcmp(text, "all") == 0) {
        *targets = all_targets;
        return 0;
    }
    for (const char *word = text;; word++) {
        size_t length = strcspn(word, ",");
        int which = target_of(word, length);
        if (which < 0)
            return spw__error(SPW_EINVAL,
                              "\"%.*s\" is no linear layer: q_proj, k_proj, v_proj, o_proj, "
                              "gate_proj, up_proj, down_proj or all",
                              (int)length, word);
        found |= 1u << which;
        word += length;
        if (!*word)
            break;
    }
    *targets = found;
    return 0;
}

/* ------------------------------------------------------------------------------------- pairs -- */

static int take_floats(spw_pager *pager, uint64_t n, float **out)
{
    void *memory;
    int rc = spw_malloc(pager, n * sizeof(float), &memory);
    if (rc < 0)
        return rc;
    memset(memory, 0, (size_t)n * sizeof(float));
    *out = memory;
    return 0;
}

static int make_pair(spw__weights *weights, spw__linear *linear, const spw__adapter_config *config)
{
    spw__lora *lora = &linear->lora;
    uint64_t a = (uint64_t)config->rank * linear->w.cols;
    uint64_t b = (uint64_t)config->rank * linear->w.rows;
    double root = config->rslora ? sqrt((double)config->rank) : (double)config->rank;
    lora->rank = config->rank;
    lora->scale = (float)(config->alpha / root);
    lora->dropout = (float)config->dropout;
    int rc = take_floats(weights->pager, a, &lora->a);
    if (rc == 0)
        rc = take_floats(weights->pager, b, &lora->b);
    if (rc == 0)
        rc = take_floats(weights->pager, a, &lora->grad_a);
    if (rc == 0)
        rc = take_floats(weights->pager, b, &lora->grad_b);
    return rc;
}

static int make_pairs(spw__weights *weights, const spw__adapter_config *config)
{
    for (uint32_t layer = 0; layer < weights->config.layers; layer++) {
        for (int which = 0; which < SPW__N_LINEAR; which++) {
            if (!(config->targets >> which & 1))
                continue;
            int rc = make_pair(weights, &weights->blocks[layer].linear[which], config);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* kaiming_uniform with a = sqrt(5), as PEFT: uniform in +-1/sqrt(in). Keyed by what it is, so a
 * layer's start does not depend on which others are targets. */
static void fill_a(const spw__linear *linear, uint64_t seed, uint32_t layer, uint32_t which)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t n = (uint64_t)linear->lora.rank * linear->w.cols;
    float bound = 1.0f / sqrtf((float)linear->w.cols);
    for (uint64_t i = 0; i < n; i += 4) {
        uint32_t words[4] = {(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), layer, which};
        spw__philox(words, key, words);
        for (uint64_t j = 0; j < 4 && i + j < n; j++)
            linear->lora.a[i + j] = (2.0f * spw__unit_of_bits(words[j]) - 1.0f) * bound;
    }
}

int spw__adapter_create(spw__weights *weights, const spw__adapter_config *config)
{
    int rc = make_pairs(weights, config);
    for (uint32_t layer = 0; rc == 0 && layer < weights->config.layers; layer++)
        for (int which = 0; which < SPW__N_LINEAR; which++)
            if (config->targets >> which & 1)
                fill_a(&weights->blocks[layer].linear[which], config->seed, layer, (uint32_t)which);
    return rc;
}

/* ------------------------------------------------------------------------------------ reading --
 */

static bool is_set(const json_t *value)
{
    bool empty = !value || json_is_null(value) || json_is_false(value) ||
                 (json_is_object(value) && json_object_size(value) == 0) ||
                 (json_is_array(value) && json_array_size(value) == 0);
    return !empty;
}

/* Fields of PEFT that change the arithmetic or which tensors there are. */
static const char *const unsupported[] = {
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "lora_bias",
    "layers_to_transform",
    "layers_pattern",
    "trainable_token_indices",
    "target_parameters",
    "use_qalora",
    "use_bdlora",
    "exclude_modules",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
};

/* Some ways to begin (pissa, olora, corda, loftq ...) change the base's matrices too. */
static int check_start(const json_t *root, const char *path)
{
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const char *start = json_string_value(json_object_get(root, "init_lora_weights"));
    if (!start)
        return 0;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(start, harmless[i]) == 0)
            return 0;
    return spw__error(SPW_ENOTSUP,
                      "%s: \"init_lora_weights\" %s changes the base: convert the adapter to plain "
                      "LoRA when saving it",
                      path, start);
}

static int check_unsupported(const json_t *root, const char *path)
{
    const char *bias = "none", *kind = "LORA";
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (is_set(json_object_get(root, unsupported[i])))
            return spw__error(SPW_ENOTSUP, "%s: \"%s\" is not supported", path, unsupported[i]);
    int rc = spw__json_get_string(root, "bias", path, false, &bias);
    if (rc == 0)
        rc = spw__json_get_string(root, "peft_type", path, false, &kind);
    if (rc == 0 && (strcmp(bias, "none") != 0 || strcmp(kind, "LORA") != 0))
        rc = spw__error(SPW_ENOTSUP, "%s: peft_type %s with bias %s: LORA with none is supported",
                        path, kind, bias);
    return rc == 0 ? check_start(root, path) : rc;
}

/* For a small model PEFT writes the layers of "all-linear" one by one:
 * "model.layers.0.mlp.up_proj". That it means every block is seen from the tensors. */
static const char *without_layer(const char *name)
{
    int length = 0;
    unsigned layer;
    (void)sscanf(name, "model.layers.%u.%n", &layer, &length);
    return name + length;
}

static int add_target(const json_t *word, const char *path, uint32_t *targets)
{
    const char *name = json_string_value(word);
    const char *short_form = name ? without_layer(name) : "";
    int which = target_of(short_form, strlen(short_form));
    if (which < 0)
        return spw__error(SPW_ENOTSUP,
                          "%s: target module \"%s\" is none of the seven linear layers", path,
                          name ? name : "(not a string)");
    *targets |= 1u << which;
    return 0;
}

static int read_targets(const json_t *root, const char *path, uint32_t *targets)
{
    const json_t *list = json_object_get(root, "target_modules");
    *targets = 0;
    if (json_is_string(list) && strcmp(json_string_value(list), "all-linear") == 0)
        *targets = all_targets;
    else if (json_is_string(list))
        return add_target(list, path, targets);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rc = add_target(json_array_get(list, i), path, targets);
        if (rc < 0)
            return rc;
    }
    return *targets ? 0 : spw__error(SPW_EFORMAT, "%s: lacks \"target_modules\"", path);
}

static int read_fields(const json_t *root, const char *path, spw__adapter_config *config)
{
    int64_t rank = 8; /* PEFT's defaults of absent fields */
    config->alpha = 8;
    config->dropout = 0;
    config->rslora = false;
    int rc = check_unsupported(root, path);
    if (rc == 0)
        rc = spw__json_get_integer(root, "r", path, false, &rank);
    if (rc == 0)
        rc = spw__json_get_real(root, "lora_alpha", path, false, &config->alpha);
    if (rc == 0)
        rc = spw__json_get_real(root, "lora_dropout", path, false, &config->dropout);
    if (rc == 0)
        rc = spw__json_get_bool(root, "use_rslora", path, false, &config->rslora);
    if (rc == 0)
        rc = read_targets(root, path, &config->targets);
    if (rc < 0)
        return rc;
    if (rank < 1 || rank > 65536 || !(config->dropout >= 0 && config->dropout < 1))
        return spw__error(SPW_EFORMAT, "%s: r %" PRId64 " or lora_dropout %g makes no sense", path,
                          rank, config->dropout);
    config->rank = (uint32_t)rank;
    return 0;
}

static int read_config(const char *directory, spw__adapter_config *config)
{
    json_t *root = NULL;
    char *path = spw__path_join(directory, "adapter_config.json");
    int rc = path ? spw__json_load(path, max_config_bytes, &root) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = read_fields(root, path, config);
    json_decref(root);
    free(path);
    return rc;
}

static int read_pair_tensor(const spw__safetensors *file, const spw__trained *into)
{
    const spw__tensor *tensor = spw__safetensors_find(file, into->name);
    if (!tensor)
        return spw__error(SPW_EFORMAT, "%s: lacks tensor %s", file->path, into->name);
    if (tensor->dims != 2 || tensor->shape[0] != into->rows || tensor->shape[1] != into->cols)
        return spw__error(SPW_EFORMAT, "%s: tensor %s: its shape is not [%u, %u]", file->path,
                          into->name, into->rows, into->cols);
    return spw__tensor_to_fp32(tensor, file->path, 0, tensor->n, into->data);
}

static int read_pairs(spw__weights *weights, const char *directory)
{
    spw__safetensors file = {.path = NULL};
    spw__trained *list = NULL;
    size_t n = 0;
    char *path = spw__path_join(directory, "adapter_model.safetensors");
    int rc = path ? spw__safetensors_open(path, &file) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = spw__weights_trained(weights, &list, &n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_pair_tensor(&file, &list[i]);
    if (rc == 0 && file.n_tensors != n)
        rc = spw__error(SPW_ENOTSUP, "%s: has %zu tensors, its config and the model make %zu", path,
                        file.n_tensors, n);
    free(list);
    spw__safetensors_close(&file);
    free(path);
    return rc;
}

int spw__adapter_load(spw__weights *weights, const char *directory, spw__adapter_config *config)
{
    int rc = read_config(directory, config);
    if (rc == 0)
        rc = make_pairs(weights, config);
    return rc == 0 ? read_pairs(weights, directory) : rc;
}

/* ------------------------------------------------------------------------------------ writing --
 */

/* A whole number is written as one, as PEFT does. */
static json_t *number(double value)
{
    bool whole = value == floor(value) && fabs(value) < 1e15;
    return whole ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *make_config(const spw__adapter_config *config, const char *base)
{
    json_t *targets = json_array();
    for (int which = 0; which < SPW__N_LINEAR; which++)
        if (config->targets >> which & 1)
            (void)json_array_append_new(targets, json_string(short_name(which)));
    return json_pack(
        "{s:s, s:s, s:s, s:i, s:o, s:o, s:s, s:o, s:b, s:b, s:b, s:b, s:n, s:{}, s:{}, "
        "s:b}",
        "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r",
        (int)config->rank, "lora_alpha", number(config->alpha), "lora_dropout",
        json_real(config->dropout), "bias", "none", "target_modules", targets, "use_rslora",
        (int)config->rslora, "use_dora", 0, "fan_in_fan_out", 0, "inference_mode", 1,
        "modules_to_save", "rank_pattern", "alpha_pattern", "init_lora_weights", 1);
}

static int save_config(const spw__adapter_config *config, const char *base, const char *path)
{
    json_t *root = make_config(config, base);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text)
        return spw__error(SPW_EINVAL, "%s: the model's path is not UTF-8, or no host memory", path);
    int rc = spw__file_put(path, text, strlen(text));
    free(text);
    return rc;
}

static int write_pairs(const spw__trained *list, size_t n, const char *path)
{
    spw__file_writer writer;
    spw__tensor_spec *specs = spw__calloc(n, sizeof *specs);
    if (!specs)
        return SPW_EHOSTMEM;
    for (size_t i = 0; i < n; i++)
        specs[i] = (spw__tensor_spec){.name = list[i].name,
                                      .shape = {list[i].rows, list[i].cols},
                                      .dims = 2,
                                      .dtype = SPW__DTYPE_F32};
    int rc = spw__safetensors_begin(&writer, path, specs, n);
    free(specs);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = spw__file_write(&writer, list[i].data, (size_t)list[i].n * sizeof(float));
    if (rc == 0)
        return spw__file_commit(&writer);
    spw__file_abandon(&writer);
    return rc;
}

/* The tensors come last: a directory that has them is complete. */
int spw__adapter_save(const spw__weights *weights, const spw__adapter_config *config,
                      const char *base, const char *out)
{
    spw__trained *list = NULL;
    size_t n = 0;
    char *config_path = spw__path_join(out, "adapter_config.json");
    char *path = spw__path_join(out, "adapter_model.safetensors");
    int rc = config_path && path ? spw__weights_trained(weights, &list, &n) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = save_config(config, base, config_path);
    if (rc == 0) {
        rc = write_pairs(list, n, path);
        if (rc < 0)
            (void)unlink(config_path);
    }
    free(list);
    free(config_path);
    free(path);
    return rc;
}
