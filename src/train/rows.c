#include "train/rows.h"

#include "train/loops.h"

/* Floats a task should have: some tens of microseconds of work. */
enum { TASK_FLOATS = 16384, COLUMNS = 64 };

typedef struct run {
    spw__rows_fn *function;
    void *context;
    size_t n_rows;
    size_t each;
} run;

static void run_task(void *context, size_t index)
{
    const run *r = context;
    size_t first = index * r->each;
    size_t n = r->n_rows - first < r->each ? r->n_rows - first : r->each;
    r->function(r->context, first, n);
}

void spw__rows_run(spw__pool *pool, size_t n_rows, size_t width, spw__rows_fn *function,
                   void *context)
{
    run r = {.function = function, .context = context, .n_rows = n_rows};
    r.each = width < TASK_FLOATS ? TASK_FLOATS / (width ? width : 1) : 1;
    if (n_rows == 0)
        return;
    if (n_rows <= r.each)
        function(context, 0, n_rows);
    else
        spw__pool_run(pool, (n_rows + r.each - 1) / r.each, run_task, &r);
}

typedef struct columns {
    const float *x;
    size_t n_rows, width;
    float *sums;
} columns;

static void add_columns(void *context, size_t first, size_t n)
{
    const columns *c = context;
    const spw__loops *loops = spw__loops_best();
    size_t begin = first * COLUMNS;
    size_t end = begin + n * COLUMNS < c->width ? begin + n * COLUMNS : c->width;
    for (size_t row = 0; row < c->n_rows; row++)
        loops->add(c->sums + begin, c->x + row * c->width + begin, end - begin);
}

void spw__rows_add_columns(spw__pool *pool, const float *x, size_t n_rows, size_t width,
                           float *sums)
{
    columns c = {.x = x, .n_rows = n_rows, .width = width, .sums = sums};
    spw__rows_run(pool, (width + COLUMNS - 1) / COLUMNS, n_rows * COLUMNS, add_columns, &c);
}
