/*
 * rules.h - the rules beside AdamW's own loops over one run, by blocks, for loops.c alone.
 *
 * A block goes through fp32 whatever its types are, so one loop for each rule and kind of state
 * serves all pairs of types; types are looked at once a block. The rule is a constant where these
 * are called.
 */
#ifndef SPW_KERN_LOOPS_RULES_H
#define SPW_KERN_LOOPS_RULES_H

#include "kern/elements.h"
#include "kern/loops/codes.h"
#include "kern/loops/halves.h"

/* Parameters and gradients of at most a block, in fp32: where they lie, or in the rooms. */
typedef struct fp32_block {
    float *p;
    const float *g;
    int n;
    float room_p[SPW__BLOCK], room_g[SPW__BLOCK];
} fp32_block;

static inline void widen_n(float *restrict room, const void *restrict data, spw_type type, int n)
{
    if (n == SPW__BLOCK && type == SPW_FP16)
        widen(room, data, SPW_FP16);
    else if (n == SPW__BLOCK)
        widen(room, data, SPW_BF16);
    else
        for (int i = 0; i < n; i++)
            room[i] = load(data, type, (uint64_t)i);
}

static inline void narrow_n(void *restrict data, const float *restrict room, spw_type type, int n)
{
    if (n == SPW__BLOCK && type == SPW_FP16)
        narrow(data, room, SPW_FP16);
    else if (n == SPW__BLOCK)
        narrow(data, room, SPW_BF16);
    else
        for (int i = 0; i < n; i++)
            store(data, type, (uint64_t)i, room[i]);
}

/* Not inlined: six loops use them, and all types are in them. */
static __attribute__((noinline)) void block_open(fp32_block *b, const spw__update_run *run)
{
    b->n = run->n < SPW__BLOCK ? (int)run->n : SPW__BLOCK;
    b->p = run->p_type == SPW_FP32 ? run->p : b->room_p;
    b->g = run->g_type == SPW_FP32 ? run->g : b->room_g;
    if (run->p_type != SPW_FP32)
        widen_n(b->room_p, run->p, run->p_type, b->n);
    if (run->g_type != SPW_FP32)
        widen_n(b->room_g, run->g, run->g_type, b->n);
}

static __attribute__((noinline)) void block_close(const fp32_block *b, const spw__update_run *run)
{
    if (run->p_type != SPW_FP32)
        narrow_n(run->p, b->room_p, run->p_type, b->n);
}

/* To the run's next block; `code` is the bytes of a moment's element. */
static inline void next_block(spw__update_run *run, int n, size_t code)
{
    run->p = (char *)run->p + (uint64_t)n * spw__type_bytes(run->p_type);
    run->g = (const char *)run->g + (uint64_t)n * spw__type_bytes(run->g_type);
    run->m = (char *)run->m + (size_t)n * code;
    run->v = run->v ? (char *)run->v + (size_t)n * code : NULL;
    run->m_slow = run->m_slow ? (char *)run->m_slow + (size_t)n * code : NULL;
    run->n -= (uint64_t)n;
}

/* ---------------------------------------------------------------------------- 32-bit state -- */

ALWAYS_INLINE void rule32_block(const spw__update_run *run, const fp32_block *b, spw_rule rule)
{
    const spw__adam_consts c = *run->consts;
    const bool has_v = spw__rule_has_v(rule), has_slow = spw__rule_has_m_slow(rule);
    float *restrict p = b->p;
    const float *restrict g = b->g;
    float *restrict m = run->m;
    float *restrict v = run->v;
    float *restrict slow = run->m_slow;
    for (int i = 0; i < b->n; i++) {
        spw__element old = {p[i], m[i], has_v ? v[i] : 0.0f, has_slow ? slow[i] : 0.0f};
        spw__element next = spw__update(rule, old, g[i] * c.grad_factor, &c, 0);
        p[i] = next.p;
        m[i] = next.m;
        if (has_v)
            v[i] = next.v;
        if (has_slow)
            slow[i] = next.m_slow;
    }
}

ALWAYS_INLINE void rule32(const spw__update_run *run, spw_rule rule)
{
    spw__update_run at = *run;
    while (at.n) {
        fp32_block b;
        block_open(&b, &at);
        rule32_block(&at, &b, rule);
        block_close(&b, &at);
        next_block(&at, b.n, sizeof(float));
    }
}

/* ----------------------------------------------------------------------------- 8-bit state -- */

/* A block's moments in fp32, with their largest spw__magnitude_bits. */
typedef struct moments {
    float m[SPW__BLOCK], v[SPW__BLOCK], m_slow[SPW__BLOCK];
    uint32_t most_m, most_v, most_slow;
} moments;

