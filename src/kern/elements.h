/*
 * elements.h - the arithmetic of one element, one source for C and CUDA.
 *
 * What it is not: it has no loops, threads or memory order; loops/ (CPU) and the kernels call these
 * functions. Compiled without contraction everywhere, fused operations are written as fmaf, square
 * roots and divisions are correctly rounded: equal inputs give equal bits on every compiler, vector
 * width and device.
 */
#ifndef SPW_KERN_ELEMENTS_H
#define SPW_KERN_ELEMENTS_H

#include "base/half.h"
#include "kern/kern.h"
#include "kern/tables.h"

#include <math.h>

typedef struct spw__adam_element {
    float p, m, v;
} spw__adam_element;

SPW__INLINE uint32_t spw__magnitude_bits(float x)
{
    return spw__bits_of_float(x) & 0x7FFFFFFFu;
}

/* `yes` when mask is all ones, `no` when it is 0: integer operations, because a compiler may turn a
 * float selection into a branch, and the loop around it then stays scalar. */
SPW__INLINE float spw__select(uint32_t mask, float yes, float no)
{
    return spw__float_of_bits((spw__bits_of_float(yes) & mask) | (spw__bits_of_float(no) & ~mask));
}

/* ---------------------------------------------------------------------- once a step, in double --
 */

/* torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1. */
SPW__INLINE double spw__clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

/* base^exponent by squaring: libraries' pow need not have the same bits on a GPU. */
SPW__INLINE double spw__power(double base, uint64_t exponent)
{
    double product = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1)
            product *= base;
    return product;
}

/* `done` is where the parameter stood before the step. Bias correction takes the betas of this step
 * to the power of all steps, as torch.optim does, whatever the betas were before: what a checkpoint
 * holds (the number of steps) is enough to go on. */
SPW__INLINE spw__adam_consts spw__adam_consts_of(const spw__adam_hyper *hyper,
                                                 const spw__adam_progress *done, double grad_factor)
{
    spw__adam_consts c;
    double bias1 = 1 - spw__power(hyper->beta1, done->step + 1);
    double bias2 = 1 - spw__power(hyper->beta2, done->step + 1);
    float weight = (float)(1 - hyper->beta1);
    int from_m = weight < 0.5f;
    c.grad_factor = (float)grad_factor;
    c.lerp_weight = from_m ? weight : weight - 1;
    c.lerp_from_m = from_m ? UINT32_MAX : 0;
    c.beta2 = (float)hyper->beta2;
    c.one_minus_beta2 = (float)(1 - hyper->beta2);
    c.step_size = (float)(hyper->lr / bias1);
    c.root_bias2 = (float)sqrt(bias2);
    c.inv_root_bias2 = (float)(1 / sqrt(bias2));
    c.eps = (float)hyper->eps;
    c.decay = (float)(1 - hyper->lr * hyper->weight_decay);
    c.skip = 0;
    c.mild = 0;
    return c;
}

/* What a step is told of its gradients: their scale, and whether one is known not to be finite. */
SPW__INLINE void spw__adam_open(spw__adam_verdict *verdict, double grad_scale,
                                const float *loss_scale, const float *found_inf)
{
    verdict->factor = loss_scale ? grad_scale / (double)*loss_scale : grad_scale;
    verdict->skip = found_inf && *found_inf != 0.0f;
}

/* What clipping makes of the gradients' norm; `verdict->skip` if it is not finite. */
SPW__INLINE void spw__adam_judge(spw__adam_verdict *verdict, double norm, double max_norm)
{
    verdict->grad_norm = norm * verdict->factor;
    verdict->factor *= spw__clip_factor(verdict->grad_norm, max_norm);
    verdict->skip |= !(fabs(verdict->grad_norm) <= 1.7976931348623157e308);
}

/* ------------------------------------------------------------------------------ an element -- */

/* What the update of an element is divided by: the root of v_hat, and eps. With 32-bit state it is
 * divided out as torch.optim does; with 8-bit state, whose error is larger by orders, the
 * reciprocal that was computed once saves a division an element. */
SPW__INLINE float spw__adam_root32(float v, const spw__adam_consts *c)
{
    return sqrtf(v) / c->root_bias2 + c->eps;
}

SPW__INLINE float spw__adam_root8(float v, const spw__adam_consts *c)
{
    return fmaf(sqrtf(v), c->inv_root_bias2, c->eps);
}

/* The moments, by the operations of torch.optim.AdamW on a CPU, rounding for rounding: lerp_ for m,
 * which starts from the nearer end; mul_ and addcmul_ for v. */
