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

/* Of any rule; a moment that the rule does not keep is 0. */
typedef struct spw__element {
    float p, m, v, m_slow;
} spw__element;

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

/* e^x for x <= 0, by multiples of ln 2 and the series: libraries' exp need not have the same bits
 * on a GPU. Within 2 ulp. */
SPW__INLINE double spw__exp(double x)
{
    double k = rint(x * 0x1.71547652b82fep+0);
    double r = fma(k, -0x1.62e42fefa39efp-1, x);
    double sum = 1;
    r = fma(k, -0x1.abc9e3b39803fp-56, r);
    for (int n = 15; n > 0; n--)
        sum = fma(sum, r / n, 1.0);
    return ldexp(sum, (int)k);
}

/* AdEMAMix's schedules, for step t = 1, 2, ... of a parameter. */
SPW__INLINE double spw__alpha_at(const spw__hyper *hyper, uint64_t t)
{
    if (t >= hyper->t_alpha)
        return hyper->alpha;
    return (double)t * hyper->alpha / (double)hyper->t_alpha;
}

SPW__INLINE double spw__beta3_at(const spw__hyper *hyper, uint64_t t)
{
    if (t >= hyper->t_beta3)
        return hyper->beta3;
    double part = (double)t / (double)hyper->t_beta3;
    double log1 = hyper->log_beta1, log3 = hyper->log_beta3;
    double now = spw__exp(log1 * log3 / ((1 - part) * log3 + part * log1));
    return now < hyper->beta3 ? now : hyper->beta3;
}

SPW__INLINE void spw__consts_set_decay(spw__adam_consts *c, const spw__hyper *hyper)
{
    float shrink = (float)(1 - hyper->lr * hyper->weight_decay);
    int decoupled = hyper->rule != SPW_ADAM, after = hyper->decay == SPW_DECAY_AFTER;
    c->decay = decoupled && !after ? shrink : 1.0f;
    c->decay_after = decoupled && after ? shrink : 1.0f;
    c->l2 = decoupled ? 0.0f : (float)hyper->weight_decay;
}

/* `done` is where the parameter stood before the step. Bias correction takes the betas of this step
 * to the power of all steps, as torch.optim does, whatever the betas were before: what a checkpoint
 * holds (the number of steps) is enough to go on. */
SPW__INLINE spw__adam_consts spw__adam_consts_of(const spw__hyper *hyper,
                                                 const spw__param_progress *done,
                                                 double grad_factor)
{
    spw__adam_consts c;
    int is_adam = hyper->rule == SPW_ADAMW || hyper->rule == SPW_ADAM;
    double beta3 = spw__beta3_at(hyper, done->step + 1);
    double bias1 = 1 - spw__power(hyper->beta1, done->step + 1);
    double bias2 = 1 - spw__power(hyper->beta2, done->step + 1);
    float weight = (float)(1 - hyper->beta1);
    int from_m = weight < 0.5f;
    c.grad_factor = (float)grad_factor;
    c.lerp_weight = from_m ? weight : weight - 1;
    c.lerp_from_m = from_m ? UINT32_MAX : 0;
    c.beta2 = (float)hyper->beta2;
    c.one_minus_beta2 = (float)(1 - hyper->beta2);
    c.step_size = (float)(is_adam ? hyper->lr / bias1 : hyper->lr);
    c.root_bias2 = (float)sqrt(bias2);
    c.inv_root_bias2 = (float)(1 / sqrt(bias2));
    c.eps = (float)hyper->eps;
    c.beta1 = (float)hyper->beta1;
    c.one_minus_beta1 = weight;
    c.beta3 = (float)beta3;
    c.one_minus_beta3 = (float)(1 - beta3);
    c.alpha = (float)spw__alpha_at(hyper, done->step + 1);
    c.bias1 = (float)bias1;
    c.inv_bias1 = (float)(1 / bias1);
    spw__consts_set_decay(&c, hyper);
    c.skip = 0;
    c.mild = 0;
    return c;
}

