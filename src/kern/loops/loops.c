#include "kern/loops/loops.h"

#include "kern/elements.h"
#include "kern/loops/codes.h"
#include "kern/loops/halves.h"
#include "kern/loops/rules.h"

#define SPW_JOIN2(a, b) a##b
#define SPW_JOIN(a, b) SPW_JOIN2(a, b)
#define SPW_TEXT2(a) #a
#define SPW_TEXT(a) SPW_TEXT2(a)

/* The loops below are written once over all types; a constant type that reaches them by inlining
 * makes the nine variants. */

/* ---------------------------------------------------------------------------- 32-bit state -- */

ALWAYS_INLINE void adam32_elements(const spw__update_run *run, spw_type p_type, spw_type g_type)
{
    const spw__adam_consts consts = *run->consts;
    void *restrict p = run->p;
    const void *restrict g = run->g;
    float *restrict m = run->m;
    float *restrict v = run->v;
    for (uint64_t i = 0; i < run->n; i++) {
        spw__adam_element old = {load(p, p_type, i), m[i], v[i]};
        spw__adam_element next =
            spw__adam_update(old, load(g, g_type, i) * consts.grad_factor, &consts, 0);
        store(p, p_type, i, next.p);
        m[i] = next.m;
        v[i] = next.v;
    }
}

/* A block as if all of it were fp32. */
ALWAYS_INLINE void adam32_block(const spw__update_run *run, spw_type p_type, spw_type g_type)
{
    float wide_p[SPW__BLOCK], wide_g[SPW__BLOCK];
    spw__update_run wide = *run;
    wide.p = p_type == SPW_FP32 ? run->p : wide_p;
    wide.g = g_type == SPW_FP32 ? run->g : wide_g;
    wide.n = SPW__BLOCK;
    widen(wide_p, run->p, p_type);
    widen(wide_g, run->g, g_type);
    adam32_elements(&wide, SPW_FP32, SPW_FP32);
    narrow(run->p, wide.p, p_type);
}

/* Halves by blocks: a loop over elements of two widths makes poor vectors. */
ALWAYS_INLINE void adam32(const spw__update_run *run, spw_type p_type, spw_type g_type)
{
    bool by_blocks = p_type != SPW_FP32 || g_type != SPW_FP32;
    spw__update_run at = *run;
    for (; by_blocks && at.n >= SPW__BLOCK; at.n -= SPW__BLOCK) {
        adam32_block(&at, p_type, g_type);
        at.p = (char *)at.p + SPW__BLOCK * spw__type_bytes(p_type);
        at.g = (const char *)at.g + SPW__BLOCK * spw__type_bytes(g_type);
        at.m = (float *)at.m + SPW__BLOCK;
        at.v = (float *)at.v + SPW__BLOCK;
    }
    adam32_elements(&at, p_type, g_type);
}

/* ----------------------------------------------------------------------------- 8-bit state -- */

/* A block on its way: in fp32, small enough to stay in the first-level cache. */
typedef struct block {
    float m[SPW__BLOCK], v[SPW__BLOCK];
    float wide_p[SPW__BLOCK], wide_g[SPW__BLOCK]; /* where they are halves */
    uint32_t most_m, most_v;                      /* largest spw__magnitude_bits */
} block;

ALWAYS_INLINE void update_block(block *restrict b, float *restrict p, const float *restrict g,
                                const spw__adam_consts *restrict consts)
{
    const spw__adam_consts c = *consts;
    int32_t most_m = 0, most_v = 0; /* every machine has signed maxima */
    for (int i = 0; i < SPW__BLOCK; i++) {
        spw__adam_element old = {p[i], b->m[i], b->v[i]};
        spw__adam_element next = spw__adam_update(old, g[i] * c.grad_factor, &c, 1);
        int32_t bits_m = (int32_t)spw__magnitude_bits(next.m);
        int32_t bits_v = (int32_t)spw__magnitude_bits(next.v);
        most_m = bits_m > most_m ? bits_m : most_m;
        most_v = bits_v > most_v ? bits_v : most_v;
        p[i] = next.p;
        b->m[i] = next.m;
        b->v[i] = next.v;
    }
    b->most_m = (uint32_t)most_m;
    b->most_v = (uint32_t)most_v;
}

ALWAYS_INLINE void adam8_block(const spw__update_run *run, const spw__code_maps *maps,
                               spw_type p_type, spw_type g_type)
{
    block b;
    float *p = p_type == SPW_FP32 ? run->p : b.wide_p;
    const float *g = g_type == SPW_FP32 ? run->g : b.wide_g;
    widen(b.wide_p, run->p, p_type);
    widen(b.wide_g, run->g, g_type);
    decode_block(b.m, run->m, maps->m.value, *run->absmax_m);
    decode_block(b.v, run->v, maps->v.value, *run->absmax_v);
    update_block(&b, p, g, run->consts);
    narrow(run->p, p, p_type);
    spw__code_scale scale_m = spw__code_scale_of(b.most_m);
    spw__code_scale scale_v = spw__code_scale_of(b.most_v);
    encode_m(run->m, b.m, maps->m.encode, scale_m);
    encode_v(run->v, b.v, maps->v.encode, scale_v);
    *run->absmax_m = scale_m.absmax;
    *run->absmax_v = scale_v.absmax;
}

