/* `spillway bench step` and `bench link`: options in, one table or one JSON line out. */
#include "cli/cli.h"

#include "base/error.h"
#include "base/sizes.h"
#include "cli/bench_step.h"
#include "cli/options.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_PARAMS = 256, OPTION_SET, OPTION_DTYPE, OPTION_STEPS, OPTION_JSON };

static const spw__option bench_options[] = {
    {"params", OPTION_PARAMS, "N", "elements of the one tensor; K, M, G allowed [50M]"},
    {"set", OPTION_SET, "one|lora448",
     "one tensor, or the 448 of a rank-64 LoRA of a 7B\n(159,907,840 elements) [one]"},
    {"dtype", OPTION_DTYPE, "bf16|fp16|fp32", "parameters and gradients [bf16]"},
    {"steps", OPTION_STEPS, "N", "timed steps, after one that is not [5]"},
    {"json", OPTION_JSON, NULL, "one object on one line"},
    {NULL, 0, NULL, NULL},
};

static const spw__option_group groups[] = {
    {"What is measured", bench_options},
    {"Where and how the optimizer runs", spw__machine_options},
    {NULL, NULL},
};

typedef struct bench_request {
    spw__bench_step bench;
    spw__machine machine;
    bool json;
} bench_request;

/* "50M": 50,000,000, as parameters are counted. */
static int parse_count(const char *value, uint64_t *count)
{
    static const char units[] = "KMG";
    char *end;
    double number = strtod(value, &end);
    double scale = 1;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit)
        for (const char *u = units; u <= unit; u++)
            scale *= 1000;
    bool well_formed = end != value && (!*end || (unit && !end[1]));
    if (!well_formed || !(number * scale >= 1) || number * scale > 1e13)
        return spw__cli_usage("--params %s: give a number of elements from 1 on, such as 50M",
                              value);
    *count = (uint64_t)(number * scale);
    return 0;
}

static int take_option(bench_request *request, int code, const char *value)
{
    static const char *const sets[] = {"one", "lora448", NULL};
    static const char *const dtypes[] = {"bf16", "fp16", "fp32", NULL};
    static const spw_type types[] = {SPW_BF16, SPW_FP16, SPW_FP32};
    int word = 0, rc = 0;
    uint64_t steps;
    switch (code) {
    case OPTION_PARAMS:
        return parse_count(value, &request->bench.params);
    case OPTION_SET:
        rc = spw__option_word("set", value, sets, &word);
        request->bench.lora448 = word == 1;
        return rc;
    case OPTION_DTYPE:
        rc = spw__option_word("dtype", value, dtypes, &word);
        request->bench.dtype = types[word];
        return rc;
    case OPTION_STEPS:
        rc = spw__option_integer("steps", value, (const uint64_t[]){1, 1000000}, &steps);
        request->bench.steps = rc == 0 ? (uint32_t)steps : 0;
        return rc;
    case OPTION_JSON:
        request->json = true;
        return 0;
    default:
        return spw__machine_parse(&request->machine, code, value) < 0 ? SPW__EXIT_USAGE : 0;
    }
}

static const char *paging_name(spw_paging paging)
{
    static const char *const names[] = {"auto", "copy", "mapped", "unified", "off"};
    return names[paging];
}

static const char *state_name(const bench_request *request)
{
    return request->bench.state == SPW_STATE_8BIT ? "8bit" : "32bit";
}

static void set_integer(json_t *object, const char *key, uint64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void set_real(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, json_real(value));
}

/* What managed memory does not let us know is null. */
static void set_known(json_t *object, const char *key, const spw__bench_step_result *r,
                      uint64_t value)
{
    bool known = r->pager.paging != SPW_PAGING_UNIFIED;
    (void)json_object_set_new(object, key, known ? json_integer((json_int_t)value) : json_null());
}

static void set_string(json_t *object, const char *key, const char *value)
{
    (void)json_object_set_new(object, key, json_string(value));
}

