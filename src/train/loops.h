/*
 * loops.h - the element loops of the model over one row, compiled once for each vector width.
 *
 * Loops over runs of floats that the compiler turns into vectors; sums go to 16 lanes that a fixed
 * tree adds up, so that every width gives the same bits. No threads, no allocation, no
 * shapes: norm.c, rope.c, swiglu.c, attention.c, linear.c and loss.c spread rows over a pool and
 * call these. Pointers of one call do not overlap unless they are equal and the comment allows it.
 */
#ifndef SPW_TRAIN_LOOPS_H
#define SPW_TRAIN_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which elements a dropout keeps: element e where word e % 4 of Philox(counter {e / 4, stream...},
 * key) is at least `threshold`; the kept are multiplied by `scale`, 1 / (1 - p). */
typedef struct spw__mask {
    uint32_t key[2];
    uint32_t stream[3];
    uint32_t threshold;
    float scale;
} spw__mask;

typedef struct spw__norm_factors {
    float factor, pull;
} spw__norm_factors;

typedef struct spw__loops {
    /* The largest of n >= 1 elements. */
    float (*max)(const float *x, size_t n);

    /* x = exp(x - shift), to 2 ulp, where the exponent is in [-87, 88] (clamped); the sum. */
    double (*exp_sum)(float *x, size_t n, float shift);

    float (*dot)(const float *x, const float *y, size_t n);
    float (*dot3)(const float *x, const float *y, const float *z, size_t n);

    /* x *= factor */
    void (*scale)(float *x, size_t n, float factor);

    /* sum += x */
    void (*add)(float *sum, const float *x, size_t n);

    /* sum += x * y * factor */
    void (*add_product)(float *sum, const float *x, const float *y, size_t n, float factor);

    /* y = x * factor * gain; y may be x */
    void (*scale_by)(float *y, const float *x, const float *gain, size_t n, float factor);

    /* dx += dy * gain * factor - x * pull; in place: d = d * gain * factor - x * pull */
    void (*norm_backward)(float *dx, const float *dy, const float *x, const float *gain, size_t n,
                          const spw__norm_factors *factors);
    void (*norm_backward_in_place)(float *d, const float *x, const float *gain, size_t n,
                                   const spw__norm_factors *factors);

    /* Rotates the pairs (x[i], x[i + half]) by the angles whose cosines and sines are given. */
    void (*rotate)(float *x, const float *cosine, const float *sine, size_t half, float direction);

    /* y = silu(gate) * up */
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);

    /* gate and up become their gradients, from that of y */
    void (*swiglu_backward)(float *gate, float *up, const float *dy, size_t n);

    /* p = p * (dp - mean) * factor */
    void (*softmax_backward)(float *p, const float *dp, size_t n, float mean, float factor);

    /* y = dropout(x), or y += dropout(x); x holds elements first, first + 1, ...; first is a
     * multiple of 4; y may be x */
    void (*dropout)(float *y, const float *x, size_t n, uint64_t first, const spw__mask *mask);
    void (*add_dropout)(float *y, const float *x, size_t n, uint64_t first, const spw__mask *mask);
} spw__loops;

/* The widest the CPU can run. */
const spw__loops *spw__loops_best(void);

#endif
