/* `spillway ckpt`: what is in an optimizer's file, is it whole, and other libraries' layouts. */
#include "cli/ckpt.h"

#include "base/sizes.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "format/checked.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum code { CODE_JSON = 256, CODE_TO, CODE_OUT };

static const spw__option json_options[] = {
    {"json", CODE_JSON, NULL, "one JSON object on one line [text]"},
    {0},
};

static const spw__option convert_options[] = {
    {"to", CODE_TO, "LAYOUT", "spillway, bitsandbytes or torch (required)"},
    {"out", CODE_OUT, "FILE", "the new file (required)"},
    {0},
};

static const spw__option_group json_groups[] = {{"How it is said", json_options}, {0}};
static const spw__option_group convert_groups[] = {{"What is made", convert_options}, {0}};

typedef struct request {
    const char *file;
    const char *out;
    int layout; /* -1: none was named */
    bool json;
} request;

/* A word that is not of a checksum, which verify is for. */
static bool is_shown(const char *key)
{
    return strncmp(key, "crc32c.", 7) != 0 && strcmp(key, "header_crc32c") != 0;
}

/* ---------------------------------------------------------------------------------- inspect -- */

static json_t *describe_tensor(const spw__safetensors *file, const spw__tensor *tensor)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dims; i++)
        (void)json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", tensor->name, "dtype", tensor->dtype_name,
                     "shape", shape, "offset", (json_int_t)spw__tensor_offset(file, tensor),
                     "bytes", (json_int_t)tensor->bytes);
}

static void print_json(json_t *object)
{
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)putchar('\n');
    json_decref(object);
}

static void inspect_json(const spw__safetensors *file)
{
    const char *key;
    json_t *value, *metadata = json_object(), *tensors = json_array();
    json_object_foreach(file->metadata, key, value) if (is_shown(key))(void)
        json_object_set(metadata, key, value);
    for (size_t i = 0; i < file->n_tensors; i++)
        (void)json_array_append_new(tensors, describe_tensor(file, &file->tensors[i]));
    print_json(json_pack("{s:s, s:I, s:o, s:o}", "file", file->path, "bytes",
                         (json_int_t)file->map_bytes, "metadata", metadata, "tensors", tensors));
}

static void print_shape(const spw__tensor *tensor)
{
    char text[128] = "[";
    for (uint32_t i = 0; i < tensor->dims; i++) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%s%" PRIu64, i ? ", " : "",
                       tensor->shape[i]);
    }
    (void)printf("%s]", text);
}

static void inspect_text(const spw__safetensors *file)
{
    char size[24];
    const char *key;
    json_t *value;
    (void)printf("%s: %zu tensors, %s\n", file->path, file->n_tensors,
                 spw__format_size(file->map_bytes, size, sizeof size));
    json_object_foreach(file->metadata, key, value) if (is_shown(key))(void)
        printf("  %s = %s\n", key, json_string_value(value));
    (void)printf("%-8s %12s  %-10s name and shape\n", "dtype", "byte", "size");
    for (size_t i = 0; i < file->n_tensors; i++) {
        const spw__tensor *tensor = &file->tensors[i];
        (void)printf("%-8s %12" PRIu64 "  %-10s %s ", tensor->dtype_name,
                     spw__tensor_offset(file, tensor),
                     spw__format_size(tensor->bytes, size, sizeof size), tensor->name);
        print_shape(tensor);
        (void)putchar('\n');
    }
}

static int inspect(const request *r)
{
    spw__safetensors file;
    if (spw__safetensors_open(r->file, &file) < 0)
        return spw__cli_fail("%s", spw_last_error());
    if (r->json)
        inspect_json(&file);
    else
        inspect_text(&file);
    spw__safetensors_close(&file);
    return SPW__EXIT_DONE;
}

/* ----------------------------------------------------------------------------------- verify -- */

/* Every tensor that is not as it was written: all of them, since one may be worth more than others.
 */
static json_t *find_damage(const spw__safetensors *file)
{
    json_t *damage = json_array();
    for (size_t i = 0; i < file->n_tensors; i++)
        if (spw__checked_verify_tensor(file, &file->tensors[i]) < 0)
            (void)json_array_append_new(damage, json_string(spw_last_error()));
    return damage;
}

