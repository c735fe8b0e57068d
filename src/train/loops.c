#include "train/loops.h"

extern const spw__loops spw__train_loops_baseline;
#if defined(__x86_64__)
extern const spw__loops spw__train_loops_x86_64_v3;
extern const spw__loops spw__train_loops_x86_64_v4;

static const spw__loops *widest(void)
{
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    if (v4)
        return &spw__train_loops_x86_64_v4;
    return v3 ? &spw__train_loops_x86_64_v3 : &spw__train_loops_baseline;
}
#else
static const spw__loops *widest(void)
{
    return &spw__train_loops_baseline;
}
#endif

const spw__loops *spw__loops_best(void)
{
    return widest();
}
