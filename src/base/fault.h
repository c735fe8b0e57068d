/*
 * fault.h - the N-th call fails, for tests: a countdown beside each kind of call that can.
 *
 * Zero, as it begins, means never. Any thread.
 */
#ifndef SPW_BASE_FAULT_H
#define SPW_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef atomic_uint_fast64_t spw__fault;

/* True for the call that brings the countdown to zero. */
static inline bool spw__fault_is_due(spw__fault *fault)
{
    uint_fast64_t left = atomic_load_explicit(fault, memory_order_relaxed);
    while (left)
        if (atomic_compare_exchange_weak(fault, &left, left - 1))
            return left == 1;
    return false;
}

#endif
