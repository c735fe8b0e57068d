/*
 * support.h - what the tests of kern share: a bare device, random numbers, one tensor with state.
 */
#ifndef SPW_TESTS_KERN_SUPPORT_H
#define SPW_TESTS_KERN_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "kern/kern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A device with nothing but threads: all that kern asks of it. */
static inline spw_device support_device(unsigned threads)
{
    spw_device device = {.host_memory = true};
    assert_int_equal(spw__pool_create(threads, &device.pool), 0);
    return device;
}

static inline void support_device_end(spw_device *device)
{
    spw__pool_destroy(device->pool);
}

/* xorshift64*: the same numbers everywhere. */
static inline uint64_t support_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

/* Uniform in -1..1. */
static inline float support_uniform(uint64_t *state)
{
    return (float)((double)(support_random(state) >> 11) * 0x1p-52 - 1.0);
}

/* Either sign, magnitudes over many decades, as gradients are. */
static inline float support_gradient(uint64_t *state)
{
    float sign = support_uniform(state);
    return sign * powf(10.0f, -4.0f + 3.0f * support_uniform(state));
}

static inline void support_put(void *data, spw_type type, uint64_t i, float value)
{
    if (type == SPW_FP32)
        ((float *)data)[i] = value;
    else if (type == SPW_BF16)
        ((uint16_t *)data)[i] = spw__bf16_of_float(value);
    else
        ((uint16_t *)data)[i] = spw__fp16_of_float(value);
}

static inline float support_get(const void *data, spw_type type, uint64_t i)
{
    if (type == SPW_FP32)
        return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return type == SPW_BF16 ? spw__float_of_bf16(half) : spw__float_of_fp16(half);
}

#endif
