/*
 * rules8.cuh - the rules beside AdamW over tiles whose state is in 8-bit codes: a warp a block of
 * 256 elements. Types as in rules32.cuh.
 */
#ifndef SPW_KERN_CUDA_RULES8_CUH
#define SPW_KERN_CUDA_RULES8_CUH

#include "kern/cuda/rules32.cuh"

/* What the code maps have that a block needs, near by. */
typedef struct near_map {
    float value[SPW__CODES];
    uint32_t encode[SPW__CODE_KEYS];
} near_map;

DEVICE void fill_near(near_map *near, const spw__code_map *map)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < SPW__CODES; i += SPW__GPU_THREADS)
        near->value[i] = map->value[i];
#pragma unroll 1
    for (int i = threadIdx.x; i < SPW__CODE_KEYS; i += SPW__GPU_THREADS)
        near->encode[i] = map->encode[i];
}

DEVICE uint32_t block_max(uint32_t value)
{
    for (int width = 16; width; width /= 2)
        value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, width));
    return value;
}

enum { RULE_ROUNDS = SPW__BLOCK / 32 / WIDTH };

/* A lane's elements of a moment. */
typedef struct lane_moment {
    four at[RULE_ROUNDS];
    uint32_t most; /* largest spw__magnitude_bits */
} lane_moment;

/* The element of the block that a lane's round begins at. */
DEVICE int place_of(int round)
{
    return (round * 32 + threadIdx.x % 32) * WIDTH;
}

/* WHOLE: all of the block's elements are there. `fill`: the code of 0, for those past the tensor's
 * end. State begins at a multiple of 64 bytes, so four codes are a word. */
template <bool WHOLE>
DEVICE void decode(lane_moment *x, const void *codes, const float *absmax, const near_map *map,
                   uint64_t first, uint64_t n, uint32_t fill)
{
    const uint8_t *from = global((const uint8_t *)codes + first);
    float scale = absmax[first / SPW__BLOCK];
#pragma unroll
    for (int r = 0; r < RULE_ROUNDS; r++) {
        uint32_t four_codes = WHOLE ? *(const uint32_t *)(from + place_of(r))
                                    : load_codes(from + place_of(r), clamp(n, first + place_of(r)),
                                                 fill * 0x01010101u);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            x->at[r].at[k] = map->value[four_codes >> 8 * k & 0xFF] * scale;
    }
    x->most = 0;
}

template <bool WHOLE, bool SIGNED>
DEVICE void encode(const lane_moment *x, void *codes, float *absmax, const near_map *map,
                   uint64_t first, uint64_t n)
{
    uint8_t *to = global((uint8_t *)codes + first);
    spw__code_scale scale = spw__code_scale_of(block_max(x->most));
#pragma unroll
    for (int r = 0; r < RULE_ROUNDS; r++) {
        uint32_t four_codes = 0;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float value = x->at[r].at[k];
            uint32_t code = SIGNED ? spw__code_of_m(map->encode, value, scale)
                                   : spw__code_of_v(map->encode, value, scale);
            four_codes |= code << 8 * k;
        }
        if (WHOLE)
            *(uint32_t *)(to + place_of(r)) = four_codes;
        else
            store_codes(to + place_of(r), four_codes, clamp(n, first + place_of(r)));
    }
    if (threadIdx.x % 32 == 0)
        absmax[first / SPW__BLOCK] = scale.absmax;
}

DEVICE void keep(lane_moment *x, int round, int k, float value)
{
    x->at[round].at[k] = value;
    x->most = max(x->most, spw__magnitude_bits(value));
}

/* One block of a run, from `first` on, by one warp. Elements past the end are zeros and stay zeros:
 * they do not raise a maximum. */
template <spw_rule RULE, bool WHOLE>
DEVICE void rule8_block(const spw__gpu_adam_args *args, const spw__gpu_run *run, uint64_t first,
                        const spw__adam_consts *c, const near_map *map_m, const near_map *map_v)
{
    constexpr bool HAS_V = RULE != SPW_LION, HAS_SLOW = RULE == SPW_ADEMAMIX;
    lane_moment m, v, slow;
    decode<WHOLE>(&m, run->m, run->absmax_m, map_m, first, run->n, SPW__CODE_ZERO);
    if (HAS_V)
        decode<WHOLE>(&v, run->v, run->absmax_v, map_v, first, run->n, 0);
    if (HAS_SLOW)
        decode<WHOLE>(&slow, run->m_slow, run->absmax_m_slow, map_m, first, run->n, SPW__CODE_ZERO);
#pragma unroll
    for (int r = 0; r < RULE_ROUNDS; r++) {
        uint64_t i = first + place_of(r);
        int here = WHOLE ? WIDTH : clamp(run->n, i);
        four p = load_any<WHOLE>(run->p, args->p_type, i, here);
        four g = load_any<WHOLE>(run->g, args->g_type, i, here);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            spw__element old = {p.at[k], m.at[r].at[k], HAS_V ? v.at[r].at[k] : 0,
                                HAS_SLOW ? slow.at[r].at[k] : 0};
            spw__element next = spw__update(RULE, old, g.at[k] * c->grad_factor, c, 1);
            p.at[k] = next.p;
            keep(&m, r, k, next.m);
            if (HAS_V)
                keep(&v, r, k, next.v);
            if (HAS_SLOW)
                keep(&slow, r, k, next.m_slow);
        }
        store_any<WHOLE>(run->p, args->p_type, i, p, here);
    }
    encode<WHOLE, true>(&m, run->m, run->absmax_m, map_m, first, run->n);
    if (HAS_V)
        encode<WHOLE, false>(&v, run->v, run->absmax_v, map_v, first, run->n);
    if (HAS_SLOW)
        encode<WHOLE, true>(&slow, run->m_slow, run->absmax_m_slow, map_m, first, run->n);
}

template <spw_rule RULE> DEVICE void rule8_tiles(const spw__gpu_adam_args *args)
{
    constexpr int MAPS = RULE == SPW_LION ? 1 : 2;
    __shared__ near_map maps[MAPS];
    fill_near(&maps[0], &args->maps->m);
    if (MAPS > 1)
        fill_near(&maps[MAPS - 1], &args->maps->v);
    __syncthreads();
    for (walk w = walk_begin(args); w.tile < w.end; w.tile++) {
        const spw__gpu_run *run = walk_run(&w);
        spw__adam_consts c = *run->consts;
        if (c.skip)
            continue;
        uint64_t first = (w.tile - run->first_tile) * SPW__GPU_TILE;
        uint64_t end = min(run->n, first + SPW__GPU_TILE);
        bool aligned = is_aligned_any(run->p, args->p_type) && is_aligned_any(run->g, args->g_type);
#pragma unroll 1
        for (uint64_t at = first + threadIdx.x / 32 * SPW__BLOCK; at < end;
             at += SPW__GPU_THREADS / 32 * SPW__BLOCK)
            if (aligned && end - at >= SPW__BLOCK)
                rule8_block<RULE, true>(args, run, at, &c, &maps[0], &maps[MAPS - 1]);
            else
                rule8_block<RULE, false>(args, run, at, &c, &maps[0], &maps[MAPS - 1]);
    }
}

#endif
