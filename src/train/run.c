#include "train/run.h"

#include "base/error.h"
#include "base/sizes.h"
#include "train/resume.h"
#include "train/room.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SEQ = 2048 };

/* ------------------------------------------------------------------ what is said before step 1 */

static void say_data(spw__run *run)
{
    const spw__data *d = &run->data;
    spw__progress_say(&run->progress,
                      "%zu rows, %" PRIu64 " tokens, loss on %" PRIu64 " of them; longest row %u",
                      d->n_rows, d->n_tokens, d->n_targets, d->longest);
    if (d->n_truncated)
        spw__progress_say(&run->progress, "%zu rows are cut to --seq %u", d->n_truncated, run->seq);
    if (d->n_skipped)
        spw__progress_say(&run->progress, "%zu rows are longer than --seq and left out",
                          d->n_skipped);
    if (d->n_empty)
        spw__progress_say(&run->progress, "%zu rows have nothing to learn from and are left out",
                          d->n_empty);
}

uint64_t spw__run_elements(const spw__run *run)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < run->n_trained; i++)
        elements += run->trained[i].n;
    return elements;
}

static const char *name_of_paging(spw_paging paging)
{
    static const char *const names[] = {"auto", "copy", "mapped", "unified", "off"};
    return names[paging];
}

static void say_state_cap(const spw_pager_config *pager, char *text, size_t bytes)
{
    char size[24];
    if (pager->state_percent >= 0)
        (void)snprintf(text, bytes, "at most %g%%", pager->state_percent);
    else if (pager->state_mem != SPW_ALL_STATE)
        (void)snprintf(text, bytes, "at most %s",
                       spw__format_size(pager->state_mem, size, sizeof size));
    else
        (void)snprintf(text, bytes, "what fits");
}

static void say_memory(spw__run *run)
{
    char state[24], page[24], used[24], has[24], cap[48];
    uint64_t bytes = 0;
    spw_device_stats device;
    spw_pager_stats pager;
    for (size_t i = 0; i < run->n_trained; i++)
        bytes += spw__room_state_bytes(&run->asked->optim, run->trained[i].n);
    (void)spw_device_stats_get(run->device, &device);
    (void)spw_pager_stats_get(run->pager, &pager);
    say_state_cap(&run->asked->pager, cap, sizeof cap);
    spw__progress_say(&run->progress,
                      "training %" PRIu64 " parameters in %zu tensors; %s of %s on the device are "
                      "weights and gradients",
                      spw__run_elements(run), run->n_trained,
                      spw__format_size(device.in_use_bytes, used, sizeof used),
                      spw__format_size(device.capacity_bytes, has, sizeof has));
    spw__progress_say(
        &run->progress,
        "optimizer state: %s in pages of %s, paging %s, store %s, on the device: %s",
        spw__format_size(bytes, state, sizeof state),
        spw__format_size(spw_pager_page_bytes(&run->asked->pager, bytes), page, sizeof page),
        name_of_paging(pager.paging), run->asked->pager.store,
        pager.paging == SPW_PAGING_OFF      ? "all"
        : pager.paging == SPW_PAGING_MAPPED ? "none"
                                            : cap);
}

/* ---------------------------------------------------------------------------------- the cheap */

static int choose_seq(spw__run *run)
{
    uint32_t positions = run->config.max_positions;
    run->seq = run->asked->seq;
    if (run->seq == 0)
        run->seq = positions && positions < DEFAULT_SEQ ? positions : DEFAULT_SEQ;
    if (positions && run->seq > positions)
        return spw__error(SPW_EINVAL,
                          "--seq %u: %s has max_position_embeddings %u; lower --seq to it",
                          run->seq, run->asked->model, positions);
    return 0;
}

/* A tokenizer of another model gives ids that the embedding has no row for. */
static int check_ids(const spw__run *run)
{
    for (size_t i = 0; i < run->data.n_rows; i++) {
        const spw__row *row = &run->data.rows[i];
        for (uint32_t t = 0; t < row->n; t++)
            if ((int64_t)row->tokens[t] >= run->config.vocab ||
                (int64_t)row->targets[t] >= run->config.vocab)
                return spw__error(SPW_EFORMAT,
                                  "%s: line %" PRIu64 " has a token that %s has no embedding for "
                                  "(vocab_size %u): tokenizer.json is of another model",
                                  run->asked->data, row->line, run->asked->model,
                                  run->config.vocab);
    }
    return 0;
}

static int load_data(spw__run *run)
{
    const spw__finetune *asked = run->asked;
    spw__data_config config = {
        .max_tokens = run->seq, .too_long = asked->too_long, .template = asked->template};
    int rc = spw__tokenizer_load(asked->model, &run->tokenizer);
    if (rc == 0)
        rc = spw__data_load(asked->data, run->tokenizer, &config, &run->data);
    if (rc == 0)
        rc = check_ids(run);
    if (rc == 0)
        rc = spw__feed_init(&run->feed, &run->data, asked->seed, asked->batch, asked->accum);
    return rc;
}

static void plan_steps(spw__run *run)
{
    const spw__finetune *asked = run->asked;
    run->steps =
        asked->steps ? asked->steps : asked->epochs * spw__feed_steps_per_epoch(&run->feed);
    run->schedule = spw__schedule_of(asked->schedule, asked->lr, asked->warmup, run->steps);
    spw__progress_plan(&run->progress, run->steps);
    say_data(run);
}

