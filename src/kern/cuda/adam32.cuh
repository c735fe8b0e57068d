/*
 * adam32.cuh - AdamW over tiles whose state is fp32.
 */
#ifndef SPW_KERN_CUDA_ADAM32_CUH
#define SPW_KERN_CUDA_ADAM32_CUH

#include "kern/cuda/walk.cuh"

enum { ROUND = SPW__GPU_THREADS * WIDTH /* elements that a thread block works on at once */ };

/* WHOLE: ROUND * ROUNDS elements, aligned. Otherwise `n` of them. */
template <bool WHOLE, int ROUNDS, typename P, typename G>
DEVICE void adam32(P *p, const G *g, float *m, float *v, uint64_t n, const spw__adam_consts *c)
{
    four pf[ROUNDS], gf[ROUNDS], mf[ROUNDS], vf[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        uint32_t i = r * ROUND + threadIdx.x * WIDTH;
        int here = WHOLE ? WIDTH : clamp(n, i);
        pf[r] = load<WHOLE>(p + i, here);
        gf[r] = load<WHOLE>(g + i, here);
        mf[r] = load<WHOLE>(m + i, here);
        vf[r] = load<WHOLE>(v + i, here);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        uint32_t i = r * ROUND + threadIdx.x * WIDTH;
        int here = WHOLE ? WIDTH : clamp(n, i);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            spw__adam_element old = {pf[r].at[k], mf[r].at[k], vf[r].at[k]};
            spw__adam_element next = spw__adam_update(old, gf[r].at[k] * c->grad_factor, c, 0);
            pf[r].at[k] = next.p;
            mf[r].at[k] = next.m;
            vf[r].at[k] = next.v;
        }
        store<WHOLE>(p + i, pf[r], here);
        store<WHOLE>(m + i, mf[r], here);
        store<WHOLE>(v + i, vf[r], here);
    }
}

enum { AT_ONCE = 2 /* rounds whose loads are under way together */ };

template <typename P, typename G> DEVICE void adam32_tiles(const spw__gpu_adam_args *args)
{
    for (walk w = walk_begin(args); w.tile < w.end; w.tile++) {
        const spw__gpu_run *run = walk_run(&w);
        spw__adam_consts c = *run->consts;
        if (c.skip)
            continue;
        uint64_t first = (w.tile - run->first_tile) * SPW__GPU_TILE;
        P *p = global((P *)run->p + first);
        const G *g = global((const G *)run->g + first);
        float *m = global((float *)run->m + first), *v = global((float *)run->v + first);
        uint64_t n = run->n - first;
        if (n >= SPW__GPU_TILE && is_aligned(p) && is_aligned(g)) {
            for (int i = 0; i < SPW__GPU_TILE; i += AT_ONCE * ROUND)
                adam32<true, AT_ONCE>(p + i, g + i, m + i, v + i, 0, &c);
        } else {
#pragma unroll 1
            for (uint64_t i = 0; i < n && i < SPW__GPU_TILE; i += ROUND)
                adam32<false, 1>(p + i, g + i, m + i, v + i, n - i, &c);
        }
    }
}

#endif
