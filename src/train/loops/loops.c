#include "train/loops.h"

#include "base/half.h"
#include "base/philox.h"

enum { LANES = 16, SUM_RUN = 1024 };

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

static inline float tree_sum(float lane[LANES])
{
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

static float loop_max(const float *x, size_t n)
{
    float lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = x[0];
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] = x[j + (size_t)i] > lane[i] ? x[j + (size_t)i] : lane[i];
    for (; j < n; j++)
        lane[0] = x[j] > lane[0] ? x[j] : lane[0];
    for (int i = 1; i < LANES; i++)
        lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
}

/* e^x = 2^k e^r, |r| <= ln 2 / 2; k by adding and taking away 1.5 * 2^23, whose low bits then hold
 * it; e^r = 1 + r + r^2 q(r), q a Chebyshev fit of degree 4 (relative error 1.1e-8). */
static inline float exp_of(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f;
    float k = shifted - 12582912.0f;
    float r = x - k * 0.693145752f;
    r -= k * 1.42860677e-6f;
    float q = 1.39336448e-03f;
    q = q * r + 8.36317667e-03f;
    q = q * r + 4.16664650e-02f;
    q = q * r + 1.66665770e-01f;
    q = q * r + 5.00000001e-01f;
    float power = spw__float_of_bits((spw__bits_of_float(shifted) << 23) + 0x3F800000u);
    return (1.0f + (r + r * r * q)) * power;
}

/* At most SUM_RUN elements, whose sum a float carries well. */
static inline float exp_run(float *x, size_t n, float shift)
{
    for (size_t j = 0; j < n; j++)
        x[j] = exp_of(x[j] - shift);
    float lane[LANES] = {0};
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += x[j + (size_t)i];
    for (int i = 0; j < n; j++, i++)
        lane[i] += x[j];
    return tree_sum(lane);
}

static double loop_exp_sum(float *x, size_t n, float shift)
{
    double sum = 0.0;
    for (size_t j = 0; j < n; j += SUM_RUN)
        sum += (double)exp_run(x + j, n - j < SUM_RUN ? n - j : SUM_RUN, shift);
    return sum;
}

static float loop_dot(const float *x, const float *y, size_t n)
{
    float lane[LANES] = {0};
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += x[j + (size_t)i] * y[j + (size_t)i];
    for (int i = 0; j < n; j++, i++)
        lane[i] += x[j] * y[j];
    return tree_sum(lane);
}

static float loop_dot3(const float *x, const float *y, const float *z, size_t n)
{
    float lane[LANES] = {0};
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int i = 0; i < LANES; i++)
            lane[i] += x[j + (size_t)i] * y[j + (size_t)i] * z[j + (size_t)i];
    for (int i = 0; j < n; j++, i++)
        lane[i] += x[j] * y[j] * z[j];
    return tree_sum(lane);
}

static void loop_scale(float *x, size_t n, float factor)
{
    for (size_t j = 0; j < n; j++)
        x[j] *= factor;
}

static void loop_add(float *restrict sum, const float *restrict x, size_t n)
{
    for (size_t j = 0; j < n; j++)
        sum[j] += x[j];
}

static void loop_add_product(float *restrict sum, const float *x, const float *y, size_t n,
                             float factor)
{
    for (size_t j = 0; j < n; j++)
        sum[j] += x[j] * y[j] * factor;
}

static void loop_scale_by(float *y, const float *x, const float *gain, size_t n, float factor)
{
    for (size_t j = 0; j < n; j++)
        y[j] = x[j] * factor * gain[j];
}

static void loop_norm_backward(float *restrict dx, const float *dy, const float *x,
                               const float *gain, size_t n, const spw__norm_factors *factors)
{
    float factor = factors->factor, pull = factors->pull;
    for (size_t j = 0; j < n; j++)
        dx[j] += dy[j] * gain[j] * factor - x[j] * pull;
}

static void loop_norm_backward_in_place(float *restrict d, const float *x, const float *gain,
                                        size_t n, const spw__norm_factors *factors)
{
    float factor = factors->factor, pull = factors->pull;
    for (size_t j = 0; j < n; j++)
        d[j] = d[j] * gain[j] * factor - x[j] * pull;
}

static void loop_rotate(float *restrict x, const float *cosine, const float *sine, size_t half,
                        float direction)
{
    for (size_t j = 0; j < half; j++) {
        float first = x[j], second = x[j + half];
        float s = sine[j] * direction;
        x[j] = first * cosine[j] - second * s;
        x[j + half] = second * cosine[j] + first * s;
    }
}

static inline float sigmoid_of(float x)
{
    return 1.0f / (1.0f + exp_of(-x));
}

static void loop_swiglu(float *restrict y, const float *gate, const float *up, size_t n)
{
    for (size_t j = 0; j < n; j++)
        y[j] = gate[j] * sigmoid_of(gate[j]) * up[j];
}

static void loop_swiglu_backward(float *restrict gate, float *restrict up, const float *restrict dy,
                                 size_t n)
{
    for (size_t j = 0; j < n; j++) {
        float g = gate[j], u = up[j], s = sigmoid_of(g);
        gate[j] = dy[j] * u * s * (1.0f + g * (1.0f - s));
        up[j] = dy[j] * g * s;
    }
}

static void loop_softmax_backward(float *restrict p, const float *restrict dp, size_t n, float mean,
                                  float factor)
{
    for (size_t j = 0; j < n; j++)
        p[j] = p[j] * (dp[j] - mean) * factor;
}

/* Four factors, each 0 or mask->scale, of elements 4 * quad ... */
static inline void mask_factors(const spw__mask *mask, uint32_t quad, float factor[4])
{
    uint32_t counter[4] = {quad, mask->stream[0], mask->stream[1], mask->stream[2]};
    uint32_t words[4];
    spw__philox(counter, mask->key, words);
    for (int i = 0; i < 4; i++)
        factor[i] = words[i] >= mask->threshold ? mask->scale : 0.0f;
}

static void loop_dropout(float *y, const float *x, size_t n, uint64_t first, const spw__mask *mask)
{
    for (size_t j = 0; j < n; j += 4) {
        float factor[4];
        mask_factors(mask, (uint32_t)((first + j) / 4), factor);
        for (size_t i = 0; i < 4 && j + i < n; i++)
            y[j + i] = x[j + i] * factor[i];
    }
}

static void loop_add_dropout(float *y, const float *x, size_t n, uint64_t first,
                             const spw__mask *mask)
{
    for (size_t j = 0; j < n; j += 4) {
        float factor[4];
        mask_factors(mask, (uint32_t)((first + j) / 4), factor);
        for (size_t i = 0; i < 4 && j + i < n; i++)
            y[j + i] += x[j + i] * factor[i];
    }
}

extern const spw__loops PASTE(spw__train_loops_, SPW_LOOPS_SUFFIX);
const spw__loops PASTE(spw__train_loops_, SPW_LOOPS_SUFFIX) = {
    .max = loop_max,
    .exp_sum = loop_exp_sum,
    .dot = loop_dot,
    .dot3 = loop_dot3,
    .scale = loop_scale,
    .add = loop_add,
    .add_product = loop_add_product,
    .scale_by = loop_scale_by,
    .norm_backward = loop_norm_backward,
    .norm_backward_in_place = loop_norm_backward_in_place,
    .rotate = loop_rotate,
    .swiglu = loop_swiglu,
    .swiglu_backward = loop_swiglu_backward,
    .softmax_backward = loop_softmax_backward,
    .dropout = loop_dropout,
    .add_dropout = loop_add_dropout,
};
