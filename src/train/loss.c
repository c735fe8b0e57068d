#include "train/loss.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/gemm.h"
#include "train/linear.h"
#include "train/loops.h"
#include "train/norm.h"
#include "train/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Logits of a chunk take about this; rows of a head that is not fp32 are expanded so many at once.
 */
static const size_t LOGITS_BYTES = 48u << 20;
enum { MOST_ROWS = 512, FEWEST_ROWS = 16, PANEL_ROWS = 4096 };

/* A chunk at work. */
typedef struct chunk {
    const spw__loss *loss;
    uint32_t *places; /* tokens with a target, all of them; host */
    size_t n_places;
    size_t most;            /* rows a chunk has room for */
    size_t first, n;        /* of places, now */
    double *row_loss;       /* [most]; host */
    float *memory;          /* device; the following lie in it */
    float *hidden, *normed; /* [most, H] */
    float *d_normed, *d_hidden;
    float *inverse; /* [most] */
    float *gain;    /* [H] */
    float *panel;   /* [panel_rows, H]; when the head is not fp32 */
    uint32_t panel_rows;
    float *logits; /* [most, vocab], then their gradients */
} chunk;

static size_t rows_of_chunk(size_t n_places, size_t vocab)
{
    size_t rows = LOGITS_BYTES / sizeof(float) / vocab / FEWEST_ROWS * FEWEST_ROWS;
    rows = rows > MOST_ROWS ? MOST_ROWS : rows;
    rows = rows < FEWEST_ROWS ? FEWEST_ROWS : rows;
    return rows < n_places ? rows : n_places;
}

static int list_places(chunk *c)
{
    c->places = spw__calloc(c->loss->n_tokens, sizeof *c->places);
    if (!c->places)
        return SPW_EHOSTMEM;
    for (uint32_t token = 0; token < c->loss->n_tokens; token++)
        if (c->loss->targets[token] >= 0)
            c->places[c->n_places++] = token;
    c->most = rows_of_chunk(c->n_places, c->loss->weights->config.vocab);
    c->row_loss = spw__calloc(c->most, sizeof *c->row_loss);
    return c->row_loss ? 0 : SPW_EHOSTMEM;
}

static size_t aligned(size_t floats)
{
    return (floats + 15) / 16 * 16;
}

static int take_memory(chunk *c)
{
    const spw__weights *weights = c->loss->weights;
    bool expand = weights->head.kind != SPW__MATRIX_FP32;
    uint32_t vocab = weights->config.vocab;
    c->panel_rows = expand && vocab > PANEL_ROWS ? PANEL_ROWS : vocab;
    size_t wide = aligned(c->most * weights->config.hidden);
    size_t panel = expand ? aligned((size_t)c->panel_rows * weights->config.hidden) : 0;
    size_t gain = aligned(weights->config.hidden);
    size_t floats = 4 * wide + panel + gain + aligned(c->most) + c->most * vocab;
    void *memory;
    int rc = spw_malloc(weights->pager, floats * sizeof(float), &memory);
    if (rc < 0)
        return rc;
    c->memory = memory;
    c->hidden = c->memory;
    c->normed = c->hidden + wide;
    c->d_normed = c->normed + wide;
    c->d_hidden = c->d_normed + wide;
    c->inverse = c->d_hidden + wide;
    c->gain = c->inverse + aligned(c->most);
    c->panel = c->gain + gain;
    c->logits = c->panel + panel;
    return 0;
}

static void release(chunk *c)
{
    spw_free(c->loss->weights->pager, c->memory);
    free(c->places);
    free(c->row_loss);
}

/* -------------------------------------------------------------------------------- forward -- */

static spw__norm last_norm(const chunk *c)
{
    const spw__weights *weights = c->loss->weights;
    return (spw__norm){.pool = c->loss->pool,
                       .n_rows = c->n,
                       .width = weights->config.hidden,
                       .eps = weights->config.rms_eps,
                       .gain = spw__matrix_in_fp32(c->loss->pool, &weights->norm, c->gain)};
}

static void gather_hidden(const chunk *c)
{
    size_t width = c->loss->weights->config.hidden;
    for (size_t row = 0; row < c->n; row++)
        memcpy(c->hidden + row * width, c->loss->hidden + c->places[c->first + row] * width,
               width * sizeof(float));
}

/* Calls for every panel of the head: rows [first, first + n) in fp32. */
static void logits_of_panels(const chunk *c)
{
    const spw__matrix *head = &c->loss->weights->head;
    for (uint32_t first = 0; first < head->rows; first += c->panel_rows) {
        uint32_t left = head->rows - first, n = left < c->panel_rows ? left : c->panel_rows;
        const float *w = spw__matrix_rows(c->loss->pool, head, first, n, c->panel);
        spw__gemm_run(c->loss->pool, &(spw__gemm){.trans_b = true,
                                                  .m = (uint32_t)c->n,
                                                  .n = n,
                                                  .k = head->cols,
                                                  .alpha = 1.0f,
                                                  .a = c->normed,
                                                  .lda = head->cols,
                                                  .b = w,
                                                  .ldb = head->cols,
                                                  .c = c->logits + first,
                                                  .ldc = head->rows});
    }
}

