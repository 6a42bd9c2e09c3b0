// Element types of the features and of their column ids, chosen by -DVALUE and -DCOLUMN_BYTES, and
// vector loads of both. No header of the toolkit is needed: 16-bit floats are converted by the
// instructions themselves.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define FULL 0xffffffffu
#define FP32 0
#define BF16 1
#define FP16 2

#if VALUE == FP32
typedef float value_t;
__device__ __forceinline__ float to_float(value_t v) { return v; }
__device__ __forceinline__ value_t from_float(float f) { return f; }
#elif VALUE == BF16
typedef u16 value_t;
__device__ __forceinline__ float to_float(value_t v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ value_t from_float(float f) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
}
#elif VALUE == FP16
typedef u16 value_t;
__device__ __forceinline__ float to_float(value_t v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
    return r;
}
__device__ __forceinline__ value_t from_float(float f) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
}
#endif

#ifdef COLUMN_BYTES
#if COLUMN_BYTES == 1
typedef u8 column_t;
#elif COLUMN_BYTES == 2
typedef u16 column_t;
#else
typedef u32 column_t;
#endif
#endif

template <int BYTES>
struct Raw;
template <>
struct Raw<1> {
    typedef u8 type;
};
template <>
struct Raw<2> {
    typedef u16 type;
};
template <>
struct Raw<4> {
    typedef u32 type;
};
template <>
struct Raw<8> {
    typedef uint2 type;
};
template <>
struct Raw<16> {
    typedef uint4 type;
};

// The V elements at p, which is aligned to V elements (or to 16 bytes where V elements are longer),
// through the read-only path.
template <class T, int V>
__device__ __forceinline__ void load_vector(const T* __restrict__ p, T (&out)[V]) {
    constexpr int WANT = sizeof(T) * V, BYTES = WANT < 16 ? WANT : 16, COUNT = WANT / BYTES,
                  EACH = BYTES / sizeof(T);
    typedef typename Raw<BYTES>::type raw_t;
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        union {
            raw_t raw;
            T item[EACH];
        } u;
        u.raw = __ldg((const raw_t*)p + c);
#pragma unroll
        for (int i = 0; i < EACH; i++) out[c * EACH + i] = u.item[i];
    }
}

// The largest power of two, at most `most`, that divides `n`: how wide a vector load of rows of n
// elements may be.
__host__ __device__ constexpr int vector_width(int n, int most) {
    return most <= 1 || n % most == 0 ? most : vector_width(n, most / 2);
}
