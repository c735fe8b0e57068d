/*
 * exact.cuh - square root and division without branches, for elements that are as usual.
 */
#ifndef SPW_KERN_CUDA_EXACT_CUH
#define SPW_KERN_CUDA_EXACT_CUH

#include "kern/cuda/loads.cuh"

/* sqrtf and division, correctly rounded where `usual` stays true, without the branches to a slow
 * path that the compiler puts around each: they would keep elements from overlapping. The sequences
 * are those of the compiler's own quick paths; the residuals are exact in the ranges that are let
 * through (x from 2^-101 on; |n| from 2^-100 to 2^60, d from 2^-40 to 2^20; and zeros). */
DEVICE float root_of(float x, bool *usual)
{
    float y, floor = 0x1p-101f;
    *usual &= x >= floor || x == 0;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaxf(x, floor)));
    float s = x * y;
    return fmaf(fmaf(-s, s, x), y * 0.5f, s);
}

DEVICE float quotient_of(float n, float d, bool *usual)
{
    float r;
    *usual &= (fabsf(n) >= 0x1p-100f && fabsf(n) <= 0x1p60f) || n == 0;
    *usual &= d >= 0x1p-40f && d <= 0x1p20f;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = fmaf(r, fmaf(-d, r, 1.0f), r);
    float q = n * r;
    q = fmaf(r, fmaf(-d, q, n), q);
    return copysignf(q, n); /* d is positive, and -0 / d is -0 */
}

#endif
