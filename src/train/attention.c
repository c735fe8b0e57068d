#include "train/attention.h"

#include "train/gemm.h"
#include "train/loops.h"
#include "train/rows.h"

#include <math.h>
#include <string.h>

enum { TILE = 64 };

size_t spw__tiles_list(const uint32_t *starts, uint32_t n_rows, spw__tile *tiles)
{
    size_t count = 0;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t at = starts[row]; at < starts[row + 1]; at += TILE, count++)
            if (tiles) {
                uint32_t left = starts[row + 1] - at;
                tiles[count] = (spw__tile){.begin = starts[row],
                                           .end = starts[row + 1],
                                           .first = at,
                                           .n = left < TILE ? left : TILE};
            }
    return count;
}

/* One head's part of a matrix whose rows are tokens: the address of a token's row, and the
 * distance to the next. */
typedef struct head_view {
    uint32_t head_dim, stride;
    uint32_t offset;
} head_view;

static head_view query_view(const spw__attention *a, size_t head)
{
    return (head_view){.head_dim = a->head_dim,
                       .stride = a->heads * a->head_dim,
                       .offset = (uint32_t)head * a->head_dim};
}

static head_view key_view(const spw__attention *a, size_t kv_head)
{
    return (head_view){.head_dim = a->head_dim,
                       .stride = a->kv_heads * a->head_dim,
                       .offset = (uint32_t)kv_head * a->head_dim};
}

static size_t at(const head_view *view, uint32_t token)
{
    return (size_t)token * view->stride + view->offset;
}

/* What one task works on: a head, its query tile and key tile, and a tile of scores. */
typedef struct tile_job {
    const spw__attention *a;
    const spw__loops *loops;
    size_t head;
    head_view query, key;
    float scale;              /* 1 / sqrt(head_dim) */
    float *scores, *d_scores; /* [TILE, TILE] */
} tile_job;

static tile_job job_of(const spw__attention *a, size_t head)
{
    return (tile_job){.a = a,
                      .loops = spw__loops_best(),
                      .head = head,
                      .query = query_view(a, head),
                      .key = key_view(a, head / (a->heads / a->kv_heads)),
                      .scale = 1.0f / sqrtf((float)a->head_dim)};
}

static spw__tile key_tile(const spw__tile *query, uint32_t first)
{
    uint32_t left = query->end - first;
    return (spw__tile){
        .begin = query->begin, .end = query->end, .first = first, .n = left < TILE ? left : TILE};
}

/* How many of a key tile's tokens a query may see; 0 < result <= keys->n when the tile is not
 * wholly after it. */
static size_t visible(const spw__tile *keys, uint32_t query)
{
    uint32_t n = query - keys->first + 1;
    return n < keys->n ? n : keys->n;
}

/* out [queries, keys] = scale * rows of x times rows of y, both one head wide. */
static void multiply_rows(const tile_job *job, const spw__tile *queries, const spw__tile *keys,
                          const float *x, const float *y, float scale, float *out)
{
    spw__gemm_run(NULL, &(spw__gemm){.trans_b = true,
                                     .m = queries->n,
                                     .n = keys->n,
                                     .k = job->a->head_dim,
                                     .alpha = scale,
                                     .a = x + at(&job->query, queries->first),
                                     .lda = job->query.stride,
                                     .b = y + at(&job->key, keys->first),
                                     .ldb = job->key.stride,
                                     .c = out,
                                     .ldc = TILE});
}

/* rows of z (+)= scores (or its transpose) times rows of x. */
typedef struct tile_product {
    const float *scores;
    bool transposed;
    const spw__tile *to, *from;
    const head_view *to_view, *from_view;
    const float *x;
    float *z;
    bool add;
} tile_product;