static json_t *to_json(const bench_request *request, const spw__bench_step_result *r)
{
    json_t *o = json_object();
    set_string(o, "device", request->machine.device);
    set_string(o, "optim", "adamw");
    set_string(o, "state", state_name(request));
    set_string(o, "paging", paging_name(r->pager.paging));
    set_integer(o, "params", r->params);
    set_integer(o, "state_bytes", r->pager.state_bytes);
    set_integer(o, "page_bytes", r->pager.page_bytes);
    set_integer(o, "ring_bytes", r->pager.ring_bytes);
    set_known(o, "budget_bytes", r, r->pager.budget_bytes);
    set_known(o, "resident_bytes", r, r->pager.resident_bytes);
    set_integer(o, "steps", request->bench.steps);
    set_real(o, "ms_median", r->ms_median);
    set_real(o, "ms_min", r->ms_min);
    set_real(o, "ms_max", r->ms_max);
    set_known(o, "bytes_in", r, r->bytes_in);
    set_known(o, "bytes_out", r, r->bytes_out);
    set_integer(o, "bytes_cleaned", r->pager.bytes_cleaned);
    set_known(o, "bound_bytes", r, r->bound_bytes);
    set_real(o, "link_in_gbs", r->link_in_gbs);
    set_real(o, "link_out_gbs", r->link_out_gbs);
    (void)json_object_set_new(o, "probe_gbs",
                              r->probe_gbs > 0 ? json_real(r->probe_gbs) : json_null());
    set_real(o, "step_gbs", r->step_gbs);
    set_real(o, r->on_gpu ? "copy_gbs" : "triad_gbs", r->limit_gbs);
    (void)json_object_set_new(o, "identical", json_boolean(r->identical));
    return o;
}

static int print_json(const bench_request *request, const spw__bench_step_result *result)
{
    json_t *object = to_json(request, result);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (!text)
        return spw__cli_fail("out of host memory");
    (void)puts(text);
    free(text);
    return SPW__EXIT_DONE;
}

static void print_size(const char *label, uint64_t bytes)
{
    char text[32];
    (void)printf("%-22s %s\n", label, spw__format_size(bytes, text, sizeof text));
}

static int print_table(const bench_request *request, const spw__bench_step_result *r)
{
    (void)printf("%-22s AdamW %s, %" PRIu64 " parameters, paging %s\n", "step", state_name(request),
                 r->params, paging_name(r->pager.paging));
    print_size("state", r->pager.state_bytes);
    print_size("page", r->pager.page_bytes);
    print_size("ring", r->pager.ring_bytes);
    print_size("budget", r->pager.budget_bytes);
    print_size("resident", r->pager.resident_bytes);
    (void)printf("%-22s %.2f ms (%.2f to %.2f, %" PRIu32 " steps)\n", "a step", r->ms_median,
                 r->ms_min, r->ms_max, request->bench.steps);
    print_size("moved in", r->bytes_in);
    print_size("moved out", r->bytes_out);
    print_size("least there is to move", r->bound_bytes);
    (void)printf("%-22s %.2f in + %.2f out GB/s", "link", r->link_in_gbs, r->link_out_gbs);
    if (r->probe_gbs > 0)
        (void)printf("; copying alone reaches %.2f together", r->probe_gbs);
    (void)printf("\n%-22s %.2f GB/s, %.0f%% of %s %.2f\n", "arithmetic", r->step_gbs,
                 100 * r->step_gbs / r->limit_gbs,
                 r->on_gpu ? "a copy within the device at" : "STREAM triad's", r->limit_gbs);
    (void)printf("%-22s %s\n", "same bits as unpaged", r->identical ? "yes" : "NO");
    return SPW__EXIT_DONE;
}

static int run(bench_request *request)
{
    spw__bench_step_result result;
    int status = spw__machine_check(&request->machine);
    if (status)
        return status;
    request->bench.device_name = request->machine.device;
    request->bench.device = request->machine.device_config;
    request->bench.pager = request->machine.pager;
    request->bench.state = request->machine.optim.state;
    if (spw__bench_step_run(&request->bench, &result) < 0)
        return spw__cli_fail("%s", spw_last_error());
    status = request->json ? print_json(request, &result) : print_table(request, &result);
    return status == SPW__EXIT_DONE && !result.identical
               ? spw__cli_fail("the parameters differ from an unpaged run's: please report this")
               : status;
}

static int bench_step(int argc, char **argv)
{
    bench_request request = {
        .bench = {.params = 50000000, .dtype = SPW_BF16, .steps = 5},
    };
    spw__machine_default(&request.machine);
    spw__options options;
    spw__options_init(&options, "bench step", groups, argc, argv);
    int code, status;
    const char *value;
    while ((status = spw__options_next(&options, &code, &value)) == SPW__OPTION)
        if (take_option(&request, code, value) != 0)
            return SPW__EXIT_USAGE;
    if (status == SPW__OPTIONS_HELP) {
        (void)puts("usage: spillway bench step [options]\n\n"
                   "Times AdamW steps over made-up tensors, beside what this machine could reach,\n"
                   "and checks that the result has the bits of an unpaged run.");
        spw__options_help(groups);
        return SPW__EXIT_DONE;
    }
    return status == SPW__OPTIONS_BAD ? SPW__EXIT_USAGE : run(&request);
}

