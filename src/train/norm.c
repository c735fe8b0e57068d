#include "train/norm.h"

#include "train/loops.h"
#include "train/rows.h"

#include <math.h>

enum { COLUMNS = 64 };

typedef struct norm_job {
    const spw__norm *norm;
    const spw__loops *loops;
    const float *x;
    const float *dy;
    float *out; /* y, dx or the gain's gradient */
    float *inverse;
} norm_job;

static float inverse_rms(const norm_job *job, size_t row)
{
    size_t width = job->norm->width;
    const float *x = job->x + row * width;
    return 1.0f / sqrtf(job->loops->dot(x, x, width) / (float)width + job->norm->eps);
}

static void forward_rows(void *context, size_t first, size_t n)
{
    const norm_job *job = context;
    size_t width = job->norm->width;
    for (size_t row = first; row < first + n; row++)
        job->loops->scale_by(job->out + row * width, job->x + row * width, job->norm->gain, width,
                             inverse_rms(job, row));
}

void spw__norm_forward(const spw__norm *norm, const float *x, float *y)
{
    norm_job job = {.norm = norm, .loops = spw__loops_best(), .x = x, .out = y};
    spw__rows_run(norm->pool, norm->n_rows, norm->width, forward_rows, &job);
}

/* With r the inverse root mean square: dx = r (dy gain) - x r^3 / width * sum(dy gain x). */
static void backward_rows(void *context, size_t first, size_t n)
{
    const norm_job *job = context;
    size_t width = job->norm->width;
    bool in_place = job->dy == job->out;
    for (size_t row = first; row < first + n; row++) {
        const float *x = job->x + row * width, *dy = job->dy + row * width;
        float r = inverse_rms(job, row);
        float along = job->loops->dot3(dy, job->norm->gain, x, width);
        spw__norm_factors factors = {.factor = r, .pull = r * r * r * along / (float)width};
        float *dx = job->out + row * width;
        if (in_place)
            job->loops->norm_backward_in_place(dx, x, job->norm->gain, width, &factors);
        else
            job->loops->norm_backward(dx, dy, x, job->norm->gain, width, &factors);
    }
}

void spw__norm_backward(const spw__norm *norm, const float *x, const float *dy, float *dx)
{
    norm_job job = {.norm = norm, .loops = spw__loops_best(), .x = x, .dy = dy, .out = dx};
    spw__rows_run(norm->pool, norm->n_rows, norm->width, backward_rows, &job);
}

void spw__norm_backward_in_place(const spw__norm *norm, const float *x, float *dy)
{
    spw__norm_backward(norm, x, dy, dy);
}

static void inverse_rows(void *context, size_t first, size_t n)
{
    const norm_job *job = context;
    for (size_t row = first; row < first + n; row++)
        job->inverse[row] = inverse_rms(job, row);
}

static void gain_columns(void *context, size_t first, size_t n)
{
    const norm_job *job = context;
    size_t width = job->norm->width, begin = first * COLUMNS;
    size_t end = begin + n * COLUMNS < width ? begin + n * COLUMNS : width;
    for (size_t row = 0; row < job->norm->n_rows; row++)
        job->loops->add_product(job->out + begin, job->x + row * width + begin,
                                job->dy + row * width + begin, end - begin, job->inverse[row]);
}

void spw__norm_gain_backward(const spw__norm *norm, const float *x, const float *dy, float *inverse,
                             float *grad)
{
    norm_job job = {.norm = norm,
                    .loops = spw__loops_best(),
                    .x = x,
                    .dy = dy,
                    .out = grad,
                    .inverse = inverse};
    spw__rows_run(norm->pool, norm->n_rows, norm->width, inverse_rows, &job);
    spw__rows_run(norm->pool, (norm->width + COLUMNS - 1) / COLUMNS, norm->n_rows * COLUMNS,
                  gain_columns, &job);
}
