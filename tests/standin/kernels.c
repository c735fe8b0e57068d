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
    uint32_t block;          /* threads that it is written for */
    uint32_t sizes[3];       /* of the parameters; the last ones are 0 */
    spw_type p_type, g_type; /* AdamW's; other rules have them in the launch */
    spw_rule rule;
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

/* ---------------------------------------------------------------------------------- update -- */

static const spw__gpu_run *runs_of(const spw__gpu_adam_args *args)
{
    return args->runs ? args->runs : args->few;
}

static spw__update_run run_of(const standin_launch *launch, const spw__gpu_run *from)
{
    const spw__gpu_adam_args *args = (const void *)launch->args;
    bool named = launch->kernel->rule == SPW_ADAMW;
    return (spw__update_run){.p = from->p,
                             .g = from->g,
                             .m = from->m,
                             .v = from->v,
                             .absmax_m = from->absmax_m,
                             .absmax_v = from->absmax_v,
                             .m_slow = from->m_slow,
                             .absmax_m_slow = from->absmax_m_slow,
                             .n = from->n,
                             .consts = from->consts,
                             .p_type = named ? launch->kernel->p_type : (spw_type)args->p_type,
                             .g_type = named ? launch->kernel->g_type : (spw_type)args->g_type};
}

static void touch_moment(const standin_launch *launch, void *codes, float *absmax, uint64_t n,
                         standin_touches *t)
{
    bool is_8bit = launch->kernel->is_8bit;
    require(launch, codes && (absmax || !is_8bit), "a moment of the rule is missing");
    standin__touch(t, codes, n * (is_8bit ? 1 : 4), true);
    if (is_8bit)
        standin__touch(t, absmax, up(n, SPW__BLOCK) * sizeof(float), true);
}

static void touch_run(const standin_launch *launch, const spw__gpu_run *from, standin_touches *t)
{
    spw__update_run run = run_of(launch, from);
    standin__touch(t, run.p, run.n * spw__type_bytes(run.p_type), true);
    standin__touch(t, run.g, run.n * spw__type_bytes(run.g_type), false);
    touch_moment(launch, run.m, run.absmax_m, run.n, t);
    if (spw__rule_has_v(launch->kernel->rule))
        touch_moment(launch, run.v, run.absmax_v, run.n, t);
    if (spw__rule_has_m_slow(launch->kernel->rule))
        touch_moment(launch, run.m_slow, run.absmax_m_slow, run.n, t);
    standin__touch(t, run.consts, sizeof *run.consts, false);
}

static void touch_update(const standin_launch *launch, standin_touches *t)
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
        touch_run(launch, run, t);
    }
    require(launch, args->n_tiles == n_tiles, "n_tiles is not what the runs have");
    require(launch, launch->grid <= n_tiles, "more thread blocks than tiles");
}

static void play_update(const standin_launch *launch)
{
    const spw__gpu_adam_args *args = (const void *)launch->args;
    const standin_kernel *kernel = launch->kernel;
    const spw__loops *loops = spw__loops_get();
    bool named = kernel->rule == SPW_ADAMW;
    for (uint32_t i = 0; i < args->n_runs; i++) {
        spw__update_run run = run_of(launch, &runs_of(args)[i]);
        if (run.consts->skip)
            continue;
        if (kernel->is_8bit)
            (named ? loops->adam8[run.p_type][run.g_type] : loops->rule8[kernel->rule])(&run,
                                                                                        args->maps);
        else
            (named ? loops->adam32[run.p_type][run.g_type] : loops->rule32[kernel->rule])(&run);
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
    standin__touch(t, args->hyper, args->n_groups * sizeof *args->hyper, false);
    standin__touch(t, args->groups, args->n_params * sizeof *args->groups, false);
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

static spw__verdict judge(const spw__gpu_begin_args *args)
{
    spw__verdict verdict = *args->verdict;
    spw__verdict_open(&verdict, args->grad_scale, args->loss_scale, args->found_inf);
    if (args->max_norm > 0) {
        double norm = sqrt(sum_tensors(args->tensors, args->n_tensors));
        spw__verdict_judge(&verdict, norm, args->max_norm);
    }
    verdict.steps += !verdict.skip;
    verdict.skipped += verdict.skip;
    return verdict;
}

static void play_begin(const standin_launch *launch)
{
    const spw__gpu_begin_args *args = (const void *)launch->args;
    spw__verdict verdict = *args->verdict = judge(args);
    for (uint64_t i = 0; i < args->n_params; i++) {
        if (args->groups[i] == SPW__SITS_OUT)
            continue;
        const spw__hyper *hyper = &args->hyper[args->groups[i]];
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
     .touch = touch_update,                                                                        \
     .play = play_update,                                                                          \
     .block = SPW__GPU_THREADS,                                                                    \
     .sizes = {sizeof(spw__gpu_adam_args)},                                                        \
     .p_type = p,                                                                                  \
     .g_type = g,                                                                                  \
     .is_8bit = bits == 8}

#define PAIR(p_name, p, g_name, g) KERNEL(32, p_name, p, g_name, g), KERNEL(8, p_name, p, g_name, g)

#define ADAM(name, p)                                                                              \
    PAIR(name, p, fp32, SPW_FP32), PAIR(name, p, bf16, SPW_BF16), PAIR(name, p, fp16, SPW_FP16)

#define RULE_KERNEL(label, which, bits)                                                            \
    {.name = label #bits,                                                                          \
     .touch = touch_update,                                                                        \
     .play = play_update,                                                                          \
     .block = SPW__GPU_THREADS,                                                                    \
     .sizes = {sizeof(spw__gpu_adam_args)},                                                        \
     .rule = which,                                                                                \
     .is_8bit = bits == 8}

#define RULE(label, which) RULE_KERNEL(label, which, 32), RULE_KERNEL(label, which, 8)

static const standin_kernel kernels[] = {
    ADAM(fp32, SPW_FP32),
    ADAM(bf16, SPW_BF16),
    ADAM(fp16, SPW_FP16),
    RULE("spw_adam_any", SPW_ADAM),
    RULE("spw_lion", SPW_LION),
    RULE("spw_ademamix", SPW_ADEMAMIX),
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
