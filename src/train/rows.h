/*
 * rows.h - a loop over rows, or over columns, spread over a pool.
 *
 * Cuts n rows of `width` floats into runs big enough to be worth a task; little work stays on the
 * calling thread. The cut depends on the sizes alone, never on the thread count, and the function
 * writes only its own rows (columns), so results do not depend on who ran what.
 */
#ifndef SPW_TRAIN_ROWS_H
#define SPW_TRAIN_ROWS_H

#include "base/pool.h"

#include <stdint.h>

typedef void spw__rows_fn(void *context, size_t first, size_t n);

/* function(context, first, n) for runs that cover [0, n_rows). */
void spw__rows_run(spw__pool *pool, size_t n_rows, size_t width, spw__rows_fn *function,
                   void *context);

/* sums[c] += sum over rows of x[row][c], rows in order. */
void spw__rows_add_columns(spw__pool *pool, const float *x, size_t n_rows, size_t width,
                           float *sums);

#endif
