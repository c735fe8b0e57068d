/*
 * Adam with all it can have, Lion and AdEMAMix: their loops against the element functions, bit for
 * bit, and the element functions against the papers' formulas in double.
 */
#include "support.h"

#include "kern/elements.h"
#include "kern/loops/select.h"

enum array { P, G, M, V, SLOW, ABSMAX_M, ABSMAX_V, ABSMAX_SLOW, ARRAYS };
enum { GUARD = 64, N_KINDS = 2 * SPW__TYPES * SPW__TYPES, N_SIZES = 10 };

static const spw_rule rules[] = {SPW_ADAM, SPW_LION, SPW_ADEMAMIX};
enum { N_RULES = sizeof rules / sizeof *rules };

static const uint64_t sizes[N_SIZES] = {0, 1, 7, 255, 256, 257, 511, 4096, 4097, 20000};

typedef struct tensor {
    uint64_t n;
    spw_rule rule;
    spw_type p_type, g_type;
    bool is_8bit;
    unsigned char *at[ARRAYS]; /* guard bytes behind each */
} tensor;

static uint64_t n_blocks(uint64_t n)
{
    return (n + SPW__BLOCK - 1) / SPW__BLOCK;
}

static uint64_t bytes_of(const tensor *t, int array)
{
    bool v = array == V || array == ABSMAX_V, slow = array == SLOW || array == ABSMAX_SLOW;
    if (array == P || array == G)
        return t->n * spw__type_bytes(array == P ? t->p_type : t->g_type);
    if ((v && !spw__rule_has_v(t->rule)) || (slow && !spw__rule_has_m_slow(t->rule)))
        return 0;
    if (array >= ABSMAX_M)
        return t->is_8bit ? n_blocks(t->n) * 4 : 0;
    return t->n * (t->is_8bit ? 1 : 4);
}

/* By kind: all pairs of types with 32-bit state, then with 8-bit state. All zeros. */
static tensor make(spw_rule rule, int kind, uint64_t n)
{
    tensor t = {.n = n,
                .rule = rule,
                .p_type = (spw_type)(kind % SPW__TYPES),
                .g_type = (spw_type)(kind / SPW__TYPES % SPW__TYPES),
                .is_8bit = kind >= N_KINDS / 2};
    for (int i = 0; i < ARRAYS; i++) {
        t.at[i] = calloc(bytes_of(&t, i) + GUARD, 1);
        assert_non_null(t.at[i]);
        memset(t.at[i] + bytes_of(&t, i), 0xA5, GUARD);
    }
    return t;
}

static void drop(tensor *t)
{
    for (int i = 0; i < ARRAYS; i++) {
        for (uint64_t k = 0; k < GUARD; k++)
            assert_int_equal(t->at[i][bytes_of(t, i) + k], 0xA5);
        free(t->at[i]);
    }
}

static float value(const tensor *t, int array, uint64_t i)
{
    return support_get(t->at[array], SPW_FP32, i);
}

static void set(const tensor *t, int array, uint64_t i, float x)
{
    support_put(t->at[array], SPW_FP32, i, x);
}

static void fill(tensor *t, uint64_t seed)
{
    for (uint64_t i = 0; i < t->n; i++) {
        support_put(t->at[P], t->p_type, i, support_uniform(&seed));
        support_put(t->at[G], t->g_type, i, support_gradient(&seed));
        for (int array = M; array <= SLOW; array++) {
            float x = support_gradient(&seed);
            if (t->is_8bit && bytes_of(t, array))
                t->at[array][i] = (unsigned char)(support_random(&seed) >> 32);
            else if (bytes_of(t, array))
                set(t, array, i, array == V ? fabsf(x) * 1e-3f : x);
        }
    }
    for (int array = ABSMAX_M; array <= ABSMAX_SLOW; array++)
        for (uint64_t b = 0; b < bytes_of(t, array) / 4; b++)
            set(t, array, b, fabsf(support_gradient(&seed)));
}

static tensor make_filled(spw_rule rule, int kind, uint64_t n, uint64_t seed)
{
    tensor t = make(rule, kind, n);
    fill(&t, seed);
    return t;
}

