/*
 * norm.cuh - the sum of squares of all gradients, by the tree that kern.h fixes.
 */
#ifndef SPW_KERN_CUDA_NORM_CUH
#define SPW_KERN_CUDA_NORM_CUH

#include "kern/cuda/loads.cuh"

DEVICE uint64_t blocks_of(uint64_t n)
{
    return n / SPW__SPLIT + (n % SPW__SPLIT != 0);
}

DEVICE uint64_t groups_of(uint64_t n)
{
    return (blocks_of(n) + SPW__GPU_GROUP - 1) / SPW__GPU_GROUP;
}

/* Lane l adds up elements l, l + 32, ... of one block; then the lanes, as kern.h has it. */
template <typename G> DEVICE double block_sum(const G *g, int n)
{
    double sum = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        double x = (double)load1(g + i);
        sum += x * x;
    }
    for (int width = 16; width; width /= 2)
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, width);
    return sum;
}

DEVICE double sum_of(const spw__gpu_norm_run *run, uint64_t first, int n)
{
    switch (run->type) {
    case SPW_FP32:
        return block_sum((const float *)run->g + first, n);
    case SPW_BF16:
        return block_sum((const bf16 *)run->g + first, n);
    default:
        return block_sum((const fp16 *)run->g + first, n);
    }
}

/* Neighbours in pairs over `n` values, one a lane, an odd one going up as it is; in lane 0. */
DEVICE double pair_sum(double value, int n)
{
    int lane = threadIdx.x % 32;
    for (int width = 1; width < 32; width *= 2) {
        double other = __shfl_down_sync(0xFFFFFFFFu, value, width);
        if (lane + width < n)
            value += other;
    }
    return value;
}

/* One thread block sums SPW__GPU_GROUP neighbouring blocks: a whole subtree of the tensor's tree.
 */
extern "C" __global__ void __launch_bounds__(SPW__GPU_NORM_THREADS)
    spw_norm_groups(const spw__gpu_norm_args args)
{
    __shared__ double sums[SPW__GPU_GROUP];
    uint64_t low = 0, high = args.n_runs;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (args.runs[middle].first_group <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    const spw__gpu_norm_run *run = &args.runs[low];
    int warp = threadIdx.x / 32;
    uint64_t first_block = (blockIdx.x - run->first_group) * SPW__GPU_GROUP;
    uint64_t first = (first_block + warp) * SPW__SPLIT;
    if (first < run->n) {
        int n = run->n - first < SPW__SPLIT ? (int)(run->n - first) : SPW__SPLIT;
        double sum = sum_of(run, first, n);
        if (threadIdx.x % 32 == 0)
            sums[warp] = sum;
    }
    __syncthreads();
    uint64_t left = blocks_of(run->n) - first_block;
    int n_sums = left < SPW__GPU_GROUP ? (int)left : SPW__GPU_GROUP;
    if (warp == 0) {
        double sum = pair_sum(threadIdx.x < n_sums ? sums[threadIdx.x] : 0, n_sums);
        if (threadIdx.x == 0)
            args.groups[blockIdx.x] = sum;
    }
}

/* One thread block a tensor: pairs its groups, level by level, in place. What a round writes was
 * read by the rounds before it and by itself. */
extern "C" __global__ void __launch_bounds__(SPW__GPU_NORM_THREADS)
    spw_norm_tensors(const spw__gpu_norm_args args)
{
    const spw__gpu_norm_run *run = &args.runs[blockIdx.x];
    double *x = args.groups + run->first_group;
    uint64_t n = groups_of(run->n);
    for (; n > 1; n = n / 2 + n % 2) {
        for (uint64_t first = 0; first < n / 2 + n % 2; first += SPW__GPU_NORM_THREADS) {
            uint64_t i = first + threadIdx.x;
            double sum = 0;
            if (2 * i < n)
                sum = 2 * i + 1 < n ? x[2 * i] + x[2 * i + 1] : x[2 * i];
            __syncthreads();
            if (2 * i < n)
                x[i] = sum;
            __syncthreads();
        }
    }
    if (threadIdx.x == 0)
        args.tensors[blockIdx.x] = n ? x[0] : 0;
}

#endif
