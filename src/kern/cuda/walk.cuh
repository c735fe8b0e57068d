/*
 * walk.cuh - which tiles a thread block works on, and to which runs they belong.
 */
#ifndef SPW_KERN_CUDA_WALK_CUH
#define SPW_KERN_CUDA_WALK_CUH

#include "kern/cuda/loads.cuh"

/* A thread block's share of the tiles, and where it is in the runs. */
typedef struct walk {
    const spw__gpu_run *runs;
    uint64_t tile, end;
    uint32_t run, n_runs;
} walk;

DEVICE walk walk_begin(const spw__gpu_adam_args *args)
{
    walk w;
    uint64_t each = args->n_tiles / gridDim.x, left = args->n_tiles % gridDim.x, b = blockIdx.x;
    w.runs = args->runs ? args->runs : args->few;
    w.tile = each * b + (b < left ? b : left);
    w.end = w.tile + each + (b < left);
    w.n_runs = args->n_runs;
    uint32_t low = 0, high = w.n_runs;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (w.runs[middle].first_tile <= w.tile)
            low = middle;
        else
            high = middle;
    }
    w.run = low;
    return w;
}

/* The run of the walk's tile. */
DEVICE const spw__gpu_run *walk_run(walk *w)
{
    while (w->run + 1 < w->n_runs && w->runs[w->run + 1].first_tile <= w->tile)
        w->run++;
    return &w->runs[w->run];
}

#endif
