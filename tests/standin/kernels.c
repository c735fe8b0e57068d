/*
 * Our kernels as the CPU has them: which bytes they touch, and what they do.
 *
 * The sums of the norm are added up in the shape of kernels.cu, group by group, so that what the
 * host lays out for them (first_group, the grid) has to be right.
 */
#include "world.h"

#include "kern/cuda/args.h"
#include "kern/elements.h"
#include "kern/loops/select.h"

struct standin_kernel {
    const char *name;
    void (*touch)(const standin_launch *launch, standin_touches *touches);
    void (*play)(const standin_launch *launch);
    uint32_t block;    /* threads that it is written for */
    uint32_t sizes[3]; /* of the parameters; the last ones are 0 */
    spw_type p_type, g_type;
    bool is_8bit;
};

static uint64_t up(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

static void require(const standin_launch *launch, bool holds, const char *what)
{
    if (!holds)
        standin__die("%s: %s", launch->kernel->name, what);
}

/* ----------------------------------------------------------------------------------- AdamW -- */

static const spw__gpu_run *runs_of(const spw__gpu_adam_args *args)
{
    return args->runs ? args->runs : args->few;
}

static void touch_run(const standin_kernel *kernel, const spw__gpu_run *run, standin_touches *t)
{
    uint64_t code = kernel->is_8bit ? 1 : 4, absmax = up(run->n, SPW__BLOCK) * sizeof(float);
    standin__touch(t, run->p, run->n * spw__type_bytes(kernel->p_type), true);
    standin__touch(t, run->g, run->n * spw__type_bytes(kernel->g_type), false);
    standin__touch(t, run->m, run->n * code, true);
    standin__touch(t, run->v, run->n * code, true);
    if (kernel->is_8bit) {
        standin__touch(t, run->absmax_m, absmax, true);
        standin__touch(t, run->absmax_v, absmax, true);
    }
    standin__touch(t, run->consts, sizeof *run->consts, false);
}

static void touch_adam(const standin_launch *launch, standin_touches *t)
{
    const spw__gpu_adam_args *args = (const void *)launch->args;
    uint64_t n_tiles = 0;
    if (args->runs)
        standin__touch(t, args->runs, args->n_runs * sizeof *args->runs, false);
    else
        require(launch, args->n_runs <= SPW__GPU_FEW, "more runs than travel with a launch");
    if (launch->kernel->is_8bit)
        standin__touch(t, args->maps, sizeof *args->maps, false);
    for (uint32_t i = 0; i < args->n_runs; i++) {
        const spw__gpu_run *run = &runs_of(args)[i];
        require(launch, run->first_tile == n_tiles, "a run's first_tile is not where it begins");
        n_tiles += up(run->n, SPW__GPU_TILE);
        touch_run(launch->kernel, run, t);
    }
    require(launch, args->n_tiles == n_tiles, "n_tiles is not what the runs have");
    require(launch, launch->grid <= n_tiles, "more thread blocks than tiles");
}

static void play_adam(const standin_launch *launch)
{
    const spw__gpu_adam_args *args = (const void *)launch->args;
    const standin_kernel *kernel = launch->kernel;
    const spw__loops *loops = spw__loops_get();
    for (uint32_t i = 0; i < args->n_runs; i++) {
        const spw__gpu_run *from = &runs_of(args)[i];
        spw__adam_run run = {from->p,        from->g, from->m,      from->v,        from->absmax_m,
                             from->absmax_v, from->n, from->consts, kernel->p_type, kernel->g_type};
        if (run.consts->skip)
            continue;
        if (kernel->is_8bit)
            loops->adam8[run.p_type][run.g_type](&run, args->maps);
        else
            loops->adam32[run.p_type][run.g_type](&run);
    }
}

/* ------------------------------------------------------------------------------------ norm -- */

static uint64_t groups_of(uint64_t n)
{
    return up(up(n, SPW__SPLIT), SPW__GPU_GROUP);
}

/* Neighbours in pairs, an odd one going up as it is. */
static double sum_pairs(double *x, uint64_t n)
{
    for (; n > 1; n = up(n, 2))
        for (uint64_t i = 0; i < up(n, 2); i++)
            x[i] = 2 * i + 1 < n ? x[2 * i] + x[2 * i + 1] : x[2 * i];
    return n ? x[0] : 0.0;
}

/* Both kernels of the norm; returns the groups of all tensors. */
static uint64_t touch_norm_runs(const standin_launch *launch, standin_touches *t, bool gradients)
{
    const spw__gpu_norm_args *args = (const void *)launch->args;
    uint64_t groups = 0;
    standin__touch(t, args->runs, args->n_runs * sizeof *args->runs, false);
    for (uint64_t i = 0; i < args->n_runs; i++) {
        const spw__gpu_norm_run *run = &args->runs[i];
        require(launch, run->first_group == groups, "a tensor's first_group is not right");
        groups += groups_of(run->n);
        if (gradients)
            standin__touch(t, run->g, run->n * spw__type_bytes((spw_type)run->type), false);
    }
    standin__touch(t, args->groups, groups * sizeof(double), true);
    return groups;
}

static void touch_norm_groups(const standin_launch *launch, standin_touches *t)
{
    uint64_t groups = touch_norm_runs(launch, t, true);
    require(launch, launch->grid == groups, "the grid is not one thread block a group");
}

static void touch_norm_tensors(const standin_launch *launch, standin_touches *t)
{
    const spw__gpu_norm_args *args = (const void *)launch->args;
    (void)touch_norm_runs(launch, t, false);
    require(launch, launch->grid == args->n_runs, "the grid is not one thread block a tensor");
    standin__touch(t, args->tensors, args->n_runs * sizeof(double), true);
}

static double group_sum(const spw__gpu_norm_run *run, uint64_t first)
{
    spw_type type = (spw_type)run->type;
    double sums[SPW__GPU_GROUP];
    uint64_t n_sums = 0;
    for (; n_sums < SPW__GPU_GROUP && first < run->n; n_sums++, first += SPW__SPLIT) {
        uint64_t n = run->n - first < SPW__SPLIT ? run->n - first : SPW__SPLIT;
        const char *g = (const char *)run->g + first * spw__type_bytes(type);
        sums[n_sums] = spw__loops_get()->square_sum[type](g, n);
    }
    return sum_pairs(sums, n_sums);
}

static void play_norm_groups(const standin_launch *launch)
{
    const spw__gpu_norm_args *args = (const void *)launch->args;
    for (uint64_t i = 0; i < args->n_runs; i++) {
        const spw__gpu_norm_run *run = &args->runs[i];
        for (uint64_t k = 0; k < groups_of(run->n); k++)
            args->groups[run->first_group + k] = group_sum(run, k * SPW__GPU_GROUP * SPW__SPLIT);
    }
}

static void play_norm_tensors(const standin_launch *launch)
{
    const spw__gpu_norm_args *args = (const void *)launch->args;
    for (uint64_t i = 0; i < args->n_runs; i++) {
        const spw__gpu_norm_run *run = &args->runs[i];
        args->tensors[i] = sum_pairs(args->groups + run->first_group, groups_of(run->n));
    }
}

static double sum_tensors(const double *tensors, uint64_t n)
{
    double total = 0;
    for (uint64_t i = 0; i < n; i++)
        total += tensors[i];
    return total;
}

typedef struct total_args {
    const double *tensors;
    uint64_t n;
    double *norm;
} total_args;

static void touch_norm_total(const standin_launch *launch, standin_touches *t)
{
    const total_args *args = (const void *)launch->args;
    require(launch, launch->grid == 1, "the grid is not one thread block");
    standin__touch(t, args->tensors, args->n * sizeof(double), false);
    standin__touch(t, args->norm, sizeof *args->norm, true);
}

static void play_norm_total(const standin_launch *launch)
{
    const total_args *args = (const void *)launch->args;
    *args->norm = sqrt(sum_tensors(args->tensors, args->n));
}

/* ---------------------------------------------------------------------- a step's beginning -- */

static void touch_begin(const standin_launch *launch, standin_touches *t)
{
    const spw__gpu_begin_args *args = (const void *)launch->args;
    require(launch, launch->grid == 1, "the grid is not one thread block");
    standin__touch(t, args->hyper, args->n_params * sizeof *args->hyper, false);
    standin__touch(t, args->progress, args->n_params * sizeof *args->progress, true);
    standin__touch(t, args->consts, args->n_params * sizeof *args->consts, true);
    standin__touch(t, args->verdict, sizeof *args->verdict, true);
    if (args->max_norm > 0)
        standin__touch(t, args->tensors, args->n_tensors * sizeof(double), false);
    if (args->loss_scale)
        standin__touch(t, args->loss_scale, sizeof *args->loss_scale, false);
    if (args->found_inf)
        standin__touch(t, args->found_inf, sizeof *args->found_inf, false);
}

static spw__adam_verdict judge(const spw__gpu_begin_args *args)
{
    spw__adam_verdict verdict = *args->verdict;
    spw__adam_open(&verdict, args->grad_scale, args->loss_scale, args->found_inf);
    if (args->max_norm > 0) {
        double norm = sqrt(sum_tensors(args->tensors, args->n_tensors));
        spw__adam_judge(&verdict, norm, args->max_norm);
    }
    verdict.steps += !verdict.skip;
    verdict.skipped += verdict.skip;
    return verdict;
}

static void play_begin(const standin_launch *launch)
{
    const spw__gpu_begin_args *args = (const void *)launch->args;
    spw__adam_verdict verdict = *args->verdict = judge(args);
    for (uint64_t i = 0; i < args->n_params; i++) {
        const spw__adam_hyper *hyper = &args->hyper[i];
        if (!hyper->takes_part)
            continue;
        if (verdict.skip) {
            args->consts[i].skip = 1;
            continue;
        }
        args->consts[i] = spw__adam_consts_of(hyper, &args->progress[i], verdict.factor);
        args->progress[i].step++;
    }
}

/* ----------------------------------------------------------------------------------- table -- */

#define KERNEL(bits, p_name, p, g_name, g)                                                         \
    {.name = "spw_adam" #bits "_" #p_name "_" #g_name,                                             \
     .touch = touch_adam,                                                                          \
     .play = play_adam,                                                                            \
     .block = SPW__GPU_THREADS,                                                                    \
     .sizes = {sizeof(spw__gpu_adam_args)},                                                        \
     .p_type = p,                                                                                  \
     .g_type = g,                                                                                  \
     .is_8bit = bits == 8}

#define PAIR(p_name, p, g_name, g) KERNEL(32, p_name, p, g_name, g), KERNEL(8, p_name, p, g_name, g)

#define ADAM(name, p)                                                                              \
    PAIR(name, p, fp32, SPW_FP32), PAIR(name, p, bf16, SPW_BF16), PAIR(name, p, fp16, SPW_FP16)

static const standin_kernel kernels[] = {
    ADAM(fp32, SPW_FP32),
    ADAM(bf16, SPW_BF16),
    ADAM(fp16, SPW_FP16),
    {.name = "spw_norm_groups",
     .touch = touch_norm_groups,
     .play = play_norm_groups,
     .block = SPW__GPU_NORM_THREADS,
     .sizes = {sizeof(spw__gpu_norm_args)}},
    {.name = "spw_norm_tensors",
     .touch = touch_norm_tensors,
     .play = play_norm_tensors,
     .block = SPW__GPU_NORM_THREADS,
     .sizes = {sizeof(spw__gpu_norm_args)}},
    {.name = "spw_norm_total",
     .touch = touch_norm_total,
     .play = play_norm_total,
     .block = SPW__GPU_NORM_THREADS,
     .sizes = {sizeof(double *), sizeof(uint64_t), sizeof(double *)}},
    {.name = "spw_begin",
     .touch = touch_begin,
     .play = play_begin,
     .block = SPW__GPU_NORM_THREADS,
     .sizes = {sizeof(spw__gpu_begin_args)}},
};

int standin__kernels(void)
{
    return sizeof kernels / sizeof *kernels;
}

const standin_kernel *standin__kernel_at(int index)
{
    return &kernels[index];
}

const char *standin__kernel_name(const standin_kernel *kernel)
{
    return kernel->name;
}

standin_launch *standin__launch_new(const standin_kernel *kernel, const void *const *params)
{
    uint64_t bytes = 0, at = 0;
    for (int i = 0; i < 3; i++)
        bytes += kernel->sizes[i];
    standin_launch *launch = standin__new(sizeof *launch + bytes);
    launch->kernel = kernel;
    for (int i = 0; i < 3 && kernel->sizes[i]; i++) {
        memcpy((char *)launch->args + at, params[i], kernel->sizes[i]);
        at += kernel->sizes[i];
    }
    return launch;
}

void standin__launch_touch(const standin_launch *launch, standin_touches *touches)
{
    require(launch, launch->block == launch->kernel->block, "not the threads it is written for");
    launch->kernel->touch(launch, touches);
}

void standin__launch_play(const standin_launch *launch)
{
    launch->kernel->play(launch);
}
