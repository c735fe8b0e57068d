/*
 * kernels.cu - the element functions over runs, on a GPU. C with CUDA's keywords; -fmad=false.
 *
 * What it is not: it decides nothing and reduces nothing that the CPU reduces in another order. One
 * kernel for each pair of types and each kind of state, so that one launch serves every run of the
 * resident set (C++ templates write the nine out). A thread block takes its share of all tiles, in
 * a row: it finds the first one's run by bisection and walks on from there. Memory is touched once,
 * by 16 bytes a thread where elements are whole and aligned; what is left over has a path of its
 * own, so that the usual one has no branches.
 */
#include "kern/cuda/adam32.cuh"
#include "kern/cuda/adam8.cuh"
#include "kern/cuda/norm.cuh"

/* ------------------------------------------------------------------------- a step's beginning --
 */

/* The tensors in order. They come to shared memory together: one after the other from the device's
 * memory would take longer than the sum. */
DEVICE double sum_tensors(const double *tensors, uint64_t n)
{
    __shared__ double part[SPW__GPU_NORM_THREADS];
    double total = 0;
    for (uint64_t first = 0; first < n; first += SPW__GPU_NORM_THREADS) {
        __syncthreads();
        if (first + threadIdx.x < n)
            part[threadIdx.x] = tensors[first + threadIdx.x];
        __syncthreads();
        for (uint64_t i = 0; threadIdx.x == 0 && i < n - first && i < SPW__GPU_NORM_THREADS; i++)
            total += part[i];
    }
    return total;
}

extern "C" __global__ void spw_norm_total(const double *tensors, uint64_t n, double *norm)
{
    double total = sum_tensors(tensors, n);
    if (threadIdx.x == 0)
        *norm = sqrt(total);
}

extern "C" __global__ void __launch_bounds__(SPW__GPU_NORM_THREADS)
    spw_begin(const spw__gpu_begin_args args)
{
    __shared__ spw__adam_verdict verdict;
    double total = args.max_norm > 0 ? sum_tensors(args.tensors, args.n_tensors) : 0;
    if (threadIdx.x == 0) {
        verdict = *args.verdict;
        spw__adam_open(&verdict, args.grad_scale, args.loss_scale, args.found_inf);
        if (args.max_norm > 0)
            spw__adam_judge(&verdict, sqrt(total), args.max_norm);
        verdict.steps += !verdict.skip;
        verdict.skipped += verdict.skip;
        *args.verdict = verdict;
    }
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < args.n_params; i += SPW__GPU_NORM_THREADS) {
        const spw__adam_hyper *hyper = &args.hyper[i];
        if (!hyper->takes_part)
            continue;
        if (verdict.skip) {
            args.consts[i].skip = 1;
            continue;
        }
        spw__adam_consts consts = spw__adam_consts_of(hyper, &args.progress[i], verdict.factor);
        consts.mild = is_mild(&consts);
        args.consts[i] = consts;
        args.progress[i].step++;
    }
}

/* ----------------------------------------------------------------------------------- table -- */

#define KERNEL(name, body, blocks)                                                                 \
    extern "C" __global__ void __launch_bounds__(SPW__GPU_THREADS, blocks)                         \
        name(const __grid_constant__ spw__gpu_adam_args args)                                      \
    {                                                                                              \
        body(&args);                                                                               \
    }

#define PAIR(p_name, p, g_name, g)                                                                 \
    KERNEL(spw_adam32_##p_name##_##g_name, (adam32_tiles<p, g>), SPW__GPU_BLOCKS_32)               \
    KERNEL(spw_adam8_##p_name##_##g_name, (adam8_tiles<p, g>), SPW__GPU_BLOCKS_8)

#define PARAMETER(name, p)                                                                         \
    PAIR(name, p, fp32, float)                                                                     \
    PAIR(name, p, bf16, bf16)                                                                      \
    PAIR(name, p, fp16, fp16)

PARAMETER(fp32, float)
PARAMETER(bf16, bf16)
PARAMETER(fp16, fp16)