static void assert_same(const tensor *a, const tensor *b)
{
    for (int i = 0; i < ARRAYS; i++)
        if (memcmp(a->at[i], b->at[i], bytes_of(a, i)) != 0)
            fail_msg("rule %d, %llu elements, types %d %d, 8-bit %d: array %d differs", a->rule,
                     (unsigned long long)a->n, a->p_type, a->g_type, a->is_8bit, i);
}

/* ------------------------------------------------------------------------------- the step -- */

static spw__hyper usual_hyper(spw_rule rule)
{
    return (spw__hyper){.lr = 2e-3,
                        .beta1 = 0.9,
                        .beta2 = rule == SPW_LION ? 0.99 : 0.999,
                        .eps = 1e-8,
                        .weight_decay = 0.05,
                        .beta3 = 0.9999,
                        .alpha = 5,
                        .rule = rule};
}

static spw__adam_consts consts_of(const spw__hyper *hyper, uint64_t steps_done)
{
    spw__param_progress done = {.step = steps_done};
    return spw__adam_consts_of(hyper, &done, 0.5);
}

static void *part(const tensor *t, int array, uint64_t first)
{
    uint64_t element = array == P   ? spw__type_bytes(t->p_type)
                       : array == G ? spw__type_bytes(t->g_type)
                                    : (t->is_8bit && array <= SLOW ? 1 : 4);
    uint64_t at = array >= ABSMAX_M ? first / SPW__BLOCK : first;
    return bytes_of(t, array) ? t->at[array] + at * element : NULL;
}

/* Elements first..last - 1; first a multiple of SPW__BLOCK when the state is 8-bit. */
static spw__update_run run_of(const tensor *t, const spw__adam_consts *consts, uint64_t first,
                              uint64_t last)
{
    return (spw__update_run){.p = part(t, P, first),
                             .g = part(t, G, first),
                             .m = part(t, M, first),
                             .v = part(t, V, first),
                             .absmax_m = part(t, ABSMAX_M, first),
                             .absmax_v = part(t, ABSMAX_V, first),
                             .m_slow = part(t, SLOW, first),
                             .absmax_m_slow = part(t, ABSMAX_SLOW, first),
                             .n = last - first,
                             .consts = consts,
                             .p_type = t->p_type,
                             .g_type = t->g_type};
}

static void step_by(spw_rule kernels, tensor *t, const spw__adam_consts *consts)
{
    spw_device device = support_device(1);
    spw__update_run run = run_of(t, consts, 0, t->n);
    assert_int_equal(spw__kern_update(&device, kernels, &run, 1, NULL), 0);
    support_device_end(&device);
}

static void step_alone(tensor *t, const spw__hyper *hyper)
{
    spw__adam_consts consts = consts_of(hyper, 4);
    step_by(t->rule, t, &consts);
}

/* ------------------------------------------- the element functions alone, as the reference -- */

static float moment(const tensor *t, int array, uint64_t i)
{
    if (!bytes_of(t, array))
        return 0;
    if (!t->is_8bit)
        return value(t, array, i);
    float absmax = value(t, array + ABSMAX_M - M, i / SPW__BLOCK);
    return spw_code_table(array != V)[t->at[array][i]] * absmax;
}

static void encode_block(tensor *t, int array, const float *x, uint64_t first, uint64_t n)
{
    const spw__code_maps *maps = spw__code_maps_get();
    uint32_t most = 0;
    if (!bytes_of(t, array))
        return;
    for (uint64_t i = 0; i < n; i++)
        most = spw__magnitude_bits(x[i]) > most ? spw__magnitude_bits(x[i]) : most;
    spw__code_scale scale = spw__code_scale_of(most);
    for (uint64_t i = 0; i < n; i++)
        t->at[array][first + i] = array == V ? spw__code_of_v(maps->v.encode, x[i], scale)
                                             : spw__code_of_m(maps->m.encode, x[i], scale);
    set(t, array + ABSMAX_M - M, first / SPW__BLOCK, scale.absmax);
}

