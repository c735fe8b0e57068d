/*
 * adam8.cuh - AdamW over tiles whose state is in 8-bit codes: a warp a block of 256 elements.
 *
 * adam8_usual is the quick way and adam8_block the one that is always right; both give the same
 * bits. The quick one does no harm where it does not apply: it finds out before it writes.
 */
#ifndef SPW_KERN_CUDA_ADAM8_CUH
#define SPW_KERN_CUDA_ADAM8_CUH

#include "kern/cuda/exact.cuh"
#include "kern/cuda/walk.cuh"

/* The code maps. An entry of `encode` comes less its key << 16: added to all of a ratio's bits it
 * is then what the entry and the ratio's lower half add up to. */
typedef struct shared_maps {
    float value_m[SPW__CODES], value_v[SPW__CODES];
    uint32_t less_key_m[SPW__CODE_KEYS], less_key_v[SPW__CODE_KEYS];
} shared_maps;

DEVICE void fill_shared(shared_maps *shared, const spw__code_maps *maps)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < SPW__CODES; i += SPW__GPU_THREADS) {
        shared->value_m[i] = maps->m.value[i];
        shared->value_v[i] = maps->v.value[i];
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < SPW__CODE_KEYS; i += SPW__GPU_THREADS) {
        uint32_t key = (uint32_t)(i + SPW__CODE_KEY_FIRST) << 16;
        shared->less_key_m[i] = maps->m.encode[i] - key;
        shared->less_key_v[i] = maps->v.encode[i] - key;
    }
    __syncthreads();
}

/* The largest of a warp's values, in all its lanes. */
DEVICE uint32_t warp_max(uint32_t value)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xFFFFFFFFu, value);
#else
    for (int width = 16; width; width /= 2)
        value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, width));
    return value;
#endif
}

/* One block of SPW__BLOCK elements by one warp. Elements past the tensor's end are zeros and
 * stay zeros: they do not raise a maximum. Rarely needed: not inlined, for the usual path's
 * registers.
 */
template <typename P, typename G>
static __device__ __noinline__ void
adam8_block(P *p, const G *g, uint8_t *m, uint8_t *v, float *absmax_m, float *absmax_v, uint64_t n,
            const spw__adam_consts *c, const spw__code_maps *maps)
{
    enum { ROUNDS = SPW__BLOCK / 32 / WIDTH };
    int lane = threadIdx.x % 32;
    four pf[ROUNDS], gf[ROUNDS], mf[ROUNDS], vf[ROUNDS];
    uint32_t mc[ROUNDS], vc[ROUNDS], most_m = 0, most_v = 0;
    float scale_of_m = *absmax_m, scale_of_v = *absmax_v;
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        int i = (r * 32 + lane) * WIDTH;
        int here = clamp(n, i);
        mc[r] = load_codes(m + i, here, SPW__CODE_ZERO * 0x01010101u);
        vc[r] = load_codes(v + i, here, 0);
        pf[r] = load<false>(p + i, here);
        gf[r] = load<false>(g + i, here);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        int i = (r * 32 + lane) * WIDTH;
        int here = clamp(n, i);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            spw__adam_element old = {pf[r].at[k], maps->m.value[mc[r] >> 8 * k & 0xFF] * scale_of_m,
                                     maps->v.value[vc[r] >> 8 * k & 0xFF] * scale_of_v};
            spw__adam_element next = spw__adam_update(old, gf[r].at[k] * c->grad_factor, c, 1);
            pf[r].at[k] = next.p;
            mf[r].at[k] = next.m;
            vf[r].at[k] = next.v;
            most_m = max(most_m, spw__magnitude_bits(next.m));
            most_v = max(most_v, spw__magnitude_bits(next.v));
        }
        store<false>(p + i, pf[r], here);
    }
    spw__code_scale s_m = spw__code_scale_of(warp_max(most_m));
    spw__code_scale s_v = spw__code_scale_of(warp_max(most_v));
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        int i = (r * 32 + lane) * WIDTH;
        int here = clamp(n, i);
        uint32_t m_codes = 0, v_codes = 0;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            m_codes |= (uint32_t)spw__code_of_m(maps->m.encode, mf[r].at[k], s_m) << 8 * k;
            v_codes |= (uint32_t)spw__code_of_v(maps->v.encode, vf[r].at[k], s_v) << 8 * k;
        }
        store_codes(m + i, m_codes, here);
        store_codes(v + i, v_codes, here);
    }
    if (lane == 0) {
        *absmax_m = s_m.absmax;
        *absmax_v = s_v.absmax;
    }
}

