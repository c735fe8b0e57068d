/*
 * gemm.c - GFLOP/s of the matrix products a fine-tuning step is made of, by library and by who
 * spreads them over threads: the measurement behind docs/matmul.md.
 *
 *     gemm [threads] [openblas|onednn] [own|pool]     one CSV line a product
 *
 * Both libraries are opened at run time, so that one program measures whichever are installed.
 * "own": the library's threads; "pool": single-threaded calls on slices, spread by our pool.
 */
#include "base/pool.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void cblas_sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float *a, int lda, const float *b, int ldb, float beta, float *c,
                            int ldc);
typedef int dnnl_sgemm_fn(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                          float *c, int64_t ldc);

typedef struct product {
    const char *what;
    bool trans_a, trans_b;
    int m, n, k;
    const float *a, *b;
    float *c;
    int tasks;
} product;

static cblas_sgemm_fn *cblas;
static dnnl_sgemm_fn *dnnl;
static void (*omp_threads)(int);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void multiply(const product *p, const float *a, const float *b, float *c, int m, int n)
{
    int lda = p->trans_a ? p->m : p->k, ldb = p->trans_b ? p->k : p->n;
    if (cblas)
        cblas(101, p->trans_a ? 112 : 111, p->trans_b ? 112 : 111, m, n, p->k, 1, a, lda, b, ldb, 0,
              c, p->n);
    else
        dnnl(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', m, n, p->k, 1, a, lda, b, ldb, 0, c,
             p->n);
}

/* Slice `index` of the longer side of C. */
static void slice(void *context, size_t index)
{
    const product *p = context;
    int whole = p->m >= p->n ? p->m : p->n;
    int per = ((whole + p->tasks - 1) / p->tasks + 15) / 16 * 16;
    int from = (int)index * per, n = whole - from < per ? whole - from : per;
    if (n <= 0)
        return;
    if (omp_threads)
        omp_threads(1);
    if (p->m >= p->n)
        multiply(p, p->a + (size_t)from * (size_t)(p->trans_a ? 1 : p->k), p->b,
                 p->c + (size_t)from * (size_t)p->n, n, p->n);
    else
        multiply(p, p->a, p->b + (size_t)from * (size_t)(p->trans_b ? p->k : 1), p->c + from, p->m,
                 n);
}

static void run(const product *p, spw__pool *pool)
{
    if (pool)
        spw__pool_run(pool, (size_t)p->tasks, slice, (void *)p);
    else
        multiply(p, p->a, p->b, p->c, p->m, p->n);
}

static double seconds(const product *p, spw__pool *pool)
{
    double best = 1e9, begin = now();
    run(p, pool);
    for (int i = 0; i < 3 || (now() - begin < 0.1 && i < 1000); i++) {
        double start = now();
        run(p, pool);
        double took = now() - start;
        best = took < best ? took : best;
    }
    return best;
}

static float *filled(size_t n)
{
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; values && i < n; i++)
        values[i] = (float)(i % 17) * 0.01f - 0.08f;
    return values;
}

static bool open_library(const char *name, int threads)
{
    void *lib;
    if (strcmp(name, "openblas") == 0) {
        if (!(lib = dlopen("libopenblas.so.0", RTLD_NOW)))
            return false;
        *(void **)&cblas = dlsym(lib, "cblas_sgemm");
        void (*set)(int);
        *(void **)&set = dlsym(lib, "openblas_set_num_threads");
        char *(*core)(void);
        *(void **)&core = dlsym(lib, "openblas_get_corename");
        fprintf(stderr, "openblas core %s\n", core());
        set(threads);
        return cblas != NULL;
    }
    if (!(lib = dlopen("libdnnl.so.3", RTLD_NOW)) && !(lib = dlopen("libdnnl.so.2", RTLD_NOW)))
        return false;
    *(void **)&dnnl = dlsym(lib, "dnnl_sgemm");
    *(void **)&omp_threads = dlsym(lib, "omp_set_num_threads");
    if (omp_threads)
        omp_threads(threads);
    return dnnl != NULL;
}

static void measure(product p, spw__pool *pool, int threads, const char *how)
{
    p.tasks = threads;
    double took = seconds(&p, pool);
    printf("%s,%d,%s,%c%c,%d,%d,%d,%.1f\n", how, threads, p.what, p.trans_a ? 'T' : 'N',
           p.trans_b ? 'T' : 'N', p.m, p.n, p.k, 2e-9 * p.m * p.n * p.k / took);
}

/* y = x W^T, dx = dy W, dW = dy^T x of a [out, in] matrix over t tokens. */
static void measure_linear(const char *what, int t, int out, int in, product p, spw__pool *pool,
                           int threads, const char *how)
{
    p.what = what;
    p.trans_a = false, p.trans_b = true, p.m = t, p.n = out, p.k = in;
    measure(p, pool, threads, how);
    p.trans_b = false, p.n = in, p.k = out;
    measure(p, pool, threads, how);
    p.trans_a = true, p.m = out, p.n = in, p.k = t;
    measure(p, pool, threads, how);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    const char *library = argc > 2 ? argv[2] : "openblas";
    const char *mode = argc > 3 ? argv[3] : "own";
    bool pooled = strcmp(mode, "pool") == 0;
    spw__pool *pool = NULL;
    size_t most = 49152UL * 1536;
    product p = {.a = filled(most), .b = filled(most), .c = malloc(most * sizeof(float))};
    if (threads < 1 || !p.a || !p.b || !p.c || !open_library(library, pooled ? 1 : threads) ||
        (pooled && spw__pool_create((unsigned)threads, &pool) < 0)) {
        fprintf(stderr, "usage: gemm [threads] [openblas|onednn] [own|pool]; %s\n", dlerror());
        return 1;
    }
    char how[64];
    snprintf(how, sizeof how, "%s-%s", library, mode);
    const int tokens[] = {128, 512, 2048};
    for (int i = 0; i < 3; i++) {
        measure_linear("135M q and o", tokens[i], 576, 576, p, pool, threads, how);
        measure_linear("135M gate and up", tokens[i], 1536, 576, p, pool, threads, how);
        measure_linear("135M down", tokens[i], 576, 1536, p, pool, threads, how);
        measure_linear("demo q and o", tokens[i], 192, 192, p, pool, threads, how);
        measure_linear("LoRA A", tokens[i], 16, 576, p, pool, threads, how);
        measure_linear("LoRA B", tokens[i], 1536, 16, p, pool, threads, how);
    }
    measure_linear("135M head", 256, 49152, 576, p, pool, threads, how);
    spw__pool_destroy(pool);
    free((void *)p.a);
    free((void *)p.b);
    free(p.c);
    return 0;
}