SPW__INLINE float spw__adam_m(float m, float g, const spw__adam_consts *c)
{
    return fmaf(c->lerp_weight, g - m, spw__select(c->lerp_from_m, m, g));
}

SPW__INLINE float spw__adam_v(float v, float g, const spw__adam_consts *c)
{
    return fmaf(c->one_minus_beta2 * g, g, c->beta2 * v);
}

/* AdamW as torch.optim has it: decay, moments, update. `g` already carries the step's factor and is
 * finite. `is_8bit` is a constant where it is called. */
SPW__INLINE spw__adam_element spw__adam_update_finite(spw__adam_element old, float g,
                                                      const spw__adam_consts *c, int is_8bit)
{
    spw__adam_element next;
    next.m = spw__adam_m(old.m, g, c);
    next.v = spw__adam_v(old.v, g, c);
    float root = is_8bit ? spw__adam_root8(next.v, c) : spw__adam_root32(next.v, c);
    next.p = old.p * c->decay - c->step_size * next.m / root;
    return next;
}

/* The same for any gradient: an element whose gradient is not finite stays as it is. */
SPW__INLINE spw__adam_element spw__adam_update(spw__adam_element old, float g,
                                               const spw__adam_consts *c, int is_8bit)
{
    spw__adam_element next = spw__adam_update_finite(old, g, c, is_8bit);
    uint32_t finite = 0u - (uint32_t)(spw__magnitude_bits(g) < 0x7F800000u);
    next.p = spw__select(finite, next.p, old.p);
    next.m = spw__select(finite, next.m, old.m);
    next.v = spw__select(finite, next.v, old.v);
    return next;
}

/* What turns the elements of a block into [0, 1]: |x| * scale * inverse. In two factors, because
 * the reciprocal of a denormal or huge absmax is not a normal float. */
typedef struct spw__code_scale {
    float absmax; /* finite: an element that overflowed gets the last code */
    float scale;
    float inverse; /* 0 for a block of zeros */
} spw__code_scale;

/* `bits` is the largest spw__magnitude_bits of the block: a maximum of integers does not depend on
 * the order, whatever the elements are. */
SPW__INLINE spw__code_scale spw__code_scale_of(uint32_t bits)
{
    spw__code_scale s;
    s.absmax = spw__float_of_bits(bits < 0x7F7FFFFFu ? bits : 0x7F7FFFFFu);
    s.scale = s.absmax < 0x1p-63f ? 0x1p64f : s.absmax > 0x1p63f ? 0x1p-64f : 1.0f;
    s.inverse = s.absmax > 0.0f ? 1.0f / (s.absmax * s.scale) : 0.0f;
    return s;
}

/* The float |x| / absmax by its bits, within what the look-up has: 2^-23 to 1. */
SPW__INLINE int32_t spw__code_bits(float x, spw__code_scale s)
{
    float magnitude = spw__float_of_bits(spw__magnitude_bits(x));
    float ratio = magnitude * s.scale * s.inverse;
    int32_t bits = (int32_t)spw__bits_of_float(ratio);
    int32_t first = SPW__CODE_KEY_FIRST << 16, last = SPW__CODE_KEY_LAST << 16;
    bits = bits < last ? bits : last;
    return bits < first ? first : bits;
}

/* How many values of the map's non-negative half lie below the one that is nearest to |x|. */
SPW__INLINE int32_t spw__code_rank(const uint32_t *encode, float x, spw__code_scale s)
{
    int32_t bits = spw__code_bits(x, s);
    uint32_t entry = encode[(bits >> 16) - SPW__CODE_KEY_FIRST];
    return (int32_t)((entry + ((uint32_t)bits & 0xFFFFu)) >> 16);
}

/* Nearest code, ties to the even one; 0 stays 0. Negative elements have no code for -1. */
SPW__INLINE uint8_t spw__code_of_m(const uint32_t *encode, float x, spw__code_scale s)
{
    int32_t rank = spw__code_rank(encode, x, s);
    int32_t sign = -(int32_t)(spw__bits_of_float(x) >> 31);
    int32_t code = SPW__CODE_ZERO + ((rank ^ sign) - sign);
    return (uint8_t)(code < 0 ? 0 : code);
}

SPW__INLINE uint8_t spw__code_of_v(const uint32_t *encode, float x, spw__code_scale s)
{
    return (uint8_t)spw__code_rank(encode, x, s);
}

#endif
