/*
 * schedule.h - the learning rate of a step.
 *
 * Linear warm-up, then a cosine to 0 or a constant, the shape of transformers'
 * get_cosine_schedule_with_warmup and get_constant_schedule_with_warmup with one difference: their
 * first step has rate 0 and so does nothing; here step k (from 0) of a warm-up of w steps has
 * peak * (k + 1) / w, and the rate stands at its peak in step w - 1. After it the cosine goes on
 * from step w as theirs does. Pure functions, in double.
 */
#ifndef SPW_TRAIN_SCHEDULE_H
#define SPW_TRAIN_SCHEDULE_H

#include <stdint.h>

typedef enum spw__schedule_kind { SPW__COSINE, SPW__CONSTANT } spw__schedule_kind;

typedef struct spw__schedule {
    spw__schedule_kind kind;
    double peak;     /* --lr */
    uint64_t warmup; /* steps of it */
    uint64_t steps;  /* of the whole run */
} spw__schedule;

/* `fraction` of `steps`, rounded up, is the warm-up. */
spw__schedule spw__schedule_of(spw__schedule_kind kind, double peak, double fraction,
                               uint64_t steps);

/* The rate of step `step`, from 0. */
double spw__schedule_rate(const spw__schedule *schedule, uint64_t step);

#endif