/* -------------------------------------------------------------------------------------- link -- */

enum { OPTION_COPY_SIZE = 512, OPTION_LINK_JSON };

static const spw__option link_options[] = {
    {"copy-size", OPTION_COPY_SIZE, "SIZE", "bytes of one copy, 4KiB to 256MiB [16MiB]"},
    {"json", OPTION_LINK_JSON, NULL, "one object on one line"},
    {NULL, 0, NULL, NULL},
};

static const spw__option_group link_groups[] = {
    {"What is measured", link_options},
    {"Where (other options of a run are not used)", spw__machine_options},
    {NULL, NULL},
};

typedef struct link_request {
    spw__machine machine;
    uint64_t copy_bytes;
    bool json;
} link_request;

static int take_link_option(link_request *request, int code, const char *value)
{
    switch (code) {
    case OPTION_COPY_SIZE:
        if (spw__option_size("copy-size", value, &request->copy_bytes) != 0)
            return SPW__EXIT_USAGE;
        if (request->copy_bytes < 4096 || request->copy_bytes > UINT64_C(256) << 20)
            return spw__cli_usage("--copy-size %s: 4KiB to 256MiB is allowed", value);
        return 0;
    case OPTION_LINK_JSON:
        request->json = true;
        return 0;
    default:
        return spw__machine_parse(&request->machine, code, value) < 0 ? SPW__EXIT_USAGE : 0;
    }
}

static int run_link(const link_request *request)
{
    spw_device *device;
    spw_link_rates rates;
    char size[32];
    int rc = spw_device_open(request->machine.device, &request->machine.device_config, &device);
    if (rc == 0) {
        rc = spw_device_link(device, request->copy_bytes, &rates);
        spw_device_close(device);
    }
    if (rc < 0)
        return spw__cli_fail("%s", spw_last_error());
    if (request->json)
        (void)printf("{\"device\":\"%s\",\"copy_bytes\":%" PRIu64 ",\"in_gbs\":%.3f,"
                     "\"out_gbs\":%.3f,\"both_gbs\":%.3f,\"device_gbs\":%.3f,\"host_gbs\":%.3f,"
                     "\"pin_gbs\":%.3f}\n",
                     request->machine.device, request->copy_bytes, rates.in_gbs, rates.out_gbs,
                     rates.both_gbs, rates.device_gbs, rates.host_gbs, rates.pin_gbs);
    else
        (void)printf("link of %s, %s a copy\n  in %.2f GB/s, out %.2f GB/s, both at once %.2f "
                     "GB/s\n  within the device %.2f GB/s, read and written\n  within host memory "
                     "%.2f GB/s, copied by all cores\n",
                     request->machine.device,
                     spw__format_size(request->copy_bytes, size, sizeof size), rates.in_gbs,
                     rates.out_gbs, rates.both_gbs, rates.device_gbs, rates.host_gbs);
    if (!request->json && rates.pin_gbs > 0)
        (void)printf("  host memory is pinned at %.2f GB/s\n", rates.pin_gbs);
    return SPW__EXIT_DONE;
}

static int bench_link(int argc, char **argv)
{
    link_request request = {.copy_bytes = UINT64_C(16) << 20};
    spw__machine_default(&request.machine);
    spw__options options;
    spw__options_init(&options, "bench link", link_groups, argc, argv);
    int code, status;
    const char *value;
    while ((status = spw__options_next(&options, &code, &value)) == SPW__OPTION)
        if (take_link_option(&request, code, value) != 0)
            return SPW__EXIT_USAGE;
    if (status == SPW__OPTIONS_HELP) {
        (void)puts("usage: spillway bench link [options]\n\n"
                   "Copies between host and device: the limits that paging is held to.");
        spw__options_help(link_groups);
        return SPW__EXIT_DONE;
    }
    return status == SPW__OPTIONS_BAD ? SPW__EXIT_USAGE : run_link(&request);
}

int spw__cli_bench(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "step") == 0)
        return bench_step(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "link") == 0)
        return bench_link(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        (void)puts("usage: spillway bench step|link [options]; --help after either says more");
        return SPW__EXIT_DONE;
    }
    return spw__cli_usage("bench %s: say what to measure: step or link", argc >= 2 ? argv[1] : "");
}
