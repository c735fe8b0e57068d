/* `spillway finetune`: options in, a run of train/loop.h out. */
#include "cli/cli.h"
#include "cli/options.h"
#include "train/loop.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum code {
    CODE_MODEL = 256,
    CODE_DATA,
    CODE_OUT,
    CODE_ADAPTER,
    CODE_FULL,
    CODE_RANK,
    CODE_ALPHA,
    CODE_DROPOUT,
    CODE_TARGETS,
    CODE_BASE,
    CODE_STEPS,
    CODE_EPOCHS,
    CODE_BATCH,
    CODE_ACCUM,
    CODE_SEQ,
    CODE_TOO_LONG,
    CODE_TEMPLATE,
    CODE_LR,
    CODE_WARMUP,
    CODE_SCHEDULE,
    CODE_WEIGHT_DECAY,
    CODE_CLIP,
    CODE_SEED,
    CODE_KEEP,
    CODE_LOG,
    CODE_SAMPLE,
    CODE_SAVE_EVERY,
    CODE_RESUME,
    CODE_TRACE,
    CODE_END,
};

static const spw__option file_options[] = {
    {"model", CODE_MODEL, "DIR", "a Llama-family model as Hugging Face ships it (required)"},
    {"data", CODE_DATA, "FILE.jsonl", "one row a line (required)"},
    {"out", CODE_OUT, "DIR",
     "made if it is not there; gets the adapter, with --full the model (required)"},
    {"log", CODE_LOG, "FILE", "one JSON object a step [none]"},
    {"save-every", CODE_SAVE_EVERY, "N",
     "write OUT/checkpoint-N after every N steps, and when the run is\n"
     "interrupted; the newest two stay [none]"},
    {"resume", CODE_RESUME, NULL,
     "go on from the newest valid checkpoint in OUT, bit for bit as if the\n"
     "run had never stopped; from the beginning if there is none"},
    {"sample", CODE_SAMPLE, "TEXT",
     "print how the model continues TEXT before the first and after the\n"
     "last step, greedy, up to 48 tokens [none]"},
    {0},
};

static const spw__option training_options[] = {
    {"full", CODE_FULL, NULL, "train every parameter [a LoRA adapter]"},
    {"adapter", CODE_ADAPTER, "DIR", "start from this PEFT adapter [a new one]"},
    {"rank", CODE_RANK, "N", "of the adapter [16]"},
    {"alpha", CODE_ALPHA, "F", "the adapter is scaled by alpha / rank [2 x rank]"},
    {"dropout", CODE_DROPOUT, "F", "of what goes into the adapter, 0 to below 1 [0]"},
    {"targets", CODE_TARGETS, "LIST",
     "all, or of q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj [all]"},
    {"base", CODE_BASE, "fp32|bf16|nf4", "how frozen matrices are held [nf4; --full: as stored]"},
    {0},
};

static const spw__option step_options[] = {
    {"steps", CODE_STEPS, "N", "optimizer steps [by --epochs]"},
    {"epochs", CODE_EPOCHS, "N", "passes over the data [1]"},
    {"batch", CODE_BATCH, "N", "rows a micro-batch [1]"},
    {"accum", CODE_ACCUM, "N", "micro-batches a step [1]"},
    {"seq", CODE_SEQ, "N", "most tokens a row [2048, or the model's positions if fewer]"},
    {"too-long", CODE_TOO_LONG, "WHAT", "with longer rows: truncate, skip or error [truncate]"},
    {"template", CODE_TEMPLATE, "NAME", "of chats: chatml or llama3 [by the tokenizer]"},
    {"lr", CODE_LR, "F", "peak learning rate [2e-4]"},
    {"warmup", CODE_WARMUP, "F", "share of the steps in which it rises, 0 to 1 [0.03]"},
    {"schedule", CODE_SCHEDULE, "NAME", "after that: cosine (to 0) or constant [cosine]"},
    {"weight-decay", CODE_WEIGHT_DECAY, "F", "of matrices; norms and biases have none [0]"},
    {"clip", CODE_CLIP, "F", "largest norm of the gradient; 0: off [1.0]"},
    {"seed", CODE_SEED, "N", "of row order, new adapters and dropout [0]"},
    {"keep", CODE_KEEP, "SIZE",
     "activations kept for the backward pass instead of computed again; the\n"
     "losses are the same [0 with --device-mem, else an eighth of the memory]"},
    {0},
};

