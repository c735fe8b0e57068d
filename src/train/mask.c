#include "train/mask.h"

/* Sets the masks' bits apart from other uses of the same seed. */
static const uint32_t DOMAIN = 0x6D61736Bu;

spw__mask spw__mask_of(const spw__noise *noise, uint32_t place, float dropout)
{
    double threshold = (double)dropout * 0x1p32;
    return (spw__mask){
        .key = {(uint32_t)noise->seed, (uint32_t)(noise->seed >> 32) ^ DOMAIN},
        .stream = {place, (uint32_t)noise->step, (uint32_t)noise->micro_batch},
        .threshold = threshold < 0x1p32 - 1.0 ? (uint32_t)threshold : UINT32_MAX,
        .scale = dropout < 1.0f ? 1.0f / (1.0f - dropout) : 0.0f,
    };
}
