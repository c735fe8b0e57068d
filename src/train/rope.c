#include "train/rope.h"

#include "train/loops.h"
#include "train/rows.h"

#include <math.h>

void spw__rope_fill(const float *inverse, uint32_t head_dim, uint32_t first, uint32_t last,
                    float *tables[2])
{
    size_t half = head_dim / 2;
    for (size_t position = first; position < last; position++)
        for (size_t i = 0; i < half; i++) {
            float angle = (float)position * inverse[i];
            tables[0][position * half + i] = cosf(angle);
            tables[1][position * half + i] = sinf(angle);
        }
}

typedef struct rope_job {
    const spw__rope *rope;
    const spw__loops *loops;
    float *x;
    uint32_t heads;
    float direction;
} rope_job;

static void rotate_rows(void *context, size_t first, size_t n)
{
    const rope_job *job = context;
    size_t head_dim = job->rope->head_dim, half = head_dim / 2;
    for (size_t token = first; token < first + n; token++) {
        size_t at = job->rope->positions[token] * half;
        for (size_t head = 0; head < job->heads; head++)
            job->loops->rotate(job->x + (token * job->heads + head) * head_dim,
                               job->rope->cosine + at, job->rope->sine + at, half, job->direction);
    }
}

static void rotate(const spw__rope *rope, float *x, uint32_t heads, float direction)
{
    rope_job job = {
        .rope = rope, .loops = spw__loops_best(), .x = x, .heads = heads, .direction = direction};
    spw__rows_run(rope->pool, rope->n_tokens, (size_t)heads * rope->head_dim, rotate_rows, &job);
}

void spw__rope_forward(const spw__rope *rope, float *x, uint32_t heads)
{
    rotate(rope, x, heads, 1.0f);
}

void spw__rope_backward(const spw__rope *rope, float *dx, uint32_t heads)
{
    rotate(rope, dx, heads, -1.0f);
}
