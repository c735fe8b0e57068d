/*
 * progress.h - what a person watching a run sees: one live line on a terminal, plain lines
 * elsewhere (every step of a short run, about fifty of a long one).
 *
 * A line holds step, loss, tokens a second, the time left, how much of the optimizer state is on
 * the device, and the gauge: what the device has in use, when the step ended, of what it has. One
 * thread.
 */
#ifndef SPW_TRAIN_PROGRESS_H
#define SPW_TRAIN_PROGRESS_H

#include "train/runlog.h"

typedef struct spw__progress {
    FILE *screen; /* NULL: say nothing */
    bool live;
    bool open;       /* a live line stands without its newline */
    uint64_t total;  /* steps */
    uint64_t before; /* of them, taken before this process began */
    uint64_t every;  /* plain lines: one in so many steps */
    double ms;       /* so far */
    uint64_t tokens;
} spw__progress;

void spw__progress_init(spw__progress *progress, FILE *screen, bool live);
void spw__progress_plan(spw__progress *progress, uint64_t total);
void spw__progress_step(spw__progress *progress, const spw__step_record *record);

/* A line that stays. */
void spw__progress_say(spw__progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