static void reference_block(tensor *t, const spw__adam_consts *c, uint64_t first)
{
    uint64_t n = t->n - first < SPW__BLOCK ? t->n - first : SPW__BLOCK;
    float next[3][SPW__BLOCK];
    for (uint64_t i = 0; i < n; i++) {
        spw__element old = {support_get(t->at[P], t->p_type, first + i), moment(t, M, first + i),
                            moment(t, V, first + i), moment(t, SLOW, first + i)};
        float g = support_get(t->at[G], t->g_type, first + i) * c->grad_factor;
        spw__element e = spw__update(t->rule, old, g, c, t->is_8bit);
        support_put(t->at[P], t->p_type, first + i, e.p);
        next[0][i] = e.m;
        next[1][i] = e.v;
        next[2][i] = e.m_slow;
    }
    for (int k = 0; k < 3; k++)
        if (t->is_8bit)
            encode_block(t, M + k, next[k], first, n);
        else if (bytes_of(t, M + k))
            memcpy(t->at[M + k] + 4 * first, next[k], 4 * n);
}

static void reference(tensor *t, const spw__adam_consts *c)
{
    for (uint64_t first = 0; first < t->n; first += SPW__BLOCK)
        reference_block(t, c, first);
}

static void level_equals_reference(const spw__loops *loops, spw_rule rule, int kind, uint64_t n)
{
    spw__hyper hyper = usual_hyper(rule);
    tensor ours = make_filled(rule, kind, n, n + 1), theirs = make_filled(rule, kind, n, n + 1);
    for (uint64_t step = 0; step < 3; step++) {
        spw__adam_consts consts = consts_of(&hyper, step);
        spw__update_run run = run_of(&ours, &consts, 0, n);
        if (ours.is_8bit)
            loops->rule8[rule](&run, spw__code_maps_get());
        else
            loops->rule32[rule](&run);
        reference(&theirs, &consts);
        assert_same(&ours, &theirs);
    }
    drop(&ours);
    drop(&theirs);
}

static void every_vector_width_gives_the_bits_of_the_element_functions(void **state)
{
    (void)state;
    for (int level = 0; level < SPW__CPU_LEVELS; level++) {
        const spw__loops *loops = spw__loops_at((enum spw__cpu_level)level);
        for (int i = 0; loops && i < N_RULES * N_KINDS * N_SIZES; i++)
            level_equals_reference(loops, rules[i % N_RULES], i / N_RULES % N_KINDS,
                                   sizes[i / N_RULES / N_KINDS]);
    }
}

/* All tensors in one call, each in runs that end at multiples of `split`. */
static void same_bits_for(spw_rule rule, unsigned threads, uint64_t split)
{
    enum { N = N_KINDS * N_SIZES };
    spw__hyper hyper = usual_hyper(rule);
    spw__adam_consts consts = consts_of(&hyper, 2);
    spw_device device = support_device(threads);
    tensor ours[N], theirs[N];
    spw__update_run runs[5 * N];
    uint64_t n_runs = 0;
    for (int i = 0; i < N; i++) {
        ours[i] = make_filled(rule, i % N_KINDS, sizes[i / N_KINDS], (uint64_t)i + 1);
        theirs[i] = make_filled(rule, i % N_KINDS, sizes[i / N_KINDS], (uint64_t)i + 1);
        reference(&theirs[i], &consts);
        for (uint64_t at = 0; at < ours[i].n; at += split)
            runs[n_runs++] =
                run_of(&ours[i], &consts, at, at + split < ours[i].n ? at + split : ours[i].n);
    }
    assert_int_equal(spw__kern_update(&device, rule, runs, n_runs, NULL), 0);
    for (int i = 0; i < N; i++) {
        assert_same(&ours[i], &theirs[i]);
        drop(&ours[i]);
        drop(&theirs[i]);
    }
    support_device_end(&device);
}

static void threads_and_runs_do_not_change_a_bit(void **state)
{
    (void)state;
    for (int r = 0; r < N_RULES; r++)
        for (unsigned threads = 1; threads <= 8; threads *= 2)
            for (uint64_t split = 4096; split <= 1 << 20; split <<= 4)
                same_bits_for(rules[r], threads, split);
}

