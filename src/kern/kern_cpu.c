#include "kern/kern.h"

#include "base/mem.h"
#include "kern/elements.h"
#include "kern/loops/select.h"
#include "kern/tables.h"

#include <math.h>
#include <stdlib.h>

/* Work is counted in blocks of SPW__SPLIT elements, all runs laid end to end, the last block of a
 * run perhaps short. A task takes an equal share of them, so many small runs share a task and a
 * large run spans many, and finds its first by walking over the runs: cheap next to updating them
 * as long as a thread has few tasks. */
enum { TASKS_A_THREAD = 8 };

typedef struct split {
    uint64_t n_blocks;
    uint64_t n_tasks;
} split;

static uint64_t blocks_of(uint64_t n)
{
    return n / SPW__SPLIT + (n % SPW__SPLIT != 0);
}

static split split_of(spw_device *device, uint64_t n_blocks)
{
    uint64_t most = (uint64_t)spw__pool_threads(device->pool) * TASKS_A_THREAD;
    return (split){.n_blocks = n_blocks, .n_tasks = n_blocks < most ? n_blocks : most};
}

/* First block of task `i`; without the product n_blocks * i, which could overflow. */
static uint64_t first_block(split s, uint64_t i)
{
    uint64_t each = s.n_blocks / s.n_tasks, left = s.n_blocks % s.n_tasks;
    return each * i + (i < left ? i : left);
}

/* The elements of a run (which begins at block `start`) that lie in blocks `from` to `to`. */
typedef struct span {
    uint64_t first;
    uint64_t n;
} span;

static span span_of(uint64_t n, uint64_t start, uint64_t from, uint64_t to)
{
    uint64_t end = start + blocks_of(n);
    uint64_t first = from > start ? (from - start) * SPW__SPLIT : 0;
    uint64_t last = to < end ? (to - start) * SPW__SPLIT : n;
    return (span){.first = first, .n = last - first};
}

/* ---------------------------------------------------------------------------------- AdamW -- */

typedef struct adam_work {
    const spw__adam_run *runs;
    const spw__loops *loops;
    const spw__code_maps *maps;
    split split;
} adam_work;

static spw__adam_run part_of_run(const spw__adam_run *run, span s)
{
    spw__adam_run part = *run;
    size_t state_bytes = run->absmax_m ? 1 : sizeof(float);
    part.p = (char *)run->p + s.first * spw__type_bytes(run->p_type);
    part.g = (const char *)run->g + s.first * spw__type_bytes(run->g_type);
    part.m = (char *)run->m + s.first * state_bytes;
    part.v = (char *)run->v + s.first * state_bytes;
    if (run->absmax_m) {
        part.absmax_m += s.first / SPW__BLOCK;
        part.absmax_v += s.first / SPW__BLOCK;
    }
    part.n = s.n;
    return part;
}

static void adam_part(const adam_work *work, const spw__adam_run *part)
{
    if (part->absmax_m)
        work->loops->adam8[part->p_type][part->g_type](part, work->maps);
    else
        work->loops->adam32[part->p_type][part->g_type](part);
}

static void adam_task(void *context, size_t index)
{
    const adam_work *work = context;
    uint64_t from = first_block(work->split, index), to = first_block(work->split, index + 1);
    uint64_t start = 0;
    for (const spw__adam_run *run = work->runs; start < to; run++) {
        uint64_t end = start + blocks_of(run->n);
        if (end > from && end > start) {
            spw__adam_run part = part_of_run(run, span_of(run->n, start, from, to));
            adam_part(work, &part);
        }
        start = end;
    }
}

static int cpu_adam(spw_device *device, const spw__adam_run *runs, uint64_t n_runs, void *stream)
{
    (void)stream; /* the cpu device is always done on return */
    uint64_t n_blocks = 0;
    for (uint64_t i = 0; i < n_runs; i++)
        n_blocks += blocks_of(runs[i].n);
    adam_work work = {
        .runs = runs,
        .loops = spw__loops_get(),
        .maps = spw__code_maps_get(),
        .split = split_of(device, n_blocks),
    };
    spw__pool_run(device->pool, work.split.n_tasks, adam_task, &work);
    return 0;
}

/* ----------------------------------------------------------------------------------- norm -- */

typedef struct norm_work {
    const spw__norm_run *runs;
    const spw__loops *loops;
    double *sums; /* one a block */
    split split;
} norm_work;

static void norm_span(const norm_work *work, const spw__norm_run *run, span s, double *sums)
{
    const char *g = (const char *)run->g + s.first * spw__type_bytes(run->type);
    for (uint64_t done = 0; done < s.n; done += SPW__SPLIT) {
        uint64_t n = s.n - done < SPW__SPLIT ? s.n - done : SPW__SPLIT;
        *sums++ = work->loops->square_sum[run->type](g + done * spw__type_bytes(run->type), n);
    }
}

