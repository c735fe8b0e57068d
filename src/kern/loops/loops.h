/*
 * loops.h - the element functions over one run on one thread, for one vector width.
 *
 * loops.c is compiled several times (SPW_LOOPS_SUFFIX and -march differ) and each exports one const
 * table. Every table gives the same bits; which one runs is decided in kern_cpu.c. No state, any
 * thread.
 */
#ifndef SPW_KERN_LOOPS_LOOPS_H
#define SPW_KERN_LOOPS_LOOPS_H

#include "kern/kern.h"
#include "kern/tables.h"

typedef void spw__32bit_loop(const spw__update_run *run);
typedef void spw__8bit_loop(const spw__update_run *run, const spw__code_maps *maps);
typedef double spw__square_sum_loop(const void *g, uint64_t n);

/* AdamW's by [p_type][g_type], the others' for all types; an 8-bit run begins at a block.
 * square_sum is by the gradient's type, of at most SPW__SPLIT elements, by kern.h's lanes. */
typedef struct spw__loops {
    const char *name; /* of the level: SPW_CPU_LEVEL */
    spw__32bit_loop *adam32[SPW__TYPES][SPW__TYPES];
    spw__8bit_loop *adam8[SPW__TYPES][SPW__TYPES];
    spw__32bit_loop *rule32[SPW__RULES]; /* NULL for SPW_ADAMW */
    spw__8bit_loop *rule8[SPW__RULES];   /* likewise */
    spw__square_sum_loop *square_sum[SPW__TYPES];
} spw__loops;

extern const spw__loops spw__loops_baseline;
#ifdef __x86_64__
extern const spw__loops spw__loops_x86_64_v3;
extern const spw__loops spw__loops_x86_64_v4;
#endif

#endif