/* Two fp32 to halves, the first in the low one. */
DEVICE uint32_t pack(bf16 *, float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE uint32_t pack(fp16 *, float low, float high)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* Rounds as store4 does, but for the bits of a NaN. */
template <typename T> DEVICE void store4_no_nan(T *x, four f)
{
#if __CUDA_ARCH__ >= 800
    *(uint2 *)x = make_uint2(pack(x, f.at[0], f.at[1]), pack(x, f.at[2], f.at[3]));
#else
    store4(x, f);
#endif
}

DEVICE void store4_no_nan(float *x, four f)
{
    store4(x, f);
}

/* spw__code_rank << 16 and below it what does not matter, for an element of a block whose inverse
 * is a normal float. No upper bound is needed: the ratio is at most 1 and a rounding. */
DEVICE uint32_t code_sum(const uint32_t *less_key, float x, float inverse)
{
    uint32_t bits = spw__bits_of_float(fabsf(x) * inverse);
    bits = max(bits, (uint32_t)SPW__CODE_KEY_FIRST << 16);
    return less_key[(bits >> 16) - SPW__CODE_KEY_FIRST] + bits;
}

DEVICE uint32_t pick(uint32_t low, uint32_t high, uint32_t bytes)
{
    uint32_t picked;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"(bytes));
    return picked;
}

/* The same byte of four words, side by side; 8 + byte: its sign, in all bits. */
DEVICE uint32_t pick4(const uint32_t x[WIDTH], uint32_t byte)
{
    uint32_t two = byte | (byte + 4) << 4;
    return pick(pick(x[0], x[1], two), pick(x[2], x[3], two), 0x5410);
}

DEVICE uint32_t pick4(four f, uint32_t byte)
{
    uint32_t x[WIDTH];
    for (int k = 0; k < WIDTH; k++)
        x[k] = spw__bits_of_float(f.at[k]);
    return pick4(x, byte);
}

/* Four codes of m at once, a byte each: 127 + rank, or 127 - rank where `below` is all ones, and 0
 * for 127 - 128. No byte carries into the next: ranks are at most 128. */
DEVICE uint32_t signed_codes(uint32_t ranks, uint32_t below)
{
    uint32_t most_127 = ranks - (ranks >> 7 & 0x01010101u);
    return (below & (most_127 ^ 0x7F7F7F7Fu)) | (~below & (ranks + 0x7F7F7F7Fu));
}

/* Where a tile's elements and their state lie. */
template <typename P, typename G> struct tile8 {
    P *p;
    const G *g;
    uint8_t *m, *v;
    float *absmax_m, *absmax_v;
};

/* 1 / absmax of m and of v, worked out once: by even lanes for m, by odd ones for v. False where
 * one is not a normal float. */
DEVICE bool find_inverses(uint32_t most_m, uint32_t most_v, float *inverse_m, float *inverse_v)
{
    uint32_t most = threadIdx.x % 2 ? most_v : most_m;
    float inverse = most ? 1.0f / spw__float_of_bits(most) : 0.0f;
    *inverse_m = __shfl_sync(0xFFFFFFFFu, inverse, 0);
    *inverse_v = __shfl_sync(0xFFFFFFFFu, inverse, 1);
    return inverse <= 0x1p126f;
}

/* spw__adam_update_finite for 8-bit state, by exact.cuh. */
DEVICE spw__adam_element update_mild(spw__adam_element old, float g, const spw__adam_consts *c)
{
    spw__adam_element next;
    next.m = fmaf(c->lerp_weight, g - old.m, old.m);
    next.v = spw__adam_v(old.v, g, c);
    float root = fmaf(root_of(next.v), c->inv_root_bias2, c->eps);
    next.p = old.p * c->decay - quotient_of(c->step_size * next.m, root);
    return next;
}

enum { ROUNDS8 = SPW__BLOCK / 32 / WIDTH };

/* A lane's part of a block, as it came from memory: what is under way while another is worked on.
 */
template <typename P, typename G> struct raw8 {
    raw4<P> p[ROUNDS8];
    raw4<G> g[ROUNDS8];
    uint32_t m[ROUNDS8], v[ROUNDS8];
    float absmax_m, absmax_v;
};

template <typename P, typename G> DEVICE raw8<P, G> load8(tile8<P, G> t, uint32_t first)
{
    raw8<P, G> raw;
    uint32_t at = first + threadIdx.x % 32 * WIDTH;
#pragma unroll
    for (int r = 0; r < ROUNDS8; r++) {
        uint32_t i = at + r * 32 * WIDTH;
        raw.m[r] = *(const uint32_t *)(t.m + i);
        raw.v[r] = *(const uint32_t *)(t.v + i);
        raw.p[r] = load_raw(t.p + i);
        raw.g[r] = load_raw(t.g + i);
    }
    raw.absmax_m = t.absmax_m[first / SPW__BLOCK];
    raw.absmax_v = t.absmax_v[first / SPW__BLOCK];
    return raw;
}

/* adam8_block for what is usual: whole, aligned, within the ranges of exact.cuh. Returns false, and
 * has changed nothing, where it is not. A gradient that is not finite shows in the maxima. */
template <typename P, typename G>
DEVICE bool adam8_usual(tile8<P, G> t, uint32_t first, const raw8<P, G> &raw,
                        const spw__adam_consts *c, const shared_maps *maps)
{
    uint32_t at = first + threadIdx.x % 32 * WIDTH, block = first / SPW__BLOCK;
    four pf[ROUNDS8], mf[ROUNDS8], vf[ROUNDS8];
    uint32_t most_m = 0, most_v = 0, floor_m = UINT32_MAX, floor_v = UINT32_MAX;
    bool usual = true;
#pragma unroll
    for (int r = 0; r < ROUNDS8; r++) {
        four gf = wide(raw.g[r]);
        pf[r] = wide(raw.p[r]);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            spw__adam_element old = {pf[r].at[k],
                                     maps->value_m[raw.m[r] >> 8 * k & 0xFF] * raw.absmax_m,
                                     maps->value_v[raw.v[r] >> 8 * k & 0xFF] * raw.absmax_v};
            float x = gf.at[k] * c->grad_factor;
            spw__adam_element next = update_mild(old, x, c);
            uint32_t bits_m = spw__magnitude_bits(next.m), bits_v = spw__magnitude_bits(next.v);
            usual &= next.p == next.p;
            pf[r].at[k] = next.p;
            mf[r].at[k] = next.m;
            vf[r].at[k] = next.v;
            most_m = max(most_m, bits_m);
            most_v = max(most_v, bits_v);
            floor_m = floor_of(floor_m, bits_m);
            floor_v = floor_of(floor_v, bits_v);
        }
    }
    most_m = warp_max(most_m);
    most_v = warp_max(most_v);
    float inverse_m, inverse_v;
    usual &= find_inverses(most_m, most_v, &inverse_m, &inverse_v);
    usual &= most_m <= MOST_M && most_v <= MOST_V;
    usual &= floor_m >= LEAST_M - 1 && floor_v >= LEAST_V - 1;
    if (!__all_sync(0xFFFFFFFFu, usual))
        return false;
#pragma unroll
    for (int r = 0; r < ROUNDS8; r++) {
        uint32_t i = at + r * 32 * WIDTH, sum_m[WIDTH], sum_v[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            sum_m[k] = code_sum(maps->less_key_m, mf[r].at[k], inverse_m);
            sum_v[k] = code_sum(maps->less_key_v, vf[r].at[k], inverse_v);
        }
        store4_no_nan(t.p + i, pf[r]);
        *(uint32_t *)(t.m + i) = signed_codes(pick4(sum_m, 2), pick4(mf[r], 8 + 3));
        *(uint32_t *)(t.v + i) = pick4(sum_v, 2);
    }
    if (threadIdx.x % 32 == 0) {
        t.absmax_m[block] = spw__float_of_bits(most_m);
        t.absmax_v[block] = spw__float_of_bits(most_v);
    }
    return true;
}