static void norm_task(void *context, size_t index)
{
    const norm_work *work = context;
    uint64_t from = first_block(work->split, index), to = first_block(work->split, index + 1);
    uint64_t start = 0;
    for (const spw__norm_run *run = work->runs; start < to; run++) {
        uint64_t end = start + blocks_of(run->n);
        if (end > from && end > start)
            norm_span(work, run, span_of(run->n, start, from, to),
                      work->sums + (from > start ? from : start));
        start = end;
    }
}

/* Neighbours in pairs, then pairs of pairs; an odd one at the end goes up as it is. */
static double sum_pairs(double *x, uint64_t n)
{
    for (; n > 1; n = n / 2 + n % 2) {
        for (uint64_t i = 0; i < n / 2; i++)
            x[i] = x[2 * i] + x[2 * i + 1];
        if (n % 2)
            x[n / 2] = x[n - 1];
    }
    return n ? x[0] : 0.0;
}

/* ------------------------------------------------------------------------ an optimizer's steps --
 */

typedef struct cpu_table {
    spw__adam_table table; /* first */
    spw__adam_progress *progress;
    double *sums; /* one a block of the gradients */
    spw__adam_verdict verdict;
} cpu_table;

static void cpu_table_destroy(spw__adam_table *table)
{
    cpu_table *cpu = (cpu_table *)table;
    free(cpu->table.consts);
    free(cpu->progress);
    free(cpu->sums);
    free(cpu);
}

static int cpu_table_create(spw_device *device, uint64_t n_params, uint64_t norm_blocks,
                            spw__adam_table **table)
{
    cpu_table *cpu = spw__calloc(1, sizeof *cpu);
    if (!cpu)
        return SPW_EHOSTMEM;
    cpu->table = (spw__adam_table){.ops = &spw__kern_cpu, .device = device, .n_params = n_params};
    cpu->table.consts = spw__calloc(n_params, sizeof *cpu->table.consts);
    cpu->progress = spw__calloc(n_params, sizeof *cpu->progress);
    cpu->sums = spw__calloc(norm_blocks, sizeof *cpu->sums);
    if (!cpu->table.consts || !cpu->progress || !cpu->sums) {
        cpu_table_destroy(&cpu->table);
        return SPW_EHOSTMEM;
    }
    *table = &cpu->table;
    return 0;
}

static int cpu_norm(spw__adam_table *table, const spw__norm_run *runs, uint64_t n_runs,
                    double *norm)
{
    double *sums = ((cpu_table *)table)->sums;
    norm_work work = {
        .runs = runs,
        .loops = spw__loops_get(),
        .sums = sums,
        .split = split_of(table->device, spw__kern_norm_blocks(runs, n_runs)),
    };
    spw__pool_run(table->device->pool, work.split.n_tasks, norm_task, &work);
    double total = 0.0;
    for (uint64_t i = 0; i < n_runs; i++) {
        total += sum_pairs(sums, blocks_of(runs[i].n));
        sums += blocks_of(runs[i].n);
    }
    *norm = sqrt(total);
    return 0;
}

static int cpu_table_begin(spw__adam_table *table, const spw__adam_step *step)
{
    cpu_table *cpu = (cpu_table *)table;
    spw__adam_verdict *verdict = &cpu->verdict;
    spw__adam_open(verdict, step->grad_scale, step->loss_scale, step->found_inf);
    if (step->max_norm > 0) {
        double norm;
        (void)cpu_norm(table, step->norm_runs, step->n_norm_runs, &norm);
        spw__adam_judge(verdict, norm, step->max_norm);
    }
    table->skips = verdict->skip;
    verdict->steps += !verdict->skip;
    verdict->skipped += verdict->skip;
    for (uint64_t i = 0; i < table->n_params && !verdict->skip; i++) {
        const spw__adam_hyper *hyper = &step->hyper[i];
        if (!hyper->takes_part)
            continue;
        table->consts[i] = spw__adam_consts_of(hyper, &cpu->progress[i], verdict->factor);
        cpu->progress[i].step++;
    }
    return 0;
}

static int cpu_table_verdict(spw__adam_table *table, spw__adam_verdict *verdict)
{
    *verdict = ((cpu_table *)table)->verdict;
    return 0;
}

static int cpu_table_get(spw__adam_table *table, uint64_t param, spw__adam_progress *progress)
{
    *progress = ((cpu_table *)table)->progress[param];
    return 0;
}

static int cpu_table_set(spw__adam_table *table, uint64_t param, const spw__adam_progress *progress)
{
    ((cpu_table *)table)->progress[param] = *progress;
    return 0;
}

const spw__kern_ops spw__kern_cpu = {
    .table_create = cpu_table_create,
    .table_destroy = cpu_table_destroy,
    .table_begin = cpu_table_begin,
    .table_verdict = cpu_table_verdict,
    .table_get = cpu_table_get,
    .table_set = cpu_table_set,
    .norm = cpu_norm,
    .adam = cpu_adam,
};
