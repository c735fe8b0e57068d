#include "train/linear.h"

#include "train/gemm.h"
#include "train/rows.h"

typedef struct expand_job {
    const spw__matrix *matrix;
    uint32_t from;
    float *out;
} expand_job;

static void expand_rows(void *context, size_t first, size_t n)
{
    const expand_job *job = context;
    spw__matrix_expand(job->matrix, job->from + (uint32_t)first, (uint32_t)n,
                       job->out + first * job->matrix->cols);
}

const float *spw__matrix_rows(spw__pool *pool, const spw__matrix *matrix, uint32_t first,
                              uint32_t n, float *scratch)
{
    if (matrix->kind == SPW__MATRIX_FP32)
        return (const float *)matrix->data + (size_t)first * matrix->cols;
    expand_job job = {.matrix = matrix, .from = first, .out = scratch};
    spw__rows_run(pool, n, matrix->cols, expand_rows, &job);
    return scratch;
}

const float *spw__matrix_in_fp32(spw__pool *pool, const spw__matrix *matrix, float *scratch)
{
    return spw__matrix_rows(pool, matrix, 0, matrix->rows, scratch);
}

typedef struct rows_job {
    float *y;
    const float *x;
    size_t width;
    size_t n_elements;
    const spw__mask *mask;
} rows_job;

static void add_bias_rows(void *context, size_t first, size_t n)
{
    const rows_job *job = context;
    for (size_t row = first; row < first + n; row++)
        spw__loops_best()->add(job->y + row * job->width, job->x, job->width);
}

static void add_bias(const spw__linear_run *run, const spw__linear *linear, float *y)
{
    if (!linear->bias.data)
        return;
    rows_job job = {.y = y,
                    .x = spw__matrix_in_fp32(run->pool, &linear->bias, run->expanded),
                    .width = linear->w.rows};
    spw__rows_run(run->pool, run->n, job.width, add_bias_rows, &job);
}

/* -------------------------------------------------------------------------------- dropout -- */

/* Elements that a run of the mask covers: a multiple of 4. */
enum { MASK_RUN = 1024 };

static size_t mask_length(const rows_job *job, size_t first, size_t n)
{
    size_t left = job->n_elements - first * MASK_RUN;
    return left < n * MASK_RUN ? left : n * MASK_RUN;
}

static void mask_runs(void *context, size_t first, size_t n)
{
    const rows_job *job = context;
    size_t begin = first * MASK_RUN;
    spw__loops_best()->dropout(job->y + begin, job->x + begin, mask_length(job, first, n), begin,
                               job->mask);
}

static void add_masked_runs(void *context, size_t first, size_t n)
{
    const rows_job *job = context;
    size_t begin = first * MASK_RUN;
    spw__loops_best()->add_dropout(job->y + begin, job->x + begin, mask_length(job, first, n),
                                   begin, job->mask);
}

static void run_mask(const spw__linear_run *run, const rows_job *job, spw__rows_fn *function)
{
    spw__rows_run(run->pool, (job->n_elements + MASK_RUN - 1) / MASK_RUN, MASK_RUN, function,
                  (void *)job);
}

/* dropout(x): x itself when there is none. */
static const float *masked_input(const spw__linear_run *run, const spw__linear *linear,
                                 const float *x)
{
    if (!run->mask)
        return x;
    rows_job job = {
        .y = run->masked, .x = x, .n_elements = run->n * linear->w.cols, .mask = run->mask};
    run_mask(run, &job, mask_runs);
    return run->masked;
}

/* -------------------------------------------------------------------------------- forward -- */

void spw__linear_low(const spw__linear_run *run, const spw__linear *linear, const float *x)
{
    uint32_t in = linear->w.cols, rank = linear->lora.rank;
    if (rank == 0)
        return;
    spw__gemm_run(run->pool, &(spw__gemm){.trans_b = true,
                                          .m = (uint32_t)run->n,
                                          .n = rank,
                                          .k = in,
                                          .alpha = 1.0f,
                                          .a = masked_input(run, linear, x),
                                          .lda = in,
                                          .b = linear->lora.a,
                                          .ldb = in,
                                          .c = run->low,
                                          .ldc = rank});
}

static void add_lora(const spw__linear_run *run, const spw__linear *linear, const float *x,
                     float *y)
{
    uint32_t out = linear->w.rows, rank = linear->lora.rank;
    spw__linear_low(run, linear, x);
    spw__gemm_run(run->pool, &(spw__gemm){.trans_b = true,
                                          .m = (uint32_t)run->n,
                                          .n = out,
                                          .k = rank,
                                          .alpha = linear->lora.scale,
                                          .beta = 1.0f,
                                          .a = run->low,
                                          .lda = rank,
                                          .b = linear->lora.b,
                                          .ldb = rank,
                                          .c = y,
                                          .ldc = out});
}

