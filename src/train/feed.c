#include "train/feed.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/philox.h"

#include <stdlib.h>
#include <string.h>

/* Keeps these draws apart from others under the same seed: "shuffle" in ASCII. */
static const uint64_t purpose = UINT64_C(0x73687566666C65);

static uint64_t draw(uint64_t seed, uint64_t epoch, uint64_t place)
{
    uint64_t mixed = seed ^ purpose;
    uint32_t key[2] = {(uint32_t)mixed, (uint32_t)(mixed >> 32)};
    uint32_t bits[4] = {(uint32_t)place, (uint32_t)(place >> 32), (uint32_t)epoch,
                        (uint32_t)(epoch >> 32)};
    spw__philox(bits, key, bits);
    return (uint64_t)bits[1] << 32 | bits[0];
}

void spw__feed_shuffle(size_t *order, size_t n, uint64_t seed, uint64_t epoch)
{
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t other = (size_t)(draw(seed, epoch, i) % i);
        size_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

int spw__feed_init(spw__feed *feed, const spw__data *data, uint64_t seed, uint32_t batch,
                   uint32_t accum)
{
    *feed = (spw__feed){.data = data, .seed = seed, .batch = batch, .accum = accum};
    size_t rows = data->n_rows < batch ? data->n_rows : batch;
    if (rows * (uint64_t)data->longest > INT32_MAX)
        return spw__error(SPW_EINVAL,
                          "--batch %u: %zu rows of up to %u tokens are too many for one "
                          "batch; lower it and raise --accum",
                          batch, rows, data->longest);
    feed->order = spw__calloc(data->n_rows, sizeof *feed->order);
    feed->tokens = spw__calloc(rows * data->longest, sizeof *feed->tokens);
    feed->targets = spw__calloc(rows * data->longest, sizeof *feed->targets);
    feed->starts = spw__calloc(rows + 1, sizeof *feed->starts);
    if (feed->order && feed->tokens && feed->targets && feed->starts) {
        spw__feed_shuffle(feed->order, data->n_rows, seed, 0);
        return 0;
    }
    spw__feed_deinit(feed);
    return SPW_EHOSTMEM;
}

void spw__feed_deinit(spw__feed *feed)
{
    free(feed->order);
    free(feed->tokens);
    free(feed->targets);
    free(feed->starts);
    *feed = (spw__feed){.data = NULL};
}

static size_t rows_a_step(const spw__feed *feed)
{
    return (size_t)feed->batch * feed->accum;
}

uint64_t spw__feed_steps_per_epoch(const spw__feed *feed)
{
    return (feed->data->n_rows + rows_a_step(feed) - 1) / rows_a_step(feed);
}

void spw__feed_next(spw__feed *feed)
{
    feed->at += feed->n;
    if (feed->at >= feed->data->n_rows) {
        feed->at = 0;
        spw__feed_shuffle(feed->order, feed->data->n_rows, feed->seed, ++feed->epoch);
    }
    size_t left = feed->data->n_rows - feed->at;
    feed->n = left < rows_a_step(feed) ? left : rows_a_step(feed);
}

void spw__feed_seek(spw__feed *feed, uint64_t step)
{
    uint64_t steps = spw__feed_steps_per_epoch(feed);
    feed->epoch = step / steps;
    feed->at = (size_t)(step % steps) * rows_a_step(feed);
    feed->n = 0;
    spw__feed_shuffle(feed->order, feed->data->n_rows, feed->seed, feed->epoch);
}

uint32_t spw__feed_batches(const spw__feed *feed)
{
    return (uint32_t)((feed->n + feed->batch - 1) / feed->batch);
}

static const spw__row *row_of_step(const spw__feed *feed, size_t index)
{
    return &feed->data->rows[feed->order[feed->at + index]];
}

uint64_t spw__feed_tokens(const spw__feed *feed)
{
    uint64_t tokens = 0;
    for (size_t i = 0; i < feed->n; i++)
        tokens += row_of_step(feed, i)->n;
    return tokens;
}

uint64_t spw__feed_targets(const spw__feed *feed)
{
    uint64_t targets = 0;
    for (size_t i = 0; i < feed->n; i++)
        targets += row_of_step(feed, i)->n_targets;
    return targets;
}

static size_t end_of_batch(const spw__feed *feed, uint32_t index)
{
    size_t end = ((size_t)index + 1) * feed->batch;
    return end < feed->n ? end : feed->n;
}

void spw__feed_batch(spw__feed *feed, uint32_t index, spw__batch *batch)
{
    *batch = (spw__batch){feed->tokens, feed->targets, feed->starts, 0, 0};
    for (size_t i = (size_t)index * feed->batch; i < end_of_batch(feed, index); i++) {
        const spw__row *row = row_of_step(feed, i);
        memcpy(feed->tokens + batch->n_tokens, row->tokens, row->n * sizeof *row->tokens);
        memcpy(feed->targets + batch->n_tokens, row->targets, row->n * sizeof *row->targets);
        batch->n_tokens += row->n;
        feed->starts[++batch->n_rows] = batch->n_tokens;
    }
}

const spw__row *spw__feed_longest(const spw__feed *feed, uint32_t index)
{
    const spw__row *longest = row_of_step(feed, (size_t)index * feed->batch);
    for (size_t i = (size_t)index * feed->batch; i < end_of_batch(feed, index); i++)
        if (row_of_step(feed, i)->n > longest->n)
            longest = row_of_step(feed, i);
    return longest;
}
