/*
 * feed.h - which rows make a step, and the batches they become.
 *
 * Rows are shuffled anew each epoch, by (seed, epoch) alone, so a run can be repeated and an epoch
 * made again without its past. A step takes batch * accum rows; the last of an epoch takes what is
 * left. Host memory only; one thread; the data must outlive the feed.
 */
#ifndef SPW_TRAIN_FEED_H
#define SPW_TRAIN_FEED_H

#include "train/data.h"
#include "train/model.h"

typedef struct spw__feed {
    const spw__data *data;
    uint64_t seed;
    uint64_t epoch;  /* of `order`, from 0 */
    uint32_t batch;  /* rows a micro-batch */
    uint32_t accum;  /* micro-batches a step */
    size_t *order;   /* rows in this epoch's order */
    size_t at;       /* in order: the step's first row */
    size_t n;        /* rows of the step; 0 before the first */
    int32_t *tokens; /* of the micro-batch that was made last */
    int32_t *targets;
    uint32_t *starts;
} spw__feed;

int spw__feed_init(spw__feed *feed, const spw__data *data, uint64_t seed, uint32_t batch,
                   uint32_t accum);
void spw__feed_deinit(spw__feed *feed); /* a zeroed one is allowed */

uint64_t spw__feed_steps_per_epoch(const spw__feed *feed);

/* Goes to the next step's rows. */
void spw__feed_next(spw__feed *feed);

/* To where `step` steps from the beginning lead: the next is step + 1. */
void spw__feed_seek(spw__feed *feed, uint64_t step);

/* Of the step: micro-batches, tokens to run, places where the loss counts. */
uint32_t spw__feed_batches(const spw__feed *feed);
uint64_t spw__feed_tokens(const spw__feed *feed);
uint64_t spw__feed_targets(const spw__feed *feed);

/* The step's micro-batch `index`; valid until the next call. */
void spw__feed_batch(spw__feed *feed, uint32_t index, spw__batch *batch);

/* Its longest row: the one to name when memory ran out. */
const spw__row *spw__feed_longest(const spw__feed *feed, uint32_t index);

/* The order of `n` rows in an epoch: Fisher-Yates with a Philox draw keyed by (seed, epoch, place).
 */
void spw__feed_shuffle(size_t *order, size_t n, uint64_t seed, uint64_t epoch);

#endif