/* Known by name, so that the error can say what they are. */
static const spw__option later_options[] = {
    {"trace", CODE_TRACE, "FILE", "Chrome trace events"},
    {0},
};

static const spw__option_group groups[] = {
    {"Files", file_options},
    {"What is trained", training_options},
    {"Steps", step_options},
    {"Where and how the optimizer runs", spw__machine_options},
    {"Not yet in this version", later_options},
    {0},
};

typedef struct request {
    spw__finetune finetune;
    spw__machine machine;
    bool given[CODE_END - CODE_MODEL];
} request;

static bool given(const request *r, enum code code)
{
    return r->given[code - CODE_MODEL];
}

static volatile sig_atomic_t stop_asked;

static void set_defaults(request *r)
{
    *r = (request){.finetune = {.base = SPW__BASE_NF4,
                                .lora = {.rank = 16, .targets = (1u << SPW__N_LINEAR) - 1},
                                .epochs = 1,
                                .batch = 1,
                                .accum = 1,
                                .lr = 2e-4,
                                .warmup = 0.03,
                                .clip = 1.0,
                                .screen = stdout,
                                .live = isatty(STDOUT_FILENO),
                                .stop = &stop_asked}};
    spw__machine_default(&r->machine);
}

/* -------------------------------------------------------------------------------------- values */

static int take_u32(const char *name, const char *value, uint64_t most, uint32_t *result)
{
    uint64_t number = 0;
    int rc = spw__option_integer(name, value, (const uint64_t[]){1, most}, &number);
    *result = (uint32_t)number;
    return rc;
}

static int take_real(enum code code, const char *value, request *r)
{
    static const spw__real_range above = {0, FLT_MAX, true, "a number above 0"};
    static const spw__real_range from_0 = {0, FLT_MAX, false, "a number from 0 on"};
    static const spw__real_range share = {0, 1, false, "a share from 0 to 1"};
    static const spw__real_range dropout = {0, 0.999, false, "a probability from 0 to 0.999"};
    switch ((int)code) {
    case CODE_ALPHA:
        return spw__option_real("alpha", value, &above, &r->finetune.lora.alpha);
    case CODE_DROPOUT:
        return spw__option_real("dropout", value, &dropout, &r->finetune.lora.dropout);
    case CODE_LR:
        return spw__option_real("lr", value, &above, &r->finetune.lr);
    case CODE_WARMUP:
        return spw__option_real("warmup", value, &share, &r->finetune.warmup);
    case CODE_WEIGHT_DECAY:
        return spw__option_real("weight-decay", value, &from_0,
                                &r->machine.optim.group.weight_decay);
    default:
        return spw__option_real("clip", value, &from_0, &r->finetune.clip);
    }
}

static int take_integer(enum code code, const char *value, request *r)
{
    static const uint64_t counts[] = {1, 1000000000}, seeds[] = {0, UINT64_MAX};
    spw__finetune *f = &r->finetune;
    switch ((int)code) {
    case CODE_RANK:
        return take_u32("rank", value, 4096, &f->lora.rank);
    case CODE_STEPS:
        return spw__option_integer("steps", value, counts, &f->steps);
    case CODE_SAVE_EVERY:
        return spw__option_integer("save-every", value, counts, &f->save_every);
    case CODE_EPOCHS:
        return spw__option_integer("epochs", value, (const uint64_t[]){1, 100000}, &f->epochs);
    case CODE_BATCH:
        return take_u32("batch", value, 65536, &f->batch);
    case CODE_ACCUM:
        return take_u32("accum", value, 65536, &f->accum);
    case CODE_SEQ:
        return take_u32("seq", value, 1 << 24, &f->seq);
    default:
        return spw__option_integer("seed", value, seeds, &f->seed);
    }
}

