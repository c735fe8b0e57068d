#include "train/loop.h"

#include "base/error.h"
#include "base/sizes.h"
#include "train/resume.h"
#include "train/run.h"
#include "train/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SKIPPED = 10 }; /* steps in a row without a finite loss or gradient */

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ------------------------------------------------------------------------ out of device memory */

static void say_remedy(const spw__run *run, char *text, size_t bytes)
{
    char size[24], moved[24];
    spw_pager_stats pager;
    (void)spw_pager_stats_get(run->pager, &pager);
    if (pager.paging == SPW_PAGING_OFF && pager.resident_bytes)
        (void)snprintf(text, bytes, "`--paging copy` lets %s of optimizer state give way",
                       spw__format_size(pager.resident_bytes, size, sizeof size));
    else if (pager.paging == SPW_PAGING_OFF)
        (void)snprintf(text, bytes,
                       "raise --device-mem or lower --seq (no optimizer state is there "
                       "yet to give way)");
    else if (pager.paging == SPW_PAGING_MAPPED)
        (void)snprintf(text, bytes,
                       "no optimizer state is on the device (paging mapped): raise "
                       "--device-mem or lower --seq");
    else
        (void)snprintf(
            text, bytes,
            "%s of optimizer state gave way so far and %s is left: raise --device-mem or "
            "lower --seq",
            spw__format_size(pager.bytes_reclaimed, moved, sizeof moved),
            spw__format_size(pager.resident_bytes, size, sizeof size));
}

static int explain_batch(const spw__run *run, uint64_t step, uint32_t batch, int rc)
{
    if (rc != SPW_ENOMEM)
        return spw__error(rc, "step %" PRIu64 ": %s", step, spw_last_error());
    char remedy[200];
    const spw__row *row = spw__feed_longest(&run->feed, batch);
    say_remedy(run, remedy, sizeof remedy);
    return spw__error(rc, "step %" PRIu64 ", sample %s:%" PRIu64 " (%u tokens): %s; %s", step,
                      run->asked->data, row->line, row->n, spw_last_error(), remedy);
}

static int explain_update(const spw__run *run, uint64_t step, int rc)
{
    const char *remedy = "";
    if (rc == SPW_ENOMEM)
        remedy = run->asked->pager.paging == SPW_PAGING_OFF
                     ? "; `--paging copy` keeps what does not fit in RAM or on disk"
                     : "; raise --device-mem or lower --page-size";
    return spw__error(rc, "step %" PRIu64 ", update: %s%s", step, spw_last_error(), remedy);
}

/* ------------------------------------------------------------------------------------ one step */

static void zero_gradients(spw__run *run)
{
    for (size_t i = 0; i < run->n_trained; i++)
        memset(run->trained[i].grad, 0, (size_t)run->trained[i].n * sizeof(float));
}

/* Forward and backward of all micro-batches; gradients are of the mean over all target tokens. */
static int learn(spw__run *run, spw__step_record *record)
{
    uint64_t targets = spw__feed_targets(&run->feed);
    double sum = 0;
    for (uint32_t i = 0; i < spw__feed_batches(&run->feed); i++) {
        spw__batch batch;
        spw__noise noise = {run->asked->seed, record->step, i};
        double loss;
        spw__feed_batch(&run->feed, i, &batch);
        int rc = spw__model_loss(run->model, &batch, 1.0 / (double)targets, &noise, &loss);
        if (rc < 0)
            return explain_batch(run, record->step, i, rc);
        sum += loss;
    }
    record->loss = sum / (double)targets;
    record->tokens = spw__feed_tokens(&run->feed);
    return 0;
}

static int update(spw__run *run, spw__step_record *record)
{
    spw_optim_info before, after;
    (void)spw_optim_info_get(run->optim, &before);
    record->lr = spw__schedule_rate(&run->schedule, record->step - 1);
    record->grad_norm = NAN;
    record->skipped = !isfinite(record->loss);
    if (record->skipped)
        return 0;
    spw_step step = {.lr = record->lr, .max_norm = run->asked->clip};
    int rc = spw_optim_step(run->optim, &step);
    if (rc == 0 && run->asked->clip == 0)
        rc = spw_optim_grad_norm(run->optim, &record->grad_norm);
    if (rc < 0)
        return explain_update(run, record->step, rc);
    (void)spw_optim_info_get(run->optim, &after);
    record->skipped = after.skipped > before.skipped;
    if (run->asked->clip > 0)
        record->grad_norm = after.grad_norm;
    return 0;
}

