#include "train/gemm.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stddef.h>

/* Columns and rows a slice is a multiple of: the library's widest kernel tiles. */
enum { COLUMN_STEP = 48, ROW_STEP = 16 };

/* A product this small is not worth waking a thread for. */
static const double SMALL_FLOPS = 1e6;

/* The library's OpenMP, if that is what it was built with, must not start threads of its own: its
 * team size is a property of the calling thread. */
static void (*set_openmp_threads)(int);
static pthread_once_t found_openmp = PTHREAD_ONCE_INIT;

static void find_openmp(void)
{
    *(void **)&set_openmp_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
}

static void stay_on_this_thread(void)
{
    static _Thread_local bool done;
    if (done)
        return;
    pthread_once(&found_openmp, find_openmp);
    if (set_openmp_threads)
        set_openmp_threads(1);
    done = true;
}

/* What the library declines (no host memory for its buffers), and sums over nothing. */
static void multiply_plainly(const spw__gemm *p)
{
    size_t step_a = p->trans_a ? p->lda : 1, row_a = p->trans_a ? 1 : p->lda;
    size_t step_b = p->trans_b ? 1 : p->ldb, column_b = p->trans_b ? p->ldb : 1;
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            float sum = 0.0f, *c = &p->c[i * p->ldc + j];
            for (size_t l = 0; l < p->k; l++)
                sum += p->a[i * row_a + l * step_a] * p->b[j * column_b + l * step_b];
            *c = p->alpha * sum + (p->beta == 0.0f ? 0.0f : p->beta * *c);
        }
}

static void multiply(const spw__gemm *p)
{
    if (p->m == 0 || p->n == 0)
        return;
    stay_on_this_thread();
    dnnl_status_t status = dnnl_invalid_arguments;
    if (p->k)
        status = dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', p->m, p->n, p->k,
                            p->alpha, p->a, p->lda, p->b, p->ldb, p->beta, p->c, p->ldc);
    if (status != dnnl_success)
        multiply_plainly(p);
}

typedef struct slices {
    const spw__gemm *whole;
    uint32_t length; /* of a slice, along the longer side of C */
    bool by_rows;
} slices;

static spw__gemm slice_of(const slices *s, size_t index)
{
    spw__gemm part = *s->whole;
    size_t from = index * s->length;
    uint32_t side = s->by_rows ? part.m : part.n;
    uint32_t length = side - from < s->length ? (uint32_t)(side - from) : s->length;
    if (s->by_rows) {
        part.m = length;
        part.a += part.trans_a ? from : from * part.lda;
        part.c += from * part.ldc;
    } else {
        part.n = length;
        part.b += part.trans_b ? from * part.ldb : from;
        part.c += from;
    }
    return part;
}

static void multiply_slice(void *context, size_t index)
{
    spw__gemm part = slice_of(context, index);
    multiply(&part);
}

void spw__gemm_run(spw__pool *pool, const spw__gemm *product)
{
    unsigned threads = pool ? spw__pool_threads(pool) : 1;
    double flops = 2.0 * product->m * product->n * product->k;
    if (threads == 1 || flops < SMALL_FLOPS) {
        multiply(product);
        return;
    }
    slices s = {.whole = product, .by_rows = product->m >= product->n};
    uint32_t side = s.by_rows ? product->m : product->n;
    uint32_t step = s.by_rows ? ROW_STEP : COLUMN_STEP;
    uint32_t each = (side + threads - 1) / threads;
    s.length = (each + step - 1) / step * step;
    spw__pool_run(pool, (side + s.length - 1) / s.length, multiply_slice, &s);
}