static void forward(const chunk *c)
{
    gather_hidden(c);
    spw__norm norm = last_norm(c);
    spw__norm_forward(&norm, c->hidden, c->normed);
    logits_of_panels(c);
}

/* The loss of rows, whose logits become gradients when there is a backward. */
static void entropy_rows(void *context, size_t first, size_t n)
{
    const chunk *c = context;
    const spw__loops *loops = spw__loops_best();
    size_t vocab = c->loss->weights->config.vocab;
    for (size_t row = first; row < first + n; row++) {
        float *logits = c->logits + row * vocab;
        int32_t target = c->loss->targets[c->places[c->first + row]];
        float max = loops->max(logits, vocab), own = logits[target];
        double sum = loops->exp_sum(logits, vocab, max);
        c->row_loss[row] = log(sum) - ((double)own - (double)max);
        if (!c->loss->d_hidden)
            continue;
        loops->scale(logits, vocab, (float)(c->loss->grad_scale / sum));
        logits[target] -= (float)c->loss->grad_scale;
    }
}

/* ------------------------------------------------------------------------------- backward -- */

static void normed_gradient(const chunk *c)
{
    const spw__matrix *head = &c->loss->weights->head;
    for (uint32_t first = 0; first < head->rows; first += c->panel_rows) {
        uint32_t left = head->rows - first, n = left < c->panel_rows ? left : c->panel_rows;
        const float *w = spw__matrix_rows(c->loss->pool, head, first, n, c->panel);
        spw__gemm_run(c->loss->pool, &(spw__gemm){.m = (uint32_t)c->n,
                                                  .n = head->cols,
                                                  .k = n,
                                                  .alpha = 1.0f,
                                                  .beta = first ? 1.0f : 0.0f,
                                                  .a = c->logits + first,
                                                  .lda = head->rows,
                                                  .b = w,
                                                  .ldb = head->cols,
                                                  .c = c->d_normed,
                                                  .ldc = head->cols});
    }
}

static void head_gradient(const chunk *c)
{
    const spw__matrix *head = &c->loss->weights->head;
    if (!head->grad)
        return;
    spw__gemm_run(c->loss->pool, &(spw__gemm){.trans_a = true,
                                              .m = head->rows,
                                              .n = head->cols,
                                              .k = (uint32_t)c->n,
                                              .alpha = 1.0f,
                                              .beta = 1.0f,
                                              .a = c->logits,
                                              .lda = head->rows,
                                              .b = c->normed,
                                              .ldb = head->cols,
                                              .c = head->grad,
                                              .ldc = head->cols});
}

static void scatter_gradient(const chunk *c)
{
    size_t width = c->loss->weights->config.hidden;
    for (size_t row = 0; row < c->n; row++)
        memcpy(c->loss->d_hidden + c->places[c->first + row] * width, c->d_hidden + row * width,
               width * sizeof(float));
}

static void backward(const chunk *c)
{
    const spw__matrix *gain = &c->loss->weights->norm;
    normed_gradient(c);
    head_gradient(c);
    spw__norm norm = last_norm(c);
    if (gain->grad)
        spw__norm_gain_backward(&norm, c->hidden, c->d_normed, c->inverse, gain->grad);
    memset(c->d_hidden, 0, c->n * norm.width * sizeof(float));
    spw__norm_backward(&norm, c->hidden, c->d_normed, c->d_hidden);
    scatter_gradient(c);
}

static double run_chunk(chunk *c)
{
    forward(c);
    spw__rows_run(c->loss->pool, c->n, c->loss->weights->config.vocab, entropy_rows, c);
    if (c->loss->d_hidden)
        backward(c);
    double sum = 0.0;
    for (size_t row = 0; row < c->n; row++)
        sum += c->row_loss[row];
    return sum;
}

static void run_chunks(chunk *c, double *sum)
{
    size_t width = c->loss->weights->config.hidden;
    if (c->loss->d_hidden)
        memset(c->loss->d_hidden, 0, c->loss->n_tokens * width * sizeof(float));
    *sum = 0.0;
    for (c->first = 0; c->first < c->n_places; c->first += c->n) {
        size_t left = c->n_places - c->first;
        c->n = left < c->most ? left : c->most;
        *sum += run_chunk(c);
    }
}

int spw__loss_run(const spw__loss *loss, double *sum)
{
    chunk c = {.loss = loss};
    int rc = list_places(&c);
    if (rc == 0)
        rc = take_memory(&c);
    if (rc == 0)
        run_chunks(&c, sum);
    release(&c);
    return rc;
}

int spw__loss_logits(const spw__weights *weights, spw__pool *pool, const float *hidden,
                     float *logits)
{
    uint32_t place = 0;
    spw__loss loss = {.weights = weights, .pool = pool, .hidden = hidden, .n_tokens = 1};
    chunk c = {.loss = &loss, .places = &place, .n_places = 1, .most = 1, .n = 1};
    int rc = take_memory(&c);
    if (rc < 0)
        return rc;
    forward(&c);
    memcpy(logits, c.logits, weights->config.vocab * sizeof(float));
    spw_free(weights->pager, c.memory);
    return 0;
}