static void count(spw__run *run, const spw_pager_stats *before, spw__step_record *record)
{
    spw_pager_stats pager;
    spw_device_stats device;
    (void)spw_pager_stats_get(run->pager, &pager);
    (void)spw_device_stats_get(run->device, &device);
    record->device_bytes = device.in_use_bytes;
    record->capacity_bytes = device.capacity_bytes;
    record->state_bytes = pager.state_bytes;
    record->resident_bytes = pager.resident_bytes;
    record->bytes_in = pager.bytes_in - before->bytes_in;
    record->bytes_out = pager.bytes_out - before->bytes_out;
    record->bytes_cleaned = pager.bytes_cleaned - before->bytes_cleaned;
    record->reclaims = pager.reclaims - before->reclaims;
}

static int take_step(spw__run *run, spw__step_record *record)
{
    spw_pager_stats before;
    double begin = now_ms();
    (void)spw_pager_stats_get(run->pager, &before);
    spw__feed_next(&run->feed);
    int rc = learn(run, record);
    if (rc == 0)
        rc = update(run, record);
    if (rc < 0)
        return rc;
    zero_gradients(run);
    count(run, &before, record);
    record->ms = now_ms() - begin;
    spw__progress_step(&run->progress, record);
    return spw__runlog_write(&run->log, record);
}

/* ------------------------------------------------------------------------------------ the loop */

static int note_skipped(spw__run *run, const spw__step_record *record)
{
    if (!record->skipped) {
        run->skipped = 0;
        return 0;
    }
    spw__progress_say(&run->progress, "step %" PRIu64 ": %s not finite: step skipped", record->step,
                      isfinite(record->loss) ? "the gradient is" : "the loss is");
    if (++run->skipped < MAX_SKIPPED)
        return 0;
    return spw__error(SPW_EINVAL,
                      "step %" PRIu64 ": loss or gradient not finite for %d steps in a row; lower "
                      "--lr or check the model's files",
                      record->step, MAX_SKIPPED);
}

static int stopped(spw__run *run)
{
    const char *out = run->asked->out;
    if (run->asked->save_every && run->done > run->kept) {
        int rc = spw__resume_save(run);
        if (rc < 0)
            return rc;
    }
    if (run->kept)
        return spw__error(SPW__FINETUNE_STOPPED,
                          "stopped after step %" PRIu64 " of %" PRIu64
                          ": --resume goes on from %s/checkpoint-%" PRIu64,
                          run->done, run->steps, out, run->kept);
    return spw__error(SPW__FINETUNE_STOPPED,
                      "stopped after step %" PRIu64 " of %" PRIu64 ": what was learned is lost, "
                      "nothing was written to %s",
                      run->done, run->steps, out);
}

static int take_steps(spw__run *run)
{
    int rc = 0;
    while (rc == 0 && run->done < run->steps) {
        spw__step_record record = {.step = run->done + 1};
        if (*run->asked->stop)
            return stopped(run);
        rc = take_step(run, &record);
        if (rc == 0)
            rc = note_skipped(run, &record);
        run->done += rc == 0;
        if (rc == 0 && run->asked->save_every && run->done % run->asked->save_every == 0)
            rc = spw__resume_save(run);
    }
    return rc;
}

/* ------------------------------------------------------------------------- before and after it */

static int say_sample(spw__run *run, const char *when)
{
    char *continuation;
    if (!run->asked->sample)
        return 0;
    int rc = spw__sample(run->model, run->tokenizer, run->config.vocab, run->asked->sample,
                         &continuation);
    if (rc < 0)
        return spw__error(rc, "sample %s training: %s", when, spw_last_error());
    spw__progress_say(&run->progress, "%s training: %s|%s", when, run->asked->sample, continuation);
    free(continuation);
    return 0;
}

static int write_result(spw__run *run)
{
    const spw__finetune *asked = run->asked;
    int rc = spw__outdir_stage(&run->out);
    if (rc == 0 && asked->full)
        rc = spw__weights_save(&run->weights, asked->model, run->out.staging);
    else if (rc == 0)
        rc = spw__adapter_save(&run->weights, &run->lora, asked->model, run->out.staging);
    if (rc < 0)
        return spw__error(rc, "--out %s: not written: %s", asked->out, spw_last_error());
    rc = spw__outdir_commit(&run->out);
    if (rc == 0)
        spw__progress_say(&run->progress, "%s: the %s", asked->out,
                          asked->full ? "model" : "adapter");
    return rc;
}

static int train(spw__run *run)
{
    int rc = run->done ? 0 : say_sample(run, "before");
    if (rc == 0)
        rc = take_steps(run);
    if (rc == 0)
        rc = say_sample(run, "after");
    return rc == 0 ? write_result(run) : rc;
}

int spw__finetune_run(const spw__finetune *finetune)
{
    spw__run run;
    int rc = spw__run_open(&run, finetune);
    if (rc == 0 && !run.complete)
        rc = train(&run);
    if (run.progress.open)
        spw__progress_say(&run.progress, "%s", "");
    spw__run_close(&run);
    return rc;
}