template <typename P, typename G> DEVICE tile8<P, G> tile_of(const spw__gpu_run *run, uint64_t at)
{
    tile8<P, G> t;
    t.p = global((P *)run->p + at);
    t.g = global((const G *)run->g + at);
    t.m = global((uint8_t *)run->m + at);
    t.v = global((uint8_t *)run->v + at);
    t.absmax_m = global(run->absmax_m + at / SPW__BLOCK);
    t.absmax_v = global(run->absmax_v + at / SPW__BLOCK);
    return t;
}

template <typename P, typename G> DEVICE void adam8_tiles(const spw__gpu_adam_args *args)
{
    __shared__ shared_maps maps;
    enum { WARPS = SPW__GPU_THREADS / 32, PAIR = SPW__GPU_TILE / SPW__BLOCK / WARPS };
    fill_shared(&maps, args->maps);
    for (walk w = walk_begin(args); w.tile < w.end; w.tile++) {
        const spw__gpu_run *run = walk_run(&w);
        spw__adam_consts c = *run->consts;
        if (c.skip)
            continue;
        uint64_t start = (w.tile - run->first_tile) * SPW__GPU_TILE;
        tile8<P, G> t = tile_of<P, G>(run, start);
        uint32_t n = (uint32_t)min(run->n - start, (uint64_t)SPW__GPU_TILE);
        bool aligned = is_aligned(t.p) && is_aligned(t.g);
        uint32_t at = threadIdx.x / 32 * SPW__BLOCK;
        if (aligned && n == SPW__GPU_TILE && c.mild) {
            raw8<P, G> raw[PAIR];
#pragma unroll
            for (int i = 0; i < PAIR; i++)
                raw[i] = load8(t, at + i * WARPS * SPW__BLOCK);
#pragma unroll
            for (int i = 0; i < PAIR; i++) {
                uint32_t a = at + i * WARPS * SPW__BLOCK, b = a / SPW__BLOCK;
                if (!adam8_usual(t, a, raw[i], &c, &maps))
                    adam8_block(t.p + a, t.g + a, t.m + a, t.v + a, t.absmax_m + b, t.absmax_v + b,
                                SPW__BLOCK, run->consts, args->maps);
            }
            continue;
        }
#pragma unroll 1
        for (; at < n; at += WARPS * SPW__BLOCK) {
            uint32_t b = at / SPW__BLOCK;
            adam8_block(t.p + at, t.g + at, t.m + at, t.v + at, t.absmax_m + b, t.absmax_v + b,
                        n - at, run->consts, args->maps);
        }
    }
}

#endif