/* Room for a block of any type. */
typedef struct narrow_block {
    float fp32[SPW__BLOCK];
    uint16_t half[SPW__BLOCK];
} narrow_block;

ALWAYS_INLINE void *room_for(narrow_block *room, spw_type type)
{
    return type == SPW_FP32 ? (void *)room->fp32 : (void *)room->half;
}

/* The tensor's last block, widened with elements that are zero and stay zero. */
ALWAYS_INLINE void adam8_tail(const spw__update_run *run, const spw__code_maps *maps,
                              spw_type p_type, spw_type g_type)
{
    narrow_block p = {0}, g = {0};
    uint8_t m[SPW__BLOCK], v[SPW__BLOCK] = {0};
    size_t n = (size_t)run->n;
    spw__update_run whole = *run;
    whole.p = room_for(&p, p_type);
    whole.g = room_for(&g, g_type);
    whole.m = memset(m, SPW__CODE_ZERO, sizeof m);
    whole.v = v;
    memcpy(whole.p, run->p, n * spw__type_bytes(p_type));
    memcpy(room_for(&g, g_type), run->g, n * spw__type_bytes(g_type));
    memcpy(m, run->m, n);
    memcpy(v, run->v, n);
    adam8_block(&whole, maps, p_type, g_type);
    memcpy(run->p, whole.p, n * spw__type_bytes(p_type));
    memcpy(run->m, m, n);
    memcpy(run->v, v, n);
}

ALWAYS_INLINE void adam8(const spw__update_run *run, const spw__code_maps *maps, spw_type p_type,
                         spw_type g_type)
{
    spw__update_run at = *run;
    for (; at.n >= SPW__BLOCK; at.n -= SPW__BLOCK) {
        adam8_block(&at, maps, p_type, g_type);
        at.p = (char *)at.p + SPW__BLOCK * spw__type_bytes(p_type);
        at.g = (const char *)at.g + SPW__BLOCK * spw__type_bytes(g_type);
        at.m = (uint8_t *)at.m + SPW__BLOCK;
        at.v = (uint8_t *)at.v + SPW__BLOCK;
        at.absmax_m++;
        at.absmax_v++;
    }
    if (at.n)
        adam8_tail(&at, maps, p_type, g_type);
}

/* ------------------------------------------------------------------------------------ norm -- */

enum { LANES = 32 };

/* Squares of floats are exact in double; only the additions round, in the order kern.h fixes. */
ALWAYS_INLINE double square_sum(const void *g, uint64_t n, spw_type type)
{
    double lane[LANES] = {0};
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double x = (double)load(g, type, i + (uint64_t)l);
            lane[l] += x * x;
        }
    for (int l = 0; i < n; i++, l++) {
        double x = (double)load(g, type, i);
        lane[l] += x * x;
    }
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* ----------------------------------------------------------------------------------- table -- */

#define PAIR(p_name, p_type, g_name, g_type)                                                       \
    static void adam32_##p_name##_##g_name(const spw__update_run *run)                             \
    {                                                                                              \
        adam32(run, p_type, g_type);                                                               \
    }                                                                                              \
    static void adam8_##p_name##_##g_name(const spw__update_run *run, const spw__code_maps *maps)  \
    {                                                                                              \
        adam8(run, maps, p_type, g_type);                                                          \
    }

#define PARAMETER(name, type)                                                                      \
    PAIR(name, type, fp32, SPW_FP32)                                                               \
    PAIR(name, type, bf16, SPW_BF16)                                                               \
    PAIR(name, type, fp16, SPW_FP16)                                                               \
    static double square_sum_##name(const void *g, uint64_t n)                                     \
    {                                                                                              \
        return square_sum(g, n, type);                                                             \
    }

PARAMETER(fp32, SPW_FP32)
PARAMETER(bf16, SPW_BF16)
PARAMETER(fp16, SPW_FP16)

#define RULE(name, rule)                                                                           \
    static void name##32(const spw__update_run *run)                                               \
    {                                                                                              \
        rule32(run, rule);                                                                         \
    }                                                                                              \
    static void name##8(const spw__update_run *run, const spw__code_maps *maps)                    \
    {                                                                                              \
        rule8(run, maps, rule);                                                                    \
    }

RULE(adam_any, SPW_ADAM)
RULE(lion, SPW_LION)
RULE(ademamix, SPW_ADEMAMIX)

#define ROW(kind, name) {kind##_##name##_fp32, kind##_##name##_bf16, kind##_##name##_fp16}

const spw__loops SPW_JOIN(spw__loops_, SPW_LOOPS_SUFFIX) = {
    .name = SPW_TEXT(SPW_LOOPS_SUFFIX),
    .adam32 = {ROW(adam32, fp32), ROW(adam32, bf16), ROW(adam32, fp16)},
    .adam8 = {ROW(adam8, fp32), ROW(adam8, bf16), ROW(adam8, fp16)},
    .rule32 = {[SPW_ADAM] = adam_any32, [SPW_LION] = lion32, [SPW_ADEMAMIX] = ademamix32},
    .rule8 = {[SPW_ADAM] = adam_any8, [SPW_LION] = lion8, [SPW_ADEMAMIX] = ademamix8},
    .square_sum = {square_sum_fp32, square_sum_bf16, square_sum_fp16},
};