static int say_damage(const request *r, const spw__safetensors *file, json_t *damage)
{
    char size[24];
    size_t n = json_array_size(damage);
    if (r->json) {
        print_json(json_pack("{s:s, s:I, s:b, s:O}", "file", r->file, "tensors",
                             (json_int_t)file->n_tensors, "intact", n == 0, "damage", damage));
        return n ? SPW__EXIT_FAILED : SPW__EXIT_DONE;
    }
    for (size_t i = 0; i < n; i++)
        (void)printf("%s\n", json_string_value(json_array_get(damage, i)));
    if (n)
        return spw__cli_fail("%s: %zu of %zu tensors are damaged", r->file, n, file->n_tensors);
    (void)printf("%s: intact: %zu tensors, %s\n", r->file, file->n_tensors,
                 spw__format_size(file->map_bytes, size, sizeof size));
    return SPW__EXIT_DONE;
}

static int verify(const request *r)
{
    spw__safetensors file;
    if (spw__checked_open(r->file, &file) < 0)
        return spw__cli_fail("%s", spw_last_error());
    json_t *damage = find_damage(&file);
    int status = say_damage(r, &file, damage);
    json_decref(damage);
    spw__safetensors_close(&file);
    return status;
}

/* ---------------------------------------------------------------------------------- convert -- */

static int convert(const request *r)
{
    if (r->layout < 0)
        return spw__cli_usage("--to LAYOUT is missing; see spillway ckpt convert --help");
    if (!r->out || !*r->out)
        return spw__cli_usage("--out FILE is missing; see spillway ckpt convert --help");
    if (spw__ckpt_convert(r->file, r->out, (spw__layout)r->layout) < 0)
        return spw__cli_fail("%s", spw_last_error());
    return SPW__EXIT_DONE;
}

/* ------------------------------------------------------------------------------ which of them --
 */

typedef struct verb {
    const char *name;
    const spw__option_group *groups;
    int (*run)(const request *r);
    const char *help;
} verb;

static const verb verbs[] = {
    {"inspect", json_groups, inspect,
     "The tensors and the metadata of a safetensors file: an optimizer's, an adapter's, a "
     "model's."},
    {"verify", json_groups, verify,
     "Is every byte of an optimizer's file as it was written? Exit status 1 and a line for each\n"
     "damaged tensor if not."},
    {"convert", convert_groups, convert,
     "An optimizer's file in another library's layout, as safetensors: NAME.state1 ... as\n"
     "bitsandbytes has it (nested or flat is the pickle's matter; blocks of 2048 become 256 on "
     "the\n"
     "way in), NAME.exp_avg ... as torch.optim.AdamW has it (8-bit state dequantised), or ours.\n"
     "Pickles are the Python package's: docs/checkpoints.md."},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static int take_option(request *r, int code, const char *value)
{
    switch (code) {
    case CODE_JSON:
        r->json = true;
        return 0;
    case CODE_OUT:
        r->out = value;
        return 0;
    default:
        return spw__option_word("to", value, spw__layout_words, &r->layout);
    }
}

static int help(const verb *verb)
{
    (void)printf("usage: spillway ckpt %s FILE [options]\n\n%s\n", verb->name, verb->help);
    spw__options_help(verb->groups);
    return SPW__EXIT_DONE;
}

/* argv[0] is the verb; FILE comes before the options. */
static int run_verb(const verb *verb, int argc, char **argv)
{
    request r = {.layout = -1};
    spw__options options;
    char command[32];
    int code = 0, status;
    const char *value = NULL;
    bool named = argc > 1 && argv[1][0] != '-';
    (void)snprintf(command, sizeof command, "ckpt %s", verb->name);
    if (named)
        r.file = argv[1];
    spw__options_init(&options, command, verb->groups, argc - named, argv + named);
    while ((status = spw__options_next(&options, &code, &value)) == SPW__OPTION)
        if (take_option(&r, code, value) != 0)
            return SPW__EXIT_USAGE;
    if (status != SPW__OPTIONS_END)
        return status == SPW__OPTIONS_HELP ? help(verb) : SPW__EXIT_USAGE;
    if (!r.file)
        return spw__cli_usage("%s FILE: name a file, before the options", command);
    return verb->run(&r);
}

int spw__cli_ckpt(int argc, char **argv)
{
    for (int i = 0; argc >= 2 && i < N_VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            return run_verb(&verbs[i], argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        (void)puts(
            "usage: spillway ckpt inspect|verify|convert FILE [options]; --help after any of "
            "them says more");
        return SPW__EXIT_DONE;
    }
    return spw__cli_usage("ckpt %s: say what to do: inspect, verify or convert",
                          argc >= 2 ? argv[1] : "");
}