/* ------------------------------------------------------------------------------ the expensive */

static int open_device(spw__run *run)
{
    int rc = spw_device_open(run->asked->device, &run->asked->device_config, &run->device);
    if (rc == 0)
        rc = spw_pager_create(run->device, &run->asked->pager, &run->pager);
    if (rc == 0)
        rc = spw__pool_create(run->asked->device_config.threads, &run->pool);
    return rc;
}

static int load_weights(spw__run *run)
{
    const spw__finetune *asked = run->asked;
    const char *start = run->start.path;
    const char *model = asked->full && start ? start : asked->model;
    const char *adapter = start ? start : asked->adapter;
    int rc = spw__weights_load(model, run->pager, asked->base, asked->full, &run->weights);
    if (rc < 0 || asked->full)
        return rc;
    run->lora = asked->lora;
    if (adapter)
        return spw__adapter_load(&run->weights, adapter, &run->lora);
    return spw__adapter_create(&run->weights, &run->lora);
}

/* Norms and biases: one row in the file. A pair of rank 1 has one row too, and decays. */
static bool decays(const spw__run *run, const spw__trained *t)
{
    return !run->asked->full || t->rows > 1;
}

static int add_trained(spw__run *run)
{
    spw_group still = run->asked->optim.group;
    still.weight_decay = 0;
    int group = spw_optim_add_group(run->optim, &still);
    if (group < 0)
        return group;
    for (size_t i = 0; i < run->n_trained; i++) {
        const spw__trained *t = &run->trained[i];
        spw_param param = {.name = t->name,
                           .data = t->data,
                           .grad = t->grad,
                           .n = t->n,
                           .type = t->type,
                           .grad_type = SPW_FP32,
                           .group = decays(run, t) ? 0 : (uint32_t)group};
        int64_t index = spw_optim_add(run->optim, &param);
        if (index < 0)
            return (int)index;
    }
    return 0;
}

static int make_optim(spw__run *run)
{
    int rc = spw__weights_trained(&run->weights, &run->trained, &run->n_trained);
    if (rc == 0)
        rc = spw_optim_create(run->pager, &run->asked->optim, &run->optim);
    if (rc == 0)
        rc = add_trained(run);
    return rc == 0 ? spw_optim_lay_out(run->optim) : rc; /* a store that is too small shows now */
}

/* What the room check could not foresee (an adapter's rank, gaps) gets its remedy here. */
static int explain_loading(int rc)
{
    if (rc != SPW_ENOMEM)
        return rc;
    return spw__error(rc, "loading the model: %s; raise --device-mem", spw_last_error());
}

static uint64_t bytes_to_keep(const spw__run *run)
{
    spw_device_stats stats;
    if (run->asked->keep != SPW__KEEP_BY_MEMORY)
        return run->asked->keep;
    return spw_device_stats_get(run->device, &stats) < 0 ? 0 : stats.capacity_bytes / 8;
}

static int load_model(spw__run *run)
{
    int rc = load_weights(run);
    if (rc == 0)
        rc = spw__model_create(&run->weights, run->pool, &run->model);
    if (rc == 0)
        spw__model_keep(run->model, bytes_to_keep(run));
    if (rc == 0)
        rc = make_optim(run);
    if (rc == 0)
        rc = spw__resume_take(run);
    return explain_loading(rc);
}

static int open_cheap(spw__run *run)
{
    const spw__finetune *asked = run->asked;
    int rc = spw__runlog_open(&run->log, asked->log, run->start.step);
    if (rc == 0)
        rc = spw__model_config_load(asked->model, &run->config);
    if (rc == 0)
        rc = choose_seq(run);
    if (rc == 0)
        rc = open_device(run);
    if (rc == 0)
        rc = spw__room_check(run);
    if (rc == 0)
        rc = load_data(run);
    return rc;
}

int spw__run_open(spw__run *run, const spw__finetune *asked)
{
    *run = (spw__run){.asked = asked};
    spw__progress_init(&run->progress, asked->screen, asked->live);
    int rc = spw__resume_find(run);
    if (rc < 0 || run->complete)
        return rc;
    rc = spw__outdir_begin(&run->out, asked->out);
    if (rc == 0)
        rc = open_cheap(run);
    if (rc == 0) {
        plan_steps(run);
        rc = spw__resume_check(run);
    }
    if (rc == 0)
        rc = load_model(run);
    if (rc == 0)
        say_memory(run);
    return rc;
}

void spw__run_close(spw__run *run)
{
    spw_optim_destroy(run->optim);
    free(run->trained);
    spw__model_destroy(run->model);
    if (run->weights.pager)
        spw__weights_free(&run->weights);
    spw__pool_destroy(run->pool);
    spw_pager_destroy(run->pager);
    spw_device_close(run->device);
    spw__feed_deinit(&run->feed);
    spw__data_free(&run->data);
    spw__tokenizer_free(run->tokenizer);
    spw__runlog_close(&run->log);
    spw__outdir_abandon(&run->out);
    spw__checkpoint_free(&run->start);
}
