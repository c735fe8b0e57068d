#include "train/schedule.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

spw__schedule spw__schedule_of(spw__schedule_kind kind, double peak, double fraction,
                               uint64_t steps)
{
    uint64_t warmup = (uint64_t)ceil(fraction * (double)steps);
    return (spw__schedule){.kind = kind, .peak = peak, .warmup = warmup, .steps = steps};
}

double spw__schedule_rate(const spw__schedule *schedule, uint64_t step)
{
    if (step < schedule->warmup)
        return schedule->peak * (double)(step + 1) / (double)schedule->warmup;
    if (schedule->kind == SPW__CONSTANT || step >= schedule->steps)
        return schedule->kind == SPW__CONSTANT ? schedule->peak : 0;
    double done = (double)(step - schedule->warmup) / (double)(schedule->steps - schedule->warmup);
    return schedule->peak * 0.5 * (1 + cos(pi * done));
}
