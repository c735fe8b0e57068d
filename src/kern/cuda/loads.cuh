/*
 * loads.cuh - four elements a thread, from memory to fp32 and back.
 */
#ifndef SPW_KERN_CUDA_LOADS_CUH
#define SPW_KERN_CUDA_LOADS_CUH

#include "kern/cuda/args.h"
#include "kern/elements.h"

#define DEVICE static __device__ __forceinline__

enum { WIDTH = 4 /* consecutive elements of a thread */ };

typedef struct four {
    float at[WIDTH];
} four;

/* Types of their own, for the overloads below. */
typedef struct bf16 {
    uint16_t bits;
} bf16;

typedef struct fp16 {
    uint16_t bits;
} fp16;

/* Four elements as they lie in memory: halves, or fp32. */
template <typename T> struct raw4 {
    uint2 x;
};
template <> struct raw4<float> {
    float4 x;
};

template <typename T> DEVICE raw4<T> load_raw(const T *x)
{
    return *(const raw4<T> *)x;
}

DEVICE four wide(raw4<float> v)
{
    return {{v.x.x, v.x.y, v.x.z, v.x.w}};
}

DEVICE four wide(raw4<bf16> v)
{
    return {{spw__float_of_bits(v.x.x << 16), spw__float_of_bits(v.x.x & 0xFFFF0000u),
             spw__float_of_bits(v.x.y << 16), spw__float_of_bits(v.x.y & 0xFFFF0000u)}};
}

/* As spw__float_of_fp16, but for the bits of a NaN: those never come back to memory. */
DEVICE four wide(raw4<fp16> v)
{
    four f;
    asm("{\n\t.reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %4;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t"
        "mov.b32 {low, high}, %5;\n\tcvt.f32.f16 %2, low;\n\tcvt.f32.f16 %3, high;\n\t}"
        : "=f"(f.at[0]), "=f"(f.at[1]), "=f"(f.at[2]), "=f"(f.at[3])
        : "r"(v.x.x), "r"(v.x.y));
    return f;
}

template <typename T> DEVICE four load4(const T *x)
{
    return wide(load_raw(x));
}

DEVICE void store4(float *x, four f)
{
    *(float4 *)x = make_float4(f.at[0], f.at[1], f.at[2], f.at[3]);
}

DEVICE uint16_t half_bits(bf16 *, float value)
{
    return spw__bf16_of_float(value);
}

/* As spw__fp16_of_float, in an instruction and NaN's one. */
DEVICE uint16_t half_bits(fp16 *, float value)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return value == value ? bits : SPW__FP16_NAN;
}

template <typename T> DEVICE void store4(T *x, four f)
{
    uint32_t h[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        h[i] = half_bits(x, f.at[i]);
    *(uint2 *)x = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
}

DEVICE float load1(const float *x)
{
    return *x;
}

DEVICE float load1(const bf16 *x)
{
    return spw__float_of_bf16(x->bits);
}

DEVICE float load1(const fp16 *x)
{
    return spw__float_of_fp16(x->bits);
}

DEVICE void store1(float *x, float value)
{
    *x = value;
}

template <typename T> DEVICE void store1(T *x, float value)
{
    x->bits = half_bits(x, value);
}

/* WHOLE: four elements that are there and aligned; else the first `n`, and zeros. */
template <bool WHOLE, typename T> DEVICE four load(const T *x, int n)
{
    if (WHOLE)
        return load4(x);
    four f = {{0, 0, 0, 0}};
    for (int i = 0; i < WIDTH; i++)
        if (i < n)
            f.at[i] = load1(x + i);
    return f;
}

template <bool WHOLE, typename T> DEVICE void store(T *x, four f, int n)
{
    if (WHOLE)
        store4(x, f);
    else
        for (int i = 0; i < WIDTH; i++)
            if (i < n)
                store1(x + i, f.at[i]);
}

DEVICE uint32_t load_codes(const uint8_t *x, int n, uint32_t fill)
{
    uint32_t codes = fill;
    for (int i = 0; i < WIDTH; i++)
        if (i < n)
            codes = (codes & ~(0xFFu << 8 * i)) | (uint32_t)x[i] << 8 * i;
    return codes;
}

DEVICE void store_codes(uint8_t *x, uint32_t codes, int n)
{
    for (int i = 0; i < WIDTH; i++)
        if (i < n)
            x[i] = (uint8_t)(codes >> 8 * i);
}

template <typename T> DEVICE bool is_aligned(const T *x)
{
    return ((uint64_t)x & (WIDTH * sizeof(T) - 1)) == 0;
}

DEVICE int clamp(uint64_t n, uint64_t first)
{
    return first >= n ? 0 : n - first < WIDTH ? (int)(n - first) : WIDTH;
}

/* A pointer into the device's or pinned memory, so that the compiler need not ask which kind. */
template <typename T> DEVICE T *global(T *x)
{
    __builtin_assume(__isGlobal(x));
    return x;
}

#endif
