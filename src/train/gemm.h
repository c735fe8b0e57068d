/*
 * gemm.h - C = alpha * op(A) op(B) + beta * C in fp32, row-major: the one door to a library of
 * matrix products (oneDNN; docs/matmul.md has the measurements behind the choice).
 *
 * C is m x n, op(A) m x k, op(B) k x n; a leading dimension counts the elements from one row of the
 * matrix as it lies in memory to the next. C overlaps neither A nor B; with beta 0 it is not read;
 * m, n or k may be 0. With a pool, C is cut along its longer side into slices whose bounds depend
 * on the sizes and the thread count alone, and each is one single-threaded call of the library: no
 * second team of threads, the same bits for the same sizes, library and thread count. pool NULL:
 * all on the calling thread, which is how a task of a pool multiplies. Any number of threads.
 */
#ifndef SPW_TRAIN_GEMM_H
#define SPW_TRAIN_GEMM_H

#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct spw__gemm {
    bool trans_a, trans_b;
    uint32_t m, n, k;
    float alpha, beta;
    const float *a;
    const float *b;
    float *c;
    uint32_t lda, ldb, ldc; /* elements */
} spw__gemm;

void spw__gemm_run(spw__pool *pool, const spw__gemm *product);

#endif