/* All elements of the block: those past a tensor's end are zeros and stay zeros. */
ALWAYS_INLINE void rule8_update(moments *restrict b, float *restrict p, const float *restrict g,
                                const spw__adam_consts *restrict consts, spw_rule rule)
{
    const spw__adam_consts c = *consts;
    const bool has_v = spw__rule_has_v(rule), has_slow = spw__rule_has_m_slow(rule);
    int32_t most_m = 0, most_v = 0, most_slow = 0; /* every machine has signed maxima */
    for (int i = 0; i < SPW__BLOCK; i++) {
        spw__element old = {p[i], b->m[i], has_v ? b->v[i] : 0.0f, has_slow ? b->m_slow[i] : 0.0f};
        spw__element next = spw__update(rule, old, g[i] * c.grad_factor, &c, 1);
        int32_t bits_m = (int32_t)spw__magnitude_bits(next.m);
        int32_t bits_v = (int32_t)spw__magnitude_bits(next.v);
        int32_t bits_slow = (int32_t)spw__magnitude_bits(next.m_slow);
        most_m = bits_m > most_m ? bits_m : most_m;
        most_v = bits_v > most_v ? bits_v : most_v;
        most_slow = bits_slow > most_slow ? bits_slow : most_slow;
        p[i] = next.p;
        b->m[i] = next.m;
        if (has_v)
            b->v[i] = next.v;
        if (has_slow)
            b->m_slow[i] = next.m_slow;
    }
    b->most_m = (uint32_t)most_m;
    b->most_v = (uint32_t)most_v;
    b->most_slow = (uint32_t)most_slow;
}

static inline void encode_signed(uint8_t *codes, float *absmax, const float *x, uint32_t most,
                                 const spw__code_maps *maps)
{
    spw__code_scale scale = spw__code_scale_of(most);
    encode_m(codes, x, maps->m.encode, scale);
    *absmax = scale.absmax;
}

/* A whole block's codes; `b` has the parameters in fp32. */
ALWAYS_INLINE void rule8_block(const spw__update_run *run, const spw__code_maps *maps,
                               const fp32_block *b, spw_rule rule)
{
    moments x;
    const bool has_v = spw__rule_has_v(rule), has_slow = spw__rule_has_m_slow(rule);
    decode_block(x.m, run->m, maps->m.value, *run->absmax_m);
    if (has_v)
        decode_block(x.v, run->v, maps->v.value, *run->absmax_v);
    if (has_slow)
        decode_block(x.m_slow, run->m_slow, maps->m.value, *run->absmax_m_slow);
    rule8_update(&x, b->p, b->g, run->consts, rule);
    encode_signed(run->m, run->absmax_m, x.m, x.most_m, maps);
    if (has_v) {
        spw__code_scale scale = spw__code_scale_of(x.most_v);
        encode_v(run->v, x.v, maps->v.encode, scale);
        *run->absmax_v = scale.absmax;
    }
    if (has_slow)
        encode_signed(run->m_slow, run->absmax_m_slow, x.m_slow, x.most_slow, maps);
}

/* The tensor's last block, widened with elements that are zero and stay zero. */
ALWAYS_INLINE void rule8_tail(const spw__update_run *run, const spw__code_maps *maps, fp32_block *b,
                              spw_rule rule)
{
    uint8_t m[SPW__BLOCK], v[SPW__BLOCK] = {0}, slow[SPW__BLOCK];
    float p[SPW__BLOCK] = {0}, g[SPW__BLOCK] = {0};
    size_t n = (size_t)b->n;
    spw__update_run whole = *run;
    fp32_block wide = {.p = memcpy(p, b->p, n * sizeof *p), .g = memcpy(g, b->g, n * sizeof *g)};
    whole.m = memset(m, SPW__CODE_ZERO, sizeof m);
    whole.v = v;
    whole.m_slow = memset(slow, SPW__CODE_ZERO, sizeof slow);
    memcpy(m, run->m, n);
    if (run->v)
        memcpy(v, run->v, n);
    if (run->m_slow)
        memcpy(slow, run->m_slow, n);
    rule8_block(&whole, maps, &wide, rule);
    memcpy(b->p, p, n * sizeof *p);
    memcpy(run->m, m, n);
    if (run->v)
        memcpy(run->v, v, n);
    if (run->m_slow)
        memcpy(run->m_slow, slow, n);
}

ALWAYS_INLINE void rule8(const spw__update_run *run, const spw__code_maps *maps, spw_rule rule)
{
    spw__update_run at = *run;
    while (at.n) {
        fp32_block b;
        block_open(&b, &at);
        if (b.n == SPW__BLOCK)
            rule8_block(&at, maps, &b, rule);
        else
            rule8_tail(&at, maps, &b, rule);
        block_close(&b, &at);
        next_block(&at, b.n, 1);
        at.absmax_m++;
        at.absmax_v = at.absmax_v ? at.absmax_v + 1 : NULL;
        at.absmax_m_slow = at.absmax_m_slow ? at.absmax_m_slow + 1 : NULL;
    }
}

#endif
