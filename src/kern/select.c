#include "kern/loops/select.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const spw__loops *chosen;
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

#ifdef __x86_64__

#include <cpuid.h>

/* __builtin_cpu_supports("f16c") is unknown to clang before 19. That the system keeps the wide
 * registers, which it needs too, follows from AVX2, which the builtin asks about. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

/* By features, because older compilers do not know the levels' names here. */
static bool has_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

const spw__loops *spw__loops_at(enum spw__cpu_level level)
{
    __builtin_cpu_init();
    if (level == SPW__CPU_V4)
        return has_v4() ? &spw__loops_x86_64_v4 : NULL;
    if (level == SPW__CPU_V3)
        return has_v3() ? &spw__loops_x86_64_v3 : NULL;
    return &spw__loops_baseline;
}

#else

const spw__loops *spw__loops_at(enum spw__cpu_level level)
{
    return level == SPW__CPU_BASELINE ? &spw__loops_baseline : NULL;
}

#endif

static int widest_wanted(void)
{
    static const char *const names[SPW__CPU_LEVELS] = {"baseline", "v3", "v4"};
    const char *text = getenv("SPW_CPU_LEVEL");
    for (int level = 0; text && level < SPW__CPU_LEVELS; level++)
        if (strcmp(text, names[level]) == 0)
            return level;
    return SPW__CPU_LEVELS - 1;
}

static void choose(void)
{
    for (int level = widest_wanted(); !chosen; level--)
        chosen = spw__loops_at((enum spw__cpu_level)level);
}

const spw__loops *spw__loops_get(void)
{
    pthread_once(&chosen_once, choose);
    return chosen;
}