/* What a step is told of its gradients: their scale, and whether one is known not to be finite. */
SPW__INLINE void spw__verdict_open(spw__verdict *verdict, double grad_scale,
                                   const float *loss_scale, const float *found_inf)
{
    verdict->factor = loss_scale ? grad_scale / (double)*loss_scale : grad_scale;
    verdict->skip = found_inf && *found_inf != 0.0f;
}

/* What clipping makes of the gradients' norm; `verdict->skip` if it is not finite. */
SPW__INLINE void spw__verdict_judge(spw__verdict *verdict, double norm, double max_norm)
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

/* ------------------------------------------------------------- an element, whatever the rule -- */

/* A moment that follows the gradient: bitsandbytes' mul_ and add_, on a CPU. */
SPW__INLINE float spw__follow(float old, float g, float keep, float take)
{
    return fmaf(take, g, keep * old);
}

/* Adam with what AdamW's functions leave out: decay in the gradient, decay after the update. */
SPW__INLINE spw__element spw__adam_any(spw__element old, float g, const spw__adam_consts *c,
                                       int is_8bit)
{
    spw__element next = old;
    next.m = spw__adam_m(old.m, g, c);
    next.v = spw__adam_v(old.v, g, c);
    float root = is_8bit ? spw__adam_root8(next.v, c) : spw__adam_root32(next.v, c);
    next.p = (old.p * c->decay - c->step_size * next.m / root) * c->decay_after;
    return next;
}

/* `step` with the sign of x; 0 for 0 and NaN. */
SPW__INLINE float spw__towards(float x, float step)
{
    uint32_t is_some = 0u - (uint32_t)(spw__magnitude_bits(x) - 1u < 0x7F800000u);
    uint32_t sign = spw__bits_of_float(x) & 0x80000000u;
    return spw__float_of_bits((spw__bits_of_float(step) | sign) & is_some);
}

SPW__INLINE spw__element spw__lion(spw__element old, float g, const spw__adam_consts *c)
{
    spw__element next = old;
    float way = spw__follow(old.m, g, c->beta1, c->one_minus_beta1);
    next.p = (old.p * c->decay - spw__towards(way, c->step_size)) * c->decay_after;
    next.m = spw__follow(old.m, g, c->beta2, c->one_minus_beta2);
    return next;
}

SPW__INLINE spw__element spw__ademamix(spw__element old, float g, const spw__adam_consts *c,
                                       int is_8bit)
{
    spw__element next;
    next.m = spw__follow(old.m, g, c->beta1, c->one_minus_beta1);
    next.m_slow = spw__follow(old.m_slow, g, c->beta3, c->one_minus_beta3);
    next.v = spw__adam_v(old.v, g, c);
    float mixed = is_8bit ? fmaf(c->alpha, next.m_slow, next.m * c->inv_bias1)
                          : next.m / c->bias1 + c->alpha * next.m_slow;
    float root = is_8bit ? spw__adam_root8(next.v, c) : spw__adam_root32(next.v, c);
    next.p = fmaf(-c->step_size, mixed / root, old.p * c->decay) * c->decay_after;
    return next;
}

/* One step of a rule (SPW_ADAM for AdamW too); `rule` and `is_8bit` are constants where it is
 * called. An element whose gradient is not finite stays as it is. */
SPW__INLINE spw__element spw__update(spw_rule rule, spw__element old, float g,
                                     const spw__adam_consts *c, int is_8bit)
{
    spw__element next;
    if (rule == SPW_ADAM && c->l2 != 0.0f)
        g = fmaf(c->l2, old.p, g);
    next = rule == SPW_LION       ? spw__lion(old, g, c)
           : rule == SPW_ADEMAMIX ? spw__ademamix(old, g, c, is_8bit)
                                  : spw__adam_any(old, g, c, is_8bit);
    uint32_t finite = 0u - (uint32_t)(spw__magnitude_bits(g) < 0x7F800000u);
    next.p = spw__select(finite, next.p, old.p);
    next.m = spw__select(finite, next.m, old.m);
    next.v = spw__select(finite, next.v, old.v);
    next.m_slow = spw__select(finite, next.m_slow, old.m_slow);
    return next;
}

/* -------------------------------------------------------------------------------- its code -- */

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