static int take_targets(const char *value, request *r)
{
    if (spw__adapter_parse_targets(value, &r->finetune.lora.targets) < 0)
        return spw__cli_usage("--targets %s: %s", value, spw_last_error());
    return 0;
}

/* The words stand in the order of their enums. */
static int take_word(enum code code, const char *value, request *r)
{
    static const char *const bases[] = {"fp32", "bf16", "nf4", NULL};
    static const char *const too_long[] = {"truncate", "skip", "error", NULL};
    static const char *const schedules[] = {"cosine", "constant", NULL};
    static const char *const templates[] = {"chatml", "llama3", NULL};
    int index = 0, rc;
    switch ((int)code) {
    case CODE_BASE:
        rc = spw__option_word("base", value, bases, &index);
        r->finetune.base = (spw__base)index;
        return rc;
    case CODE_TOO_LONG:
        rc = spw__option_word("too-long", value, too_long, &index);
        r->finetune.too_long = (spw__too_long)index;
        return rc;
    case CODE_SCHEDULE:
        rc = spw__option_word("schedule", value, schedules, &index);
        r->finetune.schedule = (spw__schedule_kind)index;
        return rc;
    default:
        r->finetune.template = value;
        return spw__option_word("template", value, templates, &index);
    }
}

static int take_later(const char *name)
{
    return spw__cli_usage("--%s: not yet in this version; leave it out", name);
}

static int take_own(enum code code, const char *value, request *r)
{
    spw__finetune *f = &r->finetune;
    switch (code) {
    case CODE_MODEL:
        f->model = value;
        return 0;
    case CODE_DATA:
        f->data = value;
        return 0;
    case CODE_OUT:
        f->out = value;
        return 0;
    case CODE_LOG:
        f->log = value;
        return 0;
    case CODE_SAMPLE:
        f->sample = value;
        return 0;
    case CODE_ADAPTER:
        f->adapter = value;
        return 0;
    case CODE_FULL:
        f->full = true;
        return 0;
    case CODE_TARGETS:
        return take_targets(value, r);
    case CODE_KEEP:
        f->keep = 0; /* "0" is a choice here; spw__option_size is for sizes that are not nothing */
        return strcmp(value, "0") == 0 ? 0 : spw__option_size("keep", value, &f->keep);
    case CODE_BASE:
    case CODE_TOO_LONG:
    case CODE_SCHEDULE:
    case CODE_TEMPLATE:
        return take_word(code, value, r);
    case CODE_ALPHA:
    case CODE_DROPOUT:
    case CODE_LR:
    case CODE_WARMUP:
    case CODE_WEIGHT_DECAY:
    case CODE_CLIP:
        return take_real(code, value, r);
    case CODE_RESUME:
        f->resume = true;
        return 0;
    case CODE_TRACE:
        return take_later("trace");
    default:
        return take_integer(code, value, r);
    }
}

static int take_option(request *r, int code, const char *value)
{
    int taken = spw__machine_parse(&r->machine, code, value);
    if (taken != 0)
        return taken < 0 ? SPW__EXIT_USAGE : 0;
    r->given[code - CODE_MODEL] = true;
    return take_own((enum code)code, value, r);
}

/* --------------------------------------------------------------------------------- all of them */

/* The trainer's own arithmetic has no GPU kernels; the optimizer and its bench do. */
static int check_device(const spw__machine *machine)
{
    if (strcmp(machine->device, "cpu") == 0)
        return 0;
    return spw__cli_fail("--device %s: this version fine-tunes on the CPU only, so use --device "
                         "cpu; GPUs come with the Python package spillway",
                         machine->device);
}

static int check_required(const request *r)
{
    static const spw__option *const required[] = {&file_options[0], &file_options[1],
                                                  &file_options[2]};
    const char *values[] = {r->finetune.model, r->finetune.data, r->finetune.out};
    for (int i = 0; i < 3; i++)
        if (!values[i] || !*values[i])
            return spw__cli_usage("--%s %s is missing; see spillway finetune --help",
                                  required[i]->name, required[i]->argument);
    return 0;
}

