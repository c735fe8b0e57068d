/*
 * kern.h - the arithmetic of a step over runs of elements, wherever they lie.
 *
 * What it is not: it knows no pages, groups or files; it gets pointers to runs and the numbers that
 * are the same for all of a parameter's elements. Called by opt. The element functions are in
 * elements.h, one source for C and CUDA; loops/ runs them on a CPU (compiled once a vector width),
 * kern_cpu.c spreads them over the device's threads. kern.c picks the implementation by device.
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
    SPW__TYPES = 3,    /* of spw_type */
};

static inline uint64_t spw__type_bytes(spw_type type)
{
    return type == SPW_FP32 ? 4 : 2;
}

/* A parameter's hyper-parameters in one step. */
typedef struct spw__adam_hyper {
    double lr, beta1, beta2, eps, weight_decay;
    uint64_t takes_part; /* 0: no gradient in this step, nothing of it changes */
} spw__adam_hyper;

/* How far a parameter has come. The device counts: a skipped step, which only it may know of, does
 * not advance it. */
typedef struct spw__adam_progress {
    uint64_t step; /* updates it has had */
} spw__adam_progress;

/* What a step decided. */
typedef struct spw__adam_verdict {
    double grad_norm; /* after grad_scale, before clipping; of the last step that clipped */
    double factor;    /* gradients are multiplied by it: scale and clip together */
    uint64_t steps;   /* taken, skipped ones not counted */
    uint64_t skipped;
    uint64_t skip; /* this step changes nothing: its norm is not finite, or it was told so */
} spw__adam_verdict;

/* What is computed once a step for each parameter, in double, then rounded. */
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
    float decay;   /* 1 - lr * weight_decay */
    uint32_t skip; /* 1: change nothing; for devices whose verdict the host does not know */
    uint32_t mild; /* 1: in the ranges that cuda/exact.cuh assumes; set and read on a GPU alone */
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

/* One gradient tensor for the norm. */
typedef struct spw__norm_run {
    const void *g;
    uint64_t n;
    spw_type type;
} spw__norm_run;

/* What steps of one optimizer keep between them, on the device where that is not the host: the
 * parameters' progress and constants, the last verdict, room for the norm. */
typedef struct spw__adam_table spw__adam_table;

typedef struct spw__adam_step {
    const spw__adam_hyper *hyper;   /* [n_params], read before the call returns */
    const spw__norm_run *norm_runs; /* [n_norm_runs], likewise; used if max_norm > 0 */
    uint64_t n_norm_runs;
    double max_norm;         /* 0: no clipping */
    double grad_scale;       /* not 0 */
    const float *loss_scale; /* device memory, NULL: 1; gradients are divided by it */
    const float *found_inf;  /* device memory, NULL: 0; the step is skipped if it is not 0 */
    void *stream;
} spw__adam_step;

/* SPW_ENOTSUP while the device cannot take work on that stream of the caller's: it is captured. */
int spw__kern_check_stream(spw_device *device, void *stream);

/* `norm_blocks` is what spw__kern_norm_blocks will answer at most. Where each parameter stands is
 * to be said by spw__kern_table_set before the first step. */
int spw__kern_table_create(spw_device *device, uint64_t n_params, uint64_t norm_blocks,
                           spw__adam_table **table);
void spw__kern_table_destroy(spw__adam_table *table); /* NULL is allowed; waits for its steps */

/* Begins a step: the norm if it clips, the verdict, every parameter's constants, and its progress
 * if the step is not skipped. */
int spw__kern_table_begin(spw__adam_table *table, const spw__adam_step *step);

/* True if it is known by now that the step which begin began changes nothing. A device that does
 * not know yet lets the runs themselves do nothing. */
bool spw__kern_table_skips(const spw__adam_table *table);

/* Where spw__kern_table_begin leaves a parameter's constants: device memory, for runs. */
const spw__adam_consts *spw__kern_table_consts(const spw__adam_table *table, uint64_t param);

/* These wait for the steps that were begun. */
int spw__kern_table_verdict(spw__adam_table *table, spw__adam_verdict *verdict);
int spw__kern_table_get(spw__adam_table *table, uint64_t param, spw__adam_progress *progress);
int spw__kern_table_set(spw__adam_table *table, uint64_t param, const spw__adam_progress *progress);

/* Root of the sum of squares over all tensors, by a fixed tree in double: 32 lanes in each block
 * of SPW__SPLIT elements (lane l has elements l, l + 32, ...), then lanes l and l + 16, l and l +
 * 8, and so on; neighbours in pairs over a tensor's blocks; then the tensors in order. Not finite
 * if a gradient is not. Waits for the result. */
uint64_t spw__kern_norm_blocks(const spw__norm_run *runs, uint64_t n_runs);
int spw__kern_norm(spw__adam_table *table, const spw__norm_run *runs, uint64_t n_runs,
                   double *norm);

/* AdamW over all runs, on the device's stream. Returns 0 or an error of the launch. */
int spw__kern_adam(spw_device *device, const spw__adam_run *runs, uint64_t n_runs, void *stream);

/* One implementation: what the functions above do on one kind of device. */
typedef struct spw__kern_ops {
    int (*check_stream)(spw_device *device, void *stream); /* NULL: there are no streams */
    int (*table_create)(spw_device *device, uint64_t n_params, uint64_t norm_blocks,
                        spw__adam_table **table);
    void (*table_destroy)(spw__adam_table *table);
    int (*table_begin)(spw__adam_table *table, const spw__adam_step *step);
    int (*table_verdict)(spw__adam_table *table, spw__adam_verdict *verdict);
    int (*table_get)(spw__adam_table *table, uint64_t param, spw__adam_progress *progress);
    int (*table_set)(spw__adam_table *table, uint64_t param, const spw__adam_progress *progress);
    int (*norm)(spw__adam_table *table, const spw__norm_run *runs, uint64_t n_runs, double *norm);
    int (*adam)(spw_device *device, const spw__adam_run *runs, uint64_t n_runs, void *stream);
} spw__kern_ops;

struct spw__adam_table {
    const spw__kern_ops *ops;
    spw_device *device;
    spw__adam_consts *consts; /* [n_params], device memory */
    uint64_t n_params;
    bool skips;
};

extern const spw__kern_ops spw__kern_cpu;
#ifdef SPW_HAVE_CUDA
extern const spw__kern_ops spw__kern_cuda;
#endif

#endif