static void multiply_scores(const tile_job *job, const tile_product *p)
{
    spw__gemm_run(NULL, &(spw__gemm){.trans_a = p->transposed,
                                     .m = p->to->n,
                                     .n = job->a->head_dim,
                                     .k = p->from->n,
                                     .alpha = 1.0f,
                                     .beta = p->add ? 1.0f : 0.0f,
                                     .a = p->scores,
                                     .lda = TILE,
                                     .b = p->x + at(p->from_view, p->from->first),
                                     .ldb = p->from_view->stride,
                                     .c = p->z + at(p->to_view, p->to->first),
                                     .ldc = p->to_view->stride});
}

/* -------------------------------------------------------------------------------- forward -- */

/* Of each query of a tile, over the key tiles so far. */
typedef struct running {
    float max[TILE];
    double sum[TILE];
} running;

/* Turns a tile of scores into exponentials against the new maximum; what was summed before, here
 * and in `out`, is brought to it. */
static void fold_scores(const tile_job *job, const spw__tile *queries, const spw__tile *keys,
                        running *so_far)
{
    for (uint32_t i = 0; i < queries->n; i++) {
        float *row = job->scores + (size_t)i * TILE;
        size_t n = visible(keys, queries->first + i);
        float max = job->loops->max(row, n);
        float *out = job->a->out + at(&job->query, queries->first + i);
        if (keys->first == queries->begin) {
            so_far->max[i] = max;
            so_far->sum[i] = 0.0;
        } else if (max > so_far->max[i]) {
            float shrink = expf(so_far->max[i] - max);
            job->loops->scale(out, job->a->head_dim, shrink);
            so_far->sum[i] *= (double)shrink;
            so_far->max[i] = max;
        }
        so_far->sum[i] += job->loops->exp_sum(row, n, so_far->max[i]);
        memset(row + n, 0, (keys->n - n) * sizeof *row);
    }
}

static void finish_queries(const tile_job *job, const spw__tile *queries, const running *so_far)
{
    float *log_sum = job->a->log_sum + job->head * job->a->n_tokens + queries->first;
    for (uint32_t i = 0; i < queries->n; i++) {
        log_sum[i] = so_far->max[i] + (float)log(so_far->sum[i]);
        job->loops->scale(job->a->out + at(&job->query, queries->first + i), job->a->head_dim,
                          (float)(1.0 / so_far->sum[i]));
    }
}

static void forward_task(void *context, size_t index)
{
    const spw__attention *a = context;
    tile_job job = job_of(a, index % a->heads);
    const spw__tile *queries = &a->tiles[a->n_tiles - 1 - index / a->heads];
    float scores[TILE * TILE];
    running so_far;
    job.scores = scores;
    for (uint32_t first = queries->begin; first <= queries->first; first += TILE) {
        spw__tile keys = key_tile(queries, first);
        multiply_rows(&job, queries, &keys, a->q, a->k, job.scale, scores);
        fold_scores(&job, queries, &keys, &so_far);
        multiply_scores(&job, &(tile_product){.scores = scores,
                                              .to = queries,
                                              .from = &keys,
                                              .to_view = &job.query,
                                              .from_view = &job.key,
                                              .x = a->v,
                                              .z = a->out,
                                              .add = first != queries->begin});
    }
    finish_queries(&job, queries, &so_far);
}

/* Late tiles, which see most, go first. */
void spw__attention_forward(const spw__attention *attention)
{
    spw__pool_run(attention->pool, attention->n_tiles * attention->heads, forward_task,
                  (void *)attention);
}

/* ------------------------------------------------------------------------------- backward -- */

static void mean_rows(void *context, size_t first, size_t n)
{
    const spw__attention *a = context;
    const spw__loops *loops = spw__loops_best();
    for (size_t token = first; token < first + n; token++)
        for (size_t head = 0; head < a->heads; head++) {
            size_t from = (token * a->heads + head) * a->head_dim;
            a->mean[head * a->n_tokens + token] =
                loops->dot(a->out + from, a->d_out + from, a->head_dim);
        }
}