/* What the optimizer relies on when it chooses: SPW_ADAM's kernels for AdamW's constants. */
static void adams_kernels_give_adamws_bits(void **state)
{
    (void)state;
    spw__hyper hyper = usual_hyper(SPW_ADAMW);
    spw__adam_consts consts = consts_of(&hyper, 3);
    for (int kind = 0; kind < N_KINDS; kind++) {
        tensor a = make_filled(SPW_ADAMW, kind, 5000, 3), b = make_filled(SPW_ADAM, kind, 5000, 3);
        support_put(a.at[G], a.g_type, 17, -0.0f);
        support_put(b.at[G], b.g_type, 17, -0.0f);
        step_by(SPW_ADAMW, &a, &consts);
        step_by(SPW_ADAM, &b, &consts);
        assert_same(&a, &b);
        drop(&a);
        drop(&b);
    }
}

/* ------------------------------------------------------------------- the formulas in double -- */

static double ulp(double x)
{
    return ldexp(1.0, ilogb(fmax(fabs(x), 1e-37)) - 23);
}

typedef struct wide {
    double p, m, v, slow;
    double most;  /* of the terms of p */
    double error; /* of p through m's and m_slow's rounding */
} wide;

static wide lion_in_double(const spw__hyper *h, wide old, double g)
{
    wide w = old;
    double way = h->beta1 * old.m + (1 - h->beta1) * g;
    w.p = old.p * (1 - h->lr * h->weight_decay) - h->lr * ((way > 0) - (way < 0));
    w.m = h->beta2 * old.m + (1 - h->beta2) * g;
    w.most = fmax(fabs(old.p), h->lr);
    return w;
}

/* Adam with L2, or AdEMAMix, in step t. */
static wide adam_in_double(const spw__hyper *h, wide old, double g, int t)
{
    wide w;
    bool is_adam = h->rule == SPW_ADAM;
    double bias1 = 1 - pow(h->beta1, t), bias2 = 1 - pow(h->beta2, t);
    double decay = is_adam ? 1 : 1 - h->lr * h->weight_decay;
    g += is_adam ? h->weight_decay * old.p : 0;
    w.m = h->beta1 * old.m + (1 - h->beta1) * g;
    w.v = h->beta2 * old.v + (1 - h->beta2) * g * g;
    w.slow = is_adam ? 0 : h->beta3 * old.slow + (1 - h->beta3) * g;
    double weight = is_adam ? 0 : h->alpha;
    double rate = h->lr / (sqrt(w.v / bias2) + h->eps);
    w.p = old.p * decay - rate * (w.m / bias1 + weight * w.slow);
    double pull = is_adam ? h->weight_decay * fabs(old.p) : 0;
    double part_m = rate * fmax(fabs(old.m), fabs(g) + pull) / bias1;
    w.most = fmax(fabs(old.p), fmax(fabs(rate * w.m / bias1), fabs(rate * weight * w.slow)));
    w.error = 2 * ulp(part_m) + 2 * ulp(rate * weight * fmax(fabs(old.slow), fabs(g)));
    return w;
}

static void check_32bit_in_double(spw_rule rule, spw_decay decay)
{
    spw__hyper hyper = usual_hyper(rule);
    tensor t = make_filled(rule, 0, 5000, 21), old = make_filled(rule, 0, 5000, 21);
    hyper.decay = decay;
    step_alone(&t, &hyper);
    for (uint64_t i = 0; i < t.n; i++) {
        wide from = {.p = (double)value(&old, P, i),
                     .m = (double)moment(&old, M, i),
                     .v = (double)moment(&old, V, i),
                     .slow = (double)moment(&old, SLOW, i)};
        double g = 0.5 * (double)value(&old, G, i);
        spw__hyper now = hyper;
        now.weight_decay = decay == SPW_DECAY_AFTER ? 0 : hyper.weight_decay;
        wide w =
            rule == SPW_LION ? lion_in_double(&now, from, g) : adam_in_double(&now, from, g, 5);
        if (decay == SPW_DECAY_AFTER)
            w.p *= 1 - hyper.lr * hyper.weight_decay;
        double pull = rule == SPW_ADAM ? hyper.weight_decay * fabs(from.p) : 0;
        double most_m = fmax(fabs(from.m), fabs(g) + pull);
        assert_true(fabs((double)moment(&t, M, i) - w.m) <= 2 * ulp(most_m));
        double most_v = fmax(w.v, (1 - hyper.beta2) * (fabs(g) + pull) * (fabs(g) + pull));
        assert_true(fabs((double)moment(&t, V, i) - w.v) <= 4 * ulp(most_v));
        assert_true(fabs((double)moment(&t, SLOW, i) - w.slow) <=
                    2 * ulp(fmax(fabs(from.slow), fabs(g))));
        assert_true(fabs((double)value(&t, P, i) - w.p) <= 4 * ulp(w.most) + w.error);
    }
    drop(&t);
    drop(&old);
}