/* Options of new adapters say nothing about a full run, nor about an adapter that is read. */
static int check_adapter_options(const request *r)
{
    static const struct {
        enum code code;
        const char *name;
    } options[] = {{CODE_RANK, "rank"},
                   {CODE_ALPHA, "alpha"},
                   {CODE_DROPOUT, "dropout"},
                   {CODE_TARGETS, "targets"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!given(r, options[i].code))
            continue;
        if (r->finetune.full)
            return spw__cli_usage("--full: trains no adapter, so leave out --%s", options[i].name);
        if (r->finetune.adapter)
            return spw__cli_usage("--adapter %s: brings its own %s, so leave out --%s",
                                  r->finetune.adapter, options[i].name, options[i].name);
    }
    return 0;
}

static int check_full(request *r)
{
    if (!r->finetune.full)
        return 0;
    if (r->finetune.adapter)
        return spw__cli_usage("--full: trains no adapter, so leave out --adapter");
    if (given(r, CODE_BASE) && r->finetune.base != SPW__BASE_FP32)
        return spw__cli_usage("--full: cannot train a base that is held as %s; use --base fp32 or "
                              "leave it out (as stored)",
                              r->finetune.base == SPW__BASE_NF4 ? "nf4" : "bf16");
    if (!given(r, CODE_BASE))
        r->finetune.base = SPW__BASE_AS_STORED;
    return 0;
}

static int check(request *r)
{
    int rc = check_required(r);
    if (rc == 0)
        rc = check_full(r);
    if (rc == 0)
        rc = check_adapter_options(r);
    if (rc == 0 && given(r, CODE_STEPS) && given(r, CODE_EPOCHS))
        rc = spw__cli_usage("--steps and --epochs: give one of them");
    if (rc == 0)
        rc = check_device(&r->machine);
    if (rc == 0)
        rc = spw__machine_check(&r->machine);
    return rc;
}

static void complete(request *r)
{
    spw__finetune *f = &r->finetune;
    if (!given(r, CODE_ALPHA))
        f->lora.alpha = 2.0 * f->lora.rank;
    if (!given(r, CODE_KEEP))
        f->keep = r->machine.device_config.mem ? 0 : SPW__KEEP_BY_MEMORY;
    f->lora.seed = f->seed;
    f->device = r->machine.device;
    f->device_config = r->machine.device_config;
    f->pager = r->machine.pager;
    f->optim = r->machine.optim;
}

/* ----------------------------------------------------------------------------------- the run -- */

/* The first asks, the second ends at once: nothing half-written has a final name. */
static void on_interrupt(int signal_number)
{
    (void)signal_number;
    static const char said[] = "\nfinishing this step; once more ends at once\n";
    if (stop_asked)
        _exit(SPW__EXIT_FAILED);
    stop_asked = 1;
    ssize_t written = write(STDOUT_FILENO, said, sizeof said - 1);
    (void)written;
}

static void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    /* A full disk or a closed pipe is an error to report, not a death. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
}

static int help(void)
{
    printf("usage: spillway finetune --model DIR --data FILE.jsonl --out DIR [options]\n\n"
           "Fine-tunes a model; the optimizer's state gives way when memory is short. A row is\n"
           "{\"text\"}, {\"prompt\", \"completion\"}, {\"instruction\", \"input\", \"output\"} or\n"
           "{\"messages\"}; the loss counts on completions, answers and texts.\n");
    spw__options_help(groups);
    return SPW__EXIT_DONE;
}

int spw__cli_finetune(int argc, char **argv)
{
    request r;
    spw__options options;
    int code = 0, status;
    const char *value = NULL;
    set_defaults(&r);
    spw__options_init(&options, "finetune", groups, argc, argv);
    while ((status = spw__options_next(&options, &code, &value)) == SPW__OPTION)
        if (take_option(&r, code, value) != 0)
            return SPW__EXIT_USAGE;
    if (status != SPW__OPTIONS_END)
        return status == SPW__OPTIONS_HELP ? help() : SPW__EXIT_USAGE;
    int rc = check(&r);
    if (rc != 0)
        return rc;
    complete(&r);
    catch_interrupts();
    rc = spw__finetune_run(&r.finetune);
    return rc == 0 ? SPW__EXIT_DONE : spw__cli_fail("%s", spw_last_error());
}
