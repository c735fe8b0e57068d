/*
 * kern.h - the arithmetic of a step over runs of elements, wherever they lie.
 *
 * What it is not: it knows no pages, groups or files; it gets pointers to runs and the numbers that
 * are the same for all of a parameter's elements. Called by opt. The element functions are in
 * elements.h, one source for C and CUDA; loops/ runs them on a CPU (compiled once a vector width),
 * kern_cpu.c spreads them over the device's threads.
 *
 * The bits of a result depend on the inputs alone: not on the order or the number of runs, the
 * thread count or the vector width.
 */
#ifndef SPW_KERN_KERN_H
#define SPW_KERN_KERN_H

#include "dev/dev.h"

#include <stdint.h>

enum {
    SPW__BLOCK = 256,  /* elements that share an absmax */
    SPW__SPLIT = 4096, /* runs of one tensor are split at multiples of this */
};

/* What is computed once a step for each parameter, on the host, in double, then rounded. */
typedef struct spw__adam_consts {
    float grad_factor;    /* gradients are multiplied by it first: scale and clip together */
    float lerp_weight;    /* m += (1 - beta1) (g - m); from g, with -beta1, if beta1 <= 0.5 */
    uint32_t lerp_from_m; /* all ones: from m; 0: from g */
    float beta2;
    float one_minus_beta2;
    float step_size;      /* lr / (1 - beta1^t) */
    float root_bias2;     /* sqrt(1 - beta2^t): v_hat's root is sqrt(v) / root_bias2 */
    float inv_root_bias2; /* its reciprocal */
    float eps;
    float decay; /* 1 - lr * weight_decay */
} spw__adam_consts;

/* One run: consecutive elements of one tensor with their state. 8-bit runs begin at a multiple of
 * SPW__BLOCK of their tensor, and end at one or at the tensor's end. No two runs overlap. State
 * that was never written is all zero bytes: codes 0 with absmax 0 mean 0. */
typedef struct spw__adam_run {
    void *p;                    /* n elements of p_type */
    const void *g;              /* n elements of g_type */
    void *m, *v;                /* n floats, or n codes */
    float *absmax_m, *absmax_v; /* ceil(n / SPW__BLOCK) floats; NULL: 32-bit state */
    uint64_t n;
    const spw__adam_consts *consts;
    spw_type p_type, g_type;
} spw__adam_run;

/* AdamW over all runs, on the device's stream. Returns 0 or an error of the launch. */
int spw__kern_adam(spw_device *device, const spw__adam_run *runs, uint64_t n_runs, void *stream);

/* One gradient tensor for the norm. */
typedef struct spw__norm_run {
    const void *g;
    uint64_t n;
    spw_type type;
} spw__norm_run;

/* Root of the sum of squares over all tensors, by a fixed tree in double: 32 lanes in each block
 * of SPW__SPLIT elements (lane l has elements l, l + 32, ...), then lanes l and l + 16, l and l +
 * 8, and so on; neighbours in pairs over a tensor's blocks; then the tensors in order. `scratch`
 * holds one double a block of every tensor (spw__kern_norm_blocks). Not finite if a gradient is
 * not. */
uint64_t spw__kern_norm_blocks(const spw__norm_run *runs, uint64_t n_runs);
int spw__kern_norm(spw_device *device, const spw__norm_run *runs, uint64_t n_runs, double *scratch,
                   double *norm);

#endif