static void the_32bit_step_is_the_papers_formula(void **state)
{
    (void)state;
    for (int r = 0; r < N_RULES; r++)
        check_32bit_in_double(rules[r], SPW_DECAY_BEFORE);
    check_32bit_in_double(SPW_LION, SPW_DECAY_AFTER);
    check_32bit_in_double(SPW_ADEMAMIX, SPW_DECAY_AFTER);
}

/* AdamW with bitsandbytes' order, by the kernels that do it. */
static void adamw_may_decay_after_the_update(void **state)
{
    (void)state;
    spw__hyper before = usual_hyper(SPW_ADAMW), after = before;
    before.weight_decay = 0;
    after.decay = SPW_DECAY_AFTER;
    spw__adam_consts none = consts_of(&before, 4), late = consts_of(&after, 4);
    tensor a = make_filled(SPW_ADAMW, 0, 700, 3), b = make_filled(SPW_ADAM, 0, 700, 3);
    step_by(SPW_ADAMW, &a, &none);
    step_by(SPW_ADAM, &b, &late);
    for (uint64_t i = 0; i < a.n; i++)
        set(&a, P, i, value(&a, P, i) * (float)(1 - 2e-3 * 0.05));
    assert_same(&a, &b);
    drop(&a);
    drop(&b);
}

/* The step's own fp32 arithmetic may move a moment, and what is near a midpoint, by a little. */
static void check_codes(const tensor *t, int array, const double *x, const double *slack,
                        uint64_t first)
{
    const float *table = spw_code_table(array != V);
    uint64_t n = t->n - first < SPW__BLOCK ? t->n - first : SPW__BLOCK;
    double most = 0, worst = 0;
    for (uint64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(x[i]));
        worst = fmax(worst, slack[i]);
    }
    double absmax = (double)value(t, array + ABSMAX_M - M, first / SPW__BLOCK);
    assert_true(fabs(absmax - most) <= worst);
    for (uint64_t i = 0; i < n; i++) {
        int code = t->at[array][first + i], best = 0;
        for (int k = 1; k < 256; k++)
            if (fabs(x[i] - (double)table[k] * most) < fabs(x[i] - (double)table[best] * most))
                best = k;
        double middle = ((double)table[code] + (double)table[best]) / 2 * most;
        assert_true(code == best || (abs(code - best) == 1 &&
                                     fabs(x[i] - middle) <= 4 * ulp(middle) + slack[i] + worst));
    }
}

static void check_8bit_block(const tensor *t, const tensor *old, const spw__hyper *h,
                             uint64_t first)
{
    double x[3][SPW__BLOCK], slack[3][SPW__BLOCK];
    for (uint64_t i = 0; i < SPW__BLOCK && first + i < t->n; i++) {
        wide from = {.p = (double)support_get(old->at[P], old->p_type, first + i),
                     .m = (double)moment(old, M, first + i),
                     .v = (double)moment(old, V, first + i),
                     .slow = (double)moment(old, SLOW, first + i)};
        double g = 0.5 * (double)support_get(old->at[G], old->g_type, first + i);
        wide w = h->rule == SPW_LION ? lion_in_double(h, from, g) : adam_in_double(h, from, g, 5);
        x[0][i] = w.m;
        x[1][i] = w.v;
        x[2][i] = w.slow;
        slack[0][i] = 2 * ulp(fmax(fabs(from.m), fabs(g)));
        slack[1][i] = 3 * ulp(w.v);
        slack[2][i] = 2 * ulp(fmax(fabs(from.slow), fabs(g)));
    }
    for (int k = 0; k < 3; k++)
        if (bytes_of(t, M + k))
            check_codes(t, M + k, x[k], slack[k], first);
}