void spw__linear_forward(const spw__linear_run *run, const spw__linear *linear, const float *x,
                         float *y, float keep)
{
    uint32_t in = linear->w.cols, out = linear->w.rows;
    const float *w = spw__matrix_in_fp32(run->pool, &linear->w, run->expanded);
    spw__gemm_run(run->pool, &(spw__gemm){.trans_b = true,
                                          .m = (uint32_t)run->n,
                                          .n = out,
                                          .k = in,
                                          .alpha = 1.0f,
                                          .beta = keep,
                                          .a = x,
                                          .lda = in,
                                          .b = w,
                                          .ldb = in,
                                          .c = y,
                                          .ldc = out});
    add_bias(run, linear, y);
    if (linear->lora.rank)
        add_lora(run, linear, x, y);
}

/* ------------------------------------------------------------------------------- backward -- */

/* grad [rows, cols] += factor * left [n, rows]^T right [n, cols] */
typedef struct outer {
    const float *left, *right;
    uint32_t rows, cols;
    float factor;
    float *grad;
} outer;

static void add_outer(const spw__linear_run *run, const outer *o)
{
    spw__gemm_run(run->pool, &(spw__gemm){.trans_a = true,
                                          .m = o->rows,
                                          .n = o->cols,
                                          .k = (uint32_t)run->n,
                                          .alpha = o->factor,
                                          .beta = 1.0f,
                                          .a = o->left,
                                          .lda = o->rows,
                                          .b = o->right,
                                          .ldb = o->cols,
                                          .c = o->grad,
                                          .ldc = o->cols});
}

/* Gradients of A and B; leaves the gradient of A dropout(x) in d_low. */
static void lora_gradients(const spw__linear_run *run, const spw__linear *linear, const float *x,
                           const float *dy)
{
    const spw__lora *lora = &linear->lora;
    uint32_t in = linear->w.cols, out = linear->w.rows, rank = lora->rank;
    spw__gemm_run(run->pool, &(spw__gemm){.m = (uint32_t)run->n,
                                          .n = rank,
                                          .k = out,
                                          .alpha = lora->scale,
                                          .a = dy,
                                          .lda = out,
                                          .b = lora->b,
                                          .ldb = rank,
                                          .c = run->d_low,
                                          .ldc = rank});
    if (lora->grad_b)
        add_outer(run, &(outer){.left = dy,
                                .right = run->low,
                                .rows = out,
                                .cols = rank,
                                .factor = lora->scale,
                                .grad = lora->grad_b});
    if (lora->grad_a)
        add_outer(run, &(outer){.left = run->d_low,
                                .right = masked_input(run, linear, x),
                                .rows = rank,
                                .cols = in,
                                .factor = 1.0f,
                                .grad = lora->grad_a});
}

/* dx += dropout backward(d_low A): the same mask. */
static void add_lora_input(const spw__linear_run *run, const spw__linear *linear, float *dx)
{
    uint32_t in = linear->w.cols, rank = linear->lora.rank;
    spw__gemm product = {.m = (uint32_t)run->n,
                         .n = in,
                         .k = rank,
                         .alpha = 1.0f,
                         .a = run->d_low,
                         .lda = rank,
                         .b = linear->lora.a,
                         .ldb = in,
                         .ldc = in};
    product.c = run->mask ? run->masked : dx;
    product.beta = run->mask ? 0.0f : 1.0f;
    spw__gemm_run(run->pool, &product);
    rows_job job = {.y = dx, .x = run->masked, .n_elements = run->n * in, .mask = run->mask};
    if (run->mask)
        run_mask(run, &job, add_masked_runs);
}

static void add_gradients(const spw__linear_run *run, const spw__linear *linear, const float *x,
                          const float *dy)
{
    uint32_t in = linear->w.cols, out = linear->w.rows;
    if (linear->w.grad)
        add_outer(run, &(outer){.left = dy,
                                .right = x,
                                .rows = out,
                                .cols = in,
                                .factor = 1.0f,
                                .grad = linear->w.grad});
    if (linear->bias.grad)
        spw__rows_add_columns(run->pool, dy, run->n, out, linear->bias.grad);
    if (linear->lora.rank)
        lora_gradients(run, linear, x, dy);
}

void spw__linear_backward(const spw__linear_run *run, const spw__linear *linear, const float *x,
                          const float *dy, float *dx, float keep)
{
    uint32_t in = linear->w.cols, out = linear->w.rows;
    add_gradients(run, linear, x, dy);
    if (!dx)
        return;
    const float *w = spw__matrix_in_fp32(run->pool, &linear->w, run->expanded);
    spw__gemm_run(run->pool, &(spw__gemm){.m = (uint32_t)run->n,
                                          .n = in,
                                          .k = out,
                                          .alpha = 1.0f,
                                          .beta = keep,
                                          .a = dy,
                                          .lda = out,
                                          .b = w,
                                          .ldb = in,
                                          .c = dx,
                                          .ldc = in});
    if (linear->lora.rank)
        add_lora_input(run, linear, dx);
}
