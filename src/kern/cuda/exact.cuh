/*
 * exact.cuh - square root and division without branches, for elements that are as usual.
 *
 * The compiler puts a branch to a slow path around each of sqrtf and /, which keeps the elements of
 * a thread from overlapping. These are the sequences of its own quick paths, correctly rounded
 * while residuals are exact: for x = 0 and x from 2^-101 on; and for n = 0 and |n| from 2^-100 to
 * 2^60, with d from 2^-40 to 2^24. Who calls them sees to the ranges:
 *
 *   the step's constants   eps 2^-40 to 2^10, step_size 0 or 2^-30 to 2^20, inv_root_bias2 at most
 *                          2^13: is_mild, once a parameter and step
 *   a block's maxima       m at most 2^40, v at most 2^20: then n is at most 2^60, d at most 2^24
 *   every element          m is 0 or at least 2^-70, v is 0 or at least 2^-101: floor_of
 */
#ifndef SPW_KERN_CUDA_EXACT_CUH
#define SPW_KERN_CUDA_EXACT_CUH

#include "kern/cuda/loads.cuh"

#define MOST_M 0x53800000u  /* the bits of 2^40 */
#define MOST_V 0x49800000u  /* 2^20 */
#define LEAST_M 0x1C800000u /* 2^-70 */
#define LEAST_V 0x0D000000u /* 2^-101 */

DEVICE float root_of(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaxf(x, 0x1p-101f)));
    float s = x * y;
    return fmaf(fmaf(-s, s, x), y * 0.5f, s);
}

DEVICE float quotient_of(float n, float d)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = fmaf(r, fmaf(-d, r, 1.0f), r);
    float q = n * r;
    q = fmaf(r, fmaf(-d, q, n), q);
    return copysignf(q, n); /* -0 / d is -0 */
}

DEVICE uint32_t is_mild(const spw__adam_consts *c)
{
    bool step_is = c->step_size == 0 || (c->step_size >= 0x1p-30f && c->step_size <= 0x1p20f);
    return step_is && c->eps >= 0x1p-40f && c->eps <= 0x1p10f && c->inv_root_bias2 <= 0x1p13f &&
           c->lerp_from_m;
}

/* The smaller of `floor` and the bits of a magnitude, less 1: a zero counts as the largest. */
DEVICE uint32_t floor_of(uint32_t floor, uint32_t magnitude)
{
    return min(floor, magnitude - 1);
}

#endif