static void codes_are_the_nearest_by_an_independent_search(void **state)
{
    (void)state;
    for (int r = 0; r < N_RULES; r++) {
        spw__hyper hyper = usual_hyper(rules[r]);
        hyper.weight_decay = rules[r] == SPW_ADAM ? 0 : hyper.weight_decay;
        tensor t = make_filled(rules[r], N_KINDS / 2, 5100, 77);
        tensor old = make_filled(rules[r], N_KINDS / 2, 5100, 77);
        step_alone(&t, &hyper);
        for (uint64_t first = 0; first < t.n; first += SPW__BLOCK)
            check_8bit_block(&t, &old, &hyper, first);
        drop(&t);
        drop(&old);
    }
}

/* ------------------------------------------------------------------------------- schedules -- */

static void our_exp_is_exp(void **state)
{
    (void)state;
    for (double x = -600; x <= 0; x += x < -1 ? 0.37 : 1e-5)
        assert_true(fabs(spw__exp(x) / exp(x) - 1) <= 4.5e-16);
    assert_true(spw__exp(0) == 1.0);
}

static void schedules_reach_alpha_and_beta3_and_stay(void **state)
{
    (void)state;
    spw__hyper h = usual_hyper(SPW_ADEMAMIX);
    assert_true(spw__beta3_at(&h, 1) == h.beta3 && spw__alpha_at(&h, 1) == h.alpha);
    h.t_alpha = 100;
    h.t_beta3 = 1000;
    h.log_beta1 = log(h.beta1);
    h.log_beta3 = log(h.beta3);
    double before = h.beta1;
    for (uint64_t t = 1; t <= 1200; t++) {
        double s = (double)t / 1000, l1 = log(h.beta1), l3 = log(h.beta3);
        double beta3 = fmin(exp(l1 * l3 / ((1 - s) * l3 + s * l1)), h.beta3);
        assert_true(fabs(spw__beta3_at(&h, t) - beta3) <= 4e-16);
        assert_true(spw__beta3_at(&h, t) >= before);
        before = spw__beta3_at(&h, t);
        assert_true(fabs(spw__alpha_at(&h, t) - fmin((double)t * 5 / 100, 5)) <= 1e-15);
    }
    assert_true(before == h.beta3);
    h.beta1 = 0.99995; /* above beta3: there is nothing to climb */
    h.log_beta1 = log(h.beta1);
    for (uint64_t t = 1; t <= 1200; t++)
        assert_true(spw__beta3_at(&h, t) == h.beta3);
}

/* ------------------------------------------------------------------------------- bad inputs -- */

static void an_element_with_a_bad_gradient_stays_as_it_is(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < N_RULES * N_KINDS / 2; i++) {
        spw_rule rule = rules[i % N_RULES];
        spw__hyper hyper = usual_hyper(rule);
        tensor t = make_filled(rule, i / N_RULES, 1000, 6),
               old = make_filled(rule, i / N_RULES, 1000, 6);
        for (uint64_t k = 0; k < t.n; k += 7)
            support_put(t.at[G], t.g_type, k, bad[k % 3]);
        step_alone(&t, &hyper);
        for (uint64_t k = 0; k < t.n; k++) {
            bool same = support_get(t.at[P], t.p_type, k) == support_get(old.at[P], t.p_type, k);
            assert_true(same || k % 7);
            for (int array = M; array <= SLOW; array++)
                assert_int_equal(moment(&t, array, k) == moment(&old, array, k),
                                 k % 7 == 0 || !bytes_of(&t, array));
        }
        drop(&t);
        drop(&old);
    }
}

static void only_bad_gradients_change_nothing_of_an_8bit_block(void **state)
{
    (void)state;
    for (int r = 0; r < N_RULES; r++) {
        spw__hyper hyper = usual_hyper(rules[r]);
        tensor t = make_filled(rules[r], N_KINDS / 2, 600, 8);
        for (uint64_t i = 0; i < t.n; i++) {
            support_put(t.at[G], t.g_type, i, NAN);
            for (int array = M; array <= SLOW; array++) /* a block's extreme is code 255 */
                if (bytes_of(&t, array))
                    t.at[array][i] = (unsigned char)(255 - i % SPW__BLOCK);
        }
        tensor old = make(rules[r], N_KINDS / 2, 600);
        for (int array = 0; array < ARRAYS; array++)
            memcpy(old.at[array], t.at[array], bytes_of(&t, array));
        step_alone(&t, &hyper);
        assert_same(&t, &old);
        drop(&t);
        drop(&old);
    }
}

