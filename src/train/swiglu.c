#include "train/swiglu.h"

#include "train/loops.h"
#include "train/rows.h"

/* Elements of a task's unit. */
enum { RUN = 1024 };

typedef struct swiglu_job {
    size_t n;
    const float *gate, *up, *dy;
    float *y, *d_gate, *d_up;
} swiglu_job;

static size_t run_length(const swiglu_job *job, size_t first, size_t n)
{
    return job->n - first * RUN < n * RUN ? job->n - first * RUN : n * RUN;
}

static void forward_runs(void *context, size_t first, size_t n)
{
    const swiglu_job *job = context;
    size_t at = first * RUN;
    spw__loops_best()->swiglu(job->y + at, job->gate + at, job->up + at, run_length(job, first, n));
}

void spw__swiglu_forward(spw__pool *pool, size_t n, const float *gate, const float *up, float *y)
{
    swiglu_job job = {.n = n, .gate = gate, .up = up, .y = y};
    spw__rows_run(pool, (n + RUN - 1) / RUN, RUN, forward_runs, &job);
}

static void backward_runs(void *context, size_t first, size_t n)
{
    const swiglu_job *job = context;
    size_t at = first * RUN;
    spw__loops_best()->swiglu_backward(job->d_gate + at, job->d_up + at, job->dy + at,
                                       run_length(job, first, n));
}

void spw__swiglu_backward(spw__pool *pool, size_t n, float *gate, float *up, const float *dy)
{
    swiglu_job job = {.n = n, .d_gate = gate, .d_up = up, .dy = dy};
    spw__rows_run(pool, (n + RUN - 1) / RUN, RUN, backward_runs, &job);
}
