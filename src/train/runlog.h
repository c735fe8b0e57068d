/*
 * runlog.h - what one step did, and the log of a run: one JSON object a step, a line each.
 *
 * The file is opened before anything expensive, so that an unwritable one stops the run at once,
 * but what an earlier run left in it is cut away only when the first step is written; a file that
 * was made and got no line is removed. Every line is flushed. One thread.
 */
#ifndef SPW_TRAIN_RUNLOG_H
#define SPW_TRAIN_RUNLOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct spw__step_record {
    uint64_t step;   /* from 1 */
    double loss;     /* mean over the step's target tokens */
    uint64_t tokens; /* that were run */
    double lr;
    double grad_norm;        /* before clipping; not a number when the step was skipped unseen */
    double ms;               /* of the whole step */
    uint64_t device_bytes;   /* in use when the step ended: weights, gradients, frames */
    uint64_t capacity_bytes; /* what the device has (not logged) */
    uint64_t state_bytes;    /* all optimizer state (not logged) */
    uint64_t resident_bytes; /* of the state, on the device when the step ended */
    uint64_t bytes_in;       /* state moved during this step, and so on */
    uint64_t bytes_out;
    uint64_t bytes_cleaned;
    uint64_t reclaims;
    bool skipped; /* the optimizer took no step: loss or gradient not finite (not logged) */
} spw__step_record;

typedef struct spw__runlog {
    FILE *file; /* NULL: no log */
    const char *path;
    bool made;     /* there was no such file */
    bool written;  /* a line was */
    uint64_t keep; /* bytes that are not cut away: lines of steps that stay */
} spw__runlog;

/* `path` NULL: no log, and the other calls do nothing. Lines up to step `after`, of a run that goes
 * on from there, stay; 0: none does. */
int spw__runlog_open(spw__runlog *log, const char *path, uint64_t after);
int spw__runlog_write(spw__runlog *log, const spw__step_record *record);
int spw__runlog_sync(spw__runlog *log); /* to the disk */
void spw__runlog_close(spw__runlog *log);

#endif