/* Fresh state and no gradient: only decay moves p, and codes say 0 with absmax 0. */
static void zeros_stay_zero(void **state)
{
    (void)state;
    for (int r = 0; r < N_RULES; r++) {
        spw__hyper hyper = usual_hyper(rules[r]);
        hyper.weight_decay = 0;
        tensor t = make(rules[r], N_KINDS / 2, 600);
        for (uint64_t i = 0; i < t.n; i++)
            support_put(t.at[P], t.p_type, i, 2.0f);
        for (int step = 0; step < 3; step++)
            step_alone(&t, &hyper);
        for (uint64_t i = 0; i < t.n; i++) {
            assert_true(support_get(t.at[P], t.p_type, i) == 2.0f);
            assert_int_equal(t.at[M][i], SPW__CODE_ZERO);
            assert_true(moment(&t, M, i) == 0 && moment(&t, V, i) == 0 && moment(&t, SLOW, i) == 0);
        }
        drop(&t);
    }
}

static void a_zero_gradient_in_a_busy_block_keeps_exact_zeros(void **state)
{
    (void)state;
    for (int r = 0; r < N_RULES; r++) {
        spw__hyper hyper = usual_hyper(rules[r]);
        tensor t = make(rules[r], N_KINDS / 2, SPW__BLOCK);
        for (uint64_t i = 0; i < t.n; i += 2)
            support_put(t.at[G], t.g_type, i, i % 4 ? -1.0f : 1.0f);
        for (int step = 0; step < 5; step++)
            step_alone(&t, &hyper);
        for (uint64_t i = 0; i < t.n; i++) {
            assert_int_equal(moment(&t, M, i) == 0, i % 2);
            assert_int_equal(support_get(t.at[P], t.p_type, i) == 0, i % 2);
        }
        drop(&t);
    }
}

static void extreme_gradients_leave_no_nan(void **state)
{
    (void)state;
    const float extremes[] = {1e-45f, 1e-38f, 1e-22f, 1e18f, 3.4e38f, -3.4e38f};
    for (int i = 0; i < 6 * N_RULES * N_KINDS; i++) {
        spw_rule rule = rules[i / 6 % N_RULES];
        spw__hyper hyper = usual_hyper(rule);
        tensor t = make(rule, i / 6 / N_RULES, 300);
        hyper.weight_decay = 0;
        for (uint64_t k = 0; k < t.n; k++)
            support_put(t.at[G], t.g_type, k, k % 3 ? extremes[i % 6] : 0.0f);
        for (int step = 0; step < 3; step++)
            step_alone(&t, &hyper);
        for (uint64_t k = 0; k < t.n; k++) {
            assert_true(isfinite(support_get(t.at[P], t.p_type, k)));
            assert_true(!isnan(moment(&t, M, k)) && !isnan(moment(&t, SLOW, k)));
        }
        drop(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_width_gives_the_bits_of_the_element_functions),
        cmocka_unit_test(threads_and_runs_do_not_change_a_bit),
        cmocka_unit_test(adams_kernels_give_adamws_bits),
        cmocka_unit_test(the_32bit_step_is_the_papers_formula),
        cmocka_unit_test(adamw_may_decay_after_the_update),
        cmocka_unit_test(codes_are_the_nearest_by_an_independent_search),
        cmocka_unit_test(our_exp_is_exp),
        cmocka_unit_test(schedules_reach_alpha_and_beta3_and_stay),
        cmocka_unit_test(an_element_with_a_bad_gradient_stays_as_it_is),
        cmocka_unit_test(only_bad_gradients_change_nothing_of_an_8bit_block),
        cmocka_unit_test(zeros_stay_zero),
        cmocka_unit_test(a_zero_gradient_in_a_busy_block_keeps_exact_zeros),
        cmocka_unit_test(extreme_gradients_leave_no_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
