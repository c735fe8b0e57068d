#include "train/resume.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- what makes a run this run --
 */

static void set(json_t *object, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void set(json_t *object, const char *key, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)json_object_set_new(object, key, json_vsprintf(format, arguments));
    va_end(arguments);
}

/* The shortest decimal that is this number. */
static void set_real(json_t *object, const char *key, double value)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    set(object, key, "%s", text);
}

static void set_adapter(json_t *options, const spw__finetune *asked)
{
    if (asked->adapter) {
        set(options, "adapter", "%s", asked->adapter);
        return;
    }
    set(options, "rank", "%u", asked->lora.rank);
    set_real(options, "alpha", asked->lora.alpha);
    set_real(options, "dropout", asked->lora.dropout);
    char targets[128] = "";
    for (int i = 0; i < SPW__N_LINEAR; i++)
        if (asked->lora.targets >> i & 1) {
            strcat(targets, *targets ? "," : "");
            strcat(targets, strchr(spw__linear_names[i], '.') + 1);
        }
    set(options, "targets", "%s", targets);
}

/* By the names of the command's options. */
static json_t *options_of(const spw__run *run)
{
    static const char *const bases[] = {"fp32", "bf16", "nf4", "as stored"};
    static const char *const too_long[] = {"truncate", "skip", "error"};
    const spw__finetune *asked = run->asked;
    json_t *options = json_object();
    set(options, "full", "%s", asked->full ? "yes" : "no");
    if (!asked->full)
        set_adapter(options, asked);
    set(options, "base", "%s", bases[asked->base]);
    set(options, "state", "%s", asked->optim.state == SPW_STATE_8BIT ? "8bit" : "32bit");
    set(options, "steps", "%" PRIu64, run->steps);
    set(options, "batch", "%u", asked->batch);
    set(options, "accum", "%u", asked->accum);
    set(options, "seq", "%u", run->seq);
    set(options, "too-long", "%s", too_long[asked->too_long]);
    set(options, "template", "%s", asked->template ? asked->template : "by the tokenizer");
    set_real(options, "lr", asked->lr);
    set_real(options, "warmup", asked->warmup);
    set(options, "schedule", "%s", asked->schedule == SPW__COSINE ? "cosine" : "constant");
    set_real(options, "weight-decay", asked->optim.group.weight_decay);
    set_real(options, "clip", asked->clip);
    set(options, "seed", "%" PRIu64, asked->seed);
    return options;
}

static uint32_t data_crc(const spw__data *data)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < data->n_rows; i++) {
        const spw__row *row = &data->rows[i];
        crc = spw__crc32c(crc, &row->n, sizeof row->n);
        crc = spw__crc32c(crc, row->tokens, row->n * sizeof *row->tokens);
        crc = spw__crc32c(crc, row->targets, row->n * sizeof *row->targets);
    }
    return crc;
}

/* -------------------------------------------------------------------------------------- saving --
 */

static json_t *describe(const spw__run *run)
{
    json_t *document = json_object(), *schedule = json_object(), *data = json_object();
    json_t *noise = json_object();
    set(schedule, "kind", "%s", run->schedule.kind == SPW__COSINE ? "cosine" : "constant");
    set_real(schedule, "peak", run->schedule.peak);
    set(schedule, "warmup", "%" PRIu64, run->schedule.warmup);
    set(schedule, "steps", "%" PRIu64, run->schedule.steps);
    set(data, "file", "%s", run->asked->data);
    set(data, "rows", "%zu", run->data.n_rows);
    set(data, "tokens_crc32c", "%08" PRIx32, data_crc(&run->data));
    set(data, "epoch", "%" PRIu64, run->feed.epoch);
    set(data, "row", "%zu", run->feed.at + run->feed.n);
    set(noise, "generator", "philox4x32-10, keyed by seed, step and place");
    set(noise, "seed", "%" PRIu64, run->asked->seed);
    set(noise, "step", "%" PRIu64, run->done);
    set(document, "library", "%s", spw_version());
    set(document, "model", "%s", run->asked->model);
    set(document, "model_crc32c", "%08" PRIx32, run->model_crc);
    set(document, "skipped_in_a_row", "%u", run->skipped);
    (void)json_object_set_new(document, "schedule", schedule);
    (void)json_object_set_new(document, "data", data);
    (void)json_object_set_new(document, "random", noise);
    (void)json_object_set_new(document, "options", options_of(run));
    return document;
}

static int save_files(spw__run *run, const char *folder)
{
    char *optimizer = spw__path_join(folder, SPW__CHECKPOINT_OPTIMIZER);
    if (!optimizer)
        return SPW_EHOSTMEM;
    int rc = run->asked->full
                 ? spw__weights_save(&run->weights, run->asked->model, folder)
                 : spw__adapter_save(&run->weights, &run->lora, run->asked->model, folder);
    if (rc == 0)
        rc = spw_optim_save(run->optim, optimizer);
    free(optimizer);
    return rc;
}

static int save(spw__run *run)
{
    char *staging;
    int rc = spw__runlog_sync(&run->log); /* what is cut back later must be there */
    if (rc == 0)
        rc = spw__checkpoint_begin(run->asked->out, &staging);
    if (rc < 0)
        return rc;
    rc = save_files(run, staging);
    if (rc < 0) {
        spw__checkpoint_abandon(staging);
        return rc;
    }
    json_t *document = describe(run);
    rc = spw__checkpoint_commit(run->asked->out, staging, run->done, document);
    json_decref(document);
    return rc;
}

