/*
 * select.h - which vector width this machine runs.
 *
 * Chosen once a process: the widest the machine has, or what SPW_CPU_LEVEL (baseline, v3, v4) asks
 * for if that is narrower. Any thread.
 */
#ifndef SPW_KERN_LOOPS_SELECT_H
#define SPW_KERN_LOOPS_SELECT_H

#include "kern/loops/loops.h"

enum spw__cpu_level {
    SPW__CPU_BASELINE,
    SPW__CPU_V3, /* x86-64-v3: AVX2 and FMA */
    SPW__CPU_V4, /* x86-64-v4: AVX-512 F, BW, CD, DQ, VL */
    SPW__CPU_LEVELS,
};

const spw__loops *spw__loops_get(void);

/* NULL where the machine lacks the level. */
const spw__loops *spw__loops_at(enum spw__cpu_level level);

#endif
