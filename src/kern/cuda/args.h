/*
 * args.h - what kern_cuda.c hands to kernels.cu; the same layout on both sides.
 */
#ifndef SPW_KERN_CUDA_ARGS_H
#define SPW_KERN_CUDA_ARGS_H

#include "kern/kern.h"
#include "kern/tables.h"

enum {
    SPW__GPU_TILE = SPW__SPLIT, /* elements that a thread block works on at a time */
    SPW__GPU_THREADS = 256,     /* in a thread block of the updates' kernels */
    SPW__GPU_BLOCKS_32 = 3,     /* thread blocks that a multiprocessor runs at once, 32-bit state */
    SPW__GPU_SHARES_32 = 16,    /* for each of them, so many in the grid: shares even out */
    SPW__GPU_BLOCKS_8 = 2,      /* 8-bit state: each fills its tables once, so none follows */
    SPW__GPU_FEW = 24,          /* runs that travel with the launch itself */
    SPW__GPU_GROUP = 32,        /* blocks of SPW__SPLIT that one thread block of the norm sums up */
    SPW__GPU_NORM_THREADS = 1024 /* a warp for each of them */
};

/* A spw__update_run whose types are the launch's. All pointers are the device's. */
typedef struct spw__gpu_run {
    void *p;
    const void *g;
    void *m, *v;
    float *absmax_m, *absmax_v;
    uint64_t n;
    const spw__adam_consts *consts;
    uint64_t first_tile; /* tiles of the runs before it */
    void *m_slow;
    float *absmax_m_slow;
} spw__gpu_run;

typedef struct spw__gpu_adam_args {
    const spw__gpu_run *runs; /* NULL: they are in `few` */
    const spw__code_maps *maps;
    uint64_t n_tiles;
    uint32_t n_runs;
    uint32_t p_type, g_type; /* spw_type; AdamW's kernels have theirs in their names */
    spw__gpu_run few[SPW__GPU_FEW];
} spw__gpu_adam_args;

typedef struct spw__gpu_norm_run {
    const void *g;
    uint64_t n;
    uint64_t first_group; /* groups of the tensors before it */
    uint64_t type;        /* spw_type */
} spw__gpu_norm_run;

typedef struct spw__gpu_norm_args {
    const spw__gpu_norm_run *runs;
    uint64_t n_runs;
    double *groups;  /* one a group of all tensors */
    double *tensors; /* [n_runs] */
} spw__gpu_norm_args;

typedef struct spw__gpu_begin_args {
    const spw__hyper *hyper; /* by group */
    const uint32_t *groups;  /* [n_params], or SPW__SITS_OUT */
    spw__param_progress *progress;
    spw__adam_consts *consts;
    spw__verdict *verdict;
    const double *tensors; /* sums of squares */
    uint64_t n_params, n_groups, n_tensors;
    double max_norm, grad_scale;
    const float *loss_scale, *found_inf; /* NULL: not given */
} spw__gpu_begin_args;

#endif
