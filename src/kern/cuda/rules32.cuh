/*
 * rules32.cuh - the rules beside AdamW over tiles whose state is fp32.
 *
 * One kernel a rule: the types of parameters and gradients are looked at where they are loaded and
 * stored, the same way by all threads of a launch.
 */
#ifndef SPW_KERN_CUDA_RULES32_CUH
#define SPW_KERN_CUDA_RULES32_CUH

#include "kern/cuda/adam32.cuh"

/* Four elements from `i` on of whatever type; `whole` and `n` as loads.cuh's load has them. */
template <bool WHOLE> DEVICE four load_any(const void *x, uint32_t type, uint64_t i, int n)
{
    switch (type) {
    case SPW_FP32:
        return load<WHOLE>(global((const float *)x + i), n);
    case SPW_BF16:
        return load<WHOLE>(global((const bf16 *)x + i), n);
    default:
        return load<WHOLE>(global((const fp16 *)x + i), n);
    }
}

template <bool WHOLE> DEVICE void store_any(void *x, uint32_t type, uint64_t i, four f, int n)
{
    switch (type) {
    case SPW_FP32:
        store<WHOLE>(global((float *)x + i), f, n);
        break;
    case SPW_BF16:
        store<WHOLE>(global((bf16 *)x + i), f, n);
        break;
    default:
        store<WHOLE>(global((fp16 *)x + i), f, n);
    }
}

DEVICE bool is_aligned_any(const void *x, uint32_t type)
{
    return type == SPW_FP32 ? is_aligned((const float *)x) : is_aligned((const bf16 *)x);
}

/* A thread's four elements of a run, from `i` on. */
template <spw_rule RULE, bool WHOLE>
DEVICE void rule32(const spw__gpu_adam_args *args, const spw__gpu_run *run, uint64_t i,
                   const spw__adam_consts *c)
{
    constexpr bool HAS_V = RULE != SPW_LION, HAS_SLOW = RULE == SPW_ADEMAMIX;
    int here = WHOLE ? WIDTH : clamp(run->n, i);
    four zeros = {{0, 0, 0, 0}};
    four p = load_any<WHOLE>(run->p, args->p_type, i, here);
    four g = load_any<WHOLE>(run->g, args->g_type, i, here);
    four m = load_any<WHOLE>(run->m, SPW_FP32, i, here);
    four v = HAS_V ? load_any<WHOLE>(run->v, SPW_FP32, i, here) : zeros;
    four slow = HAS_SLOW ? load_any<WHOLE>(run->m_slow, SPW_FP32, i, here) : zeros;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        spw__element old = {p.at[k], m.at[k], v.at[k], slow.at[k]};
        spw__element next = spw__update(RULE, old, g.at[k] * c->grad_factor, c, 0);
        p.at[k] = next.p;
        m.at[k] = next.m;
        v.at[k] = next.v;
        slow.at[k] = next.m_slow;
    }
    store_any<WHOLE>(run->p, args->p_type, i, p, here);
    store_any<WHOLE>(run->m, SPW_FP32, i, m, here);
    if (HAS_V)
        store_any<WHOLE>(run->v, SPW_FP32, i, v, here);
    if (HAS_SLOW)
        store_any<WHOLE>(run->m_slow, SPW_FP32, i, slow, here);
}

template <spw_rule RULE> DEVICE void rule32_tiles(const spw__gpu_adam_args *args)
{
    for (walk w = walk_begin(args); w.tile < w.end; w.tile++) {
        const spw__gpu_run *run = walk_run(&w);
        spw__adam_consts c = *run->consts;
        if (c.skip)
            continue;
        uint64_t first = (w.tile - run->first_tile) * SPW__GPU_TILE, mine = threadIdx.x * WIDTH;
        bool whole = run->n - first >= SPW__GPU_TILE && is_aligned_any(run->p, args->p_type) &&
                     is_aligned_any(run->g, args->g_type);
#pragma unroll 1
        for (uint64_t i = first + mine; i < first + SPW__GPU_TILE; i += ROUND)
            if (whole)
                rule32<RULE, true>(args, run, i, &c);
            else
                rule32<RULE, false>(args, run, i, &c);
    }
}

#endif