int spw__resume_save(spw__run *run)
{
    int rc = save(run);
    if (rc < 0)
        return spw__error(rc, "checkpoint-%" PRIu64 ": not written: %s", run->done,
                          spw_last_error());
    spw__checkpoint_retire(run->asked->out, run->done, run->kept);
    run->kept = run->done;
    return 0;
}

/* ------------------------------------------------------------------------------------ resuming --
 */

static int refuse_others_work(const spw__run *run)
{
    if (!spw__checkpoint_any(run->asked->out))
        return 0;
    return spw__error(SPW_EEXIST,
                      "--out %s: holds checkpoints of another run: add --resume to go on from the "
                      "newest, or name another folder",
                      run->asked->out);
}

int spw__resume_find(spw__run *run)
{
    const char *out = run->asked->out;
    if (!run->asked->resume)
        return refuse_others_work(run);
    spw__checkpoint_sweep(out);
    run->complete = spw__outdir_has_result(out);
    if (run->complete) {
        spw__progress_say(&run->progress, "%s: the run is complete", out);
        return 0;
    }
    int rc = spw__checkpoint_find(out, &run->progress, &run->start);
    if (rc == 0 && run->start.path)
        spw__progress_say(&run->progress, "resuming after step %" PRIu64 ", from %s",
                          run->start.step, run->start.path);
    else if (rc == 0)
        spw__progress_say(&run->progress, "%s: no valid checkpoint, starting afresh", out);
    return rc;
}

static int check_options(const spw__run *run, const json_t *options)
{
    const char *name;
    json_t *now, *mine = options_of(run);
    int rc = 0;
    json_object_foreach(mine, name, now)
    {
        const char *then = json_string_value(json_object_get(options, name));
        if (rc < 0 || (then && strcmp(then, json_string_value(now)) == 0))
            continue;
        rc = spw__error(SPW_EINVAL,
                        "--%s: is %s, %s is of a run with %s: give that, or start afresh in "
                        "another --out",
                        name, json_string_value(now), run->start.path, then ? then : "none");
    }
    json_decref(mine);
    return rc;
}

static int check_data(const spw__run *run, const json_t *data)
{
    char crc[16];
    (void)snprintf(crc, sizeof crc, "%08" PRIx32, data_crc(&run->data));
    const char *then = json_string_value(json_object_get(data, "tokens_crc32c"));
    if (then && strcmp(then, crc) == 0)
        return 0;
    return spw__error(
        SPW_EINVAL,
        "--data %s: its rows or their tokens are not those of the run of %s: give the "
        "same data and model, or start afresh in another --out",
        run->asked->data, run->start.path);
}

int spw__resume_check(const spw__run *run)
{
    if (!run->start.path)
        return 0;
    int rc = check_options(run, json_object_get(run->start.document, "options"));
    return rc == 0 ? check_data(run, json_object_get(run->start.document, "data")) : rc;
}

static uint64_t number_in(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? strtoull(text, NULL, 10) : 0;
}

/* The order of an epoch follows from the seed, so the place follows from the step; the document
 * says it too. */
static int seek(spw__run *run)
{
    const json_t *data = json_object_get(run->start.document, "data");
    uint64_t epoch = number_in(data, "epoch"), row = number_in(data, "row");
    spw__feed_seek(&run->feed, run->start.step);
    bool same = run->feed.epoch == epoch && run->feed.at == row;
    bool at_end = run->feed.epoch == epoch + 1 && run->feed.at == 0 && row == run->data.n_rows;
    if (same || at_end)
        return 0;
    return spw__error(SPW_EFORMAT,
                      "%s: its place in the data is epoch %" PRIu64 ", row %" PRIu64
                      "; after %" PRIu64 " steps it is epoch %" PRIu64 ", row %zu",
                      run->start.path, epoch, row, run->start.step, run->feed.epoch, run->feed.at);
}

/* A model that is trained whole lies in the checkpoint. */
static int check_model(spw__run *run)
{
    if (run->asked->full || (!run->start.path && !run->asked->save_every))
        return 0;
    int rc = spw__weights_checksum(&run->weights, &run->model_crc);
    if (rc < 0 || !run->start.path)
        return rc;
    char crc[16];
    (void)snprintf(crc, sizeof crc, "%08" PRIx32, run->model_crc);
    const char *then = json_string_value(json_object_get(run->start.document, "model_crc32c"));
    if (then && strcmp(then, crc) == 0)
        return 0;
    return spw__error(
        SPW_EINVAL,
        "--model %s: its tensors are not those of the run of %s: give the same model, "
        "or start afresh in another --out",
        run->asked->model, run->start.path);
}

int spw__resume_take(spw__run *run)
{
    int rc = check_model(run);
    if (rc < 0 || !run->start.path)
        return rc;
    char *optimizer = spw__path_join(run->start.path, SPW__CHECKPOINT_OPTIMIZER);
    rc = optimizer ? spw_optim_load(run->optim, optimizer) : SPW_EHOSTMEM;
    free(optimizer);
    if (rc == 0)
        rc = seek(run);
    run->done = run->kept = run->start.step;
    run->skipped = (uint32_t)number_in(run->start.document, "skipped_in_a_row");
    run->progress.before = run->done;
    return rc;
}