/* scores becomes the probabilities of a tile. */
static void remake_probabilities(const tile_job *job, const spw__tile *queries,
                                 const spw__tile *keys)
{
    const float *log_sum = job->a->log_sum + job->head * job->a->n_tokens + queries->first;
    multiply_rows(job, queries, keys, job->a->q, job->a->k, job->scale, job->scores);
    for (uint32_t i = 0; i < queries->n; i++) {
        float *row = job->scores + (size_t)i * TILE;
        size_t n = visible(keys, queries->first + i);
        job->loops->exp_sum(row, n, log_sum[i]);
        memset(row + n, 0, (keys->n - n) * sizeof *row);
    }
}

/* From probabilities to the gradient of q k^T, in `scores`. */
static void differentiate_scores(const tile_job *job, const spw__tile *queries,
                                 const spw__tile *keys)
{
    const float *mean = job->a->mean + job->head * job->a->n_tokens + queries->first;
    multiply_rows(job, queries, keys, job->a->d_out, job->a->v, 1.0f, job->d_scores);
    for (uint32_t i = 0; i < queries->n; i++)
        job->loops->softmax_backward(job->scores + (size_t)i * TILE,
                                     job->d_scores + (size_t)i * TILE, keys->n, mean[i],
                                     job->scale);
}

static void query_task(void *context, size_t index)
{
    const spw__attention *a = context;
    tile_job job = job_of(a, index % a->heads);
    const spw__tile *queries = &a->tiles[a->n_tiles - 1 - index / a->heads];
    float scores[TILE * TILE], d_scores[TILE * TILE];
    job.scores = scores;
    job.d_scores = d_scores;
    for (uint32_t first = queries->begin; first <= queries->first; first += TILE) {
        spw__tile keys = key_tile(queries, first);
        remake_probabilities(&job, queries, &keys);
        differentiate_scores(&job, queries, &keys);
        multiply_scores(&job, &(tile_product){.scores = scores,
                                              .to = queries,
                                              .from = &keys,
                                              .to_view = &job.query,
                                              .from_view = &job.key,
                                              .x = a->k,
                                              .z = a->dq,
                                              .add = first != queries->begin});
    }
}

/* One query head's share of dk and dv of a key tile. */
static void add_to_keys(tile_job *job, const spw__tile *keys, bool first_head)
{
    const spw__attention *a = job->a;
    for (uint32_t first = keys->first; first < keys->end; first += TILE) {
        spw__tile queries = key_tile(keys, first);
        tile_product p = {.scores = job->scores,
                          .transposed = true,
                          .to = keys,
                          .from = &queries,
                          .to_view = &job->key,
                          .from_view = &job->query,
                          .x = a->d_out,
                          .z = a->dv,
                          .add = !first_head || first != keys->first};
        remake_probabilities(job, &queries, keys);
        multiply_scores(job, &p);
        differentiate_scores(job, &queries, keys);
        p.x = a->q;
        p.z = a->dk;
        multiply_scores(job, &p);
    }
}

static void key_task(void *context, size_t index)
{
    const spw__attention *a = context;
    size_t kv_head = index % a->kv_heads, group = a->heads / a->kv_heads;
    const spw__tile *keys = &a->tiles[index / a->kv_heads];
    float scores[TILE * TILE], d_scores[TILE * TILE];
    for (size_t i = 0; i < group; i++) {
        tile_job job = job_of(a, kv_head * group + i);
        job.scores = scores;
        job.d_scores = d_scores;
        add_to_keys(&job, keys, i == 0);
    }
}

void spw__attention_backward(const spw__attention *attention)
{
    void *context = (void *)attention;
    spw__rows_run(attention->pool, attention->n_tokens,
                  (size_t)attention->heads * attention->head_dim, mean_rows, context);
    spw__pool_run(attention->pool, attention->n_tiles * attention->heads, query_task, context);
    spw__pool_run(attention->pool, attention->n_tiles * attention->kv_heads, key_task, context);
}
