// Which K of a row's keys are kept: one warp a row, the keys in its registers.
//
// Macros: WIDTH (D), K. The warp halves the range of keys until exactly K lie at or above a
// threshold; each lane then writes its columns behind those of the lanes before it. Nothing is
// sorted. Order of what is stored: by column modulo 8, which the aggregation's accumulator copies
// like best (see spgemm/kernel.cu).
#pragma once
#include "numeric.cuh"

// Keys that order as the contract does: unsigned compare; NaN of either sign above +inf, -0.0 equal
// to 0.0, nothing maps to 0.
#define KEY_NAN 0xfffffff0u
#define KEY_TAKEN 0xffffffffu

#define KEY_INFINITY 0xff800000u
#define KEY_MINUS_INFINITY 0x007fffffu

__device__ __forceinline__ u32
raw_key(float f) {  // a NaN's lies beyond the infinities, on its sign's side, and is never 0
    u32 b = __float_as_uint(f + 0.f);  // -0.0 + 0.0 is 0.0
    return b ^ ((u32)((int)b >> 31) | 0x80000000u);
}
__device__ __forceinline__ u32 key_of(float f) { return f != f ? KEY_NAN : raw_key(f); }
__device__ __forceinline__ float value_of(u32 k) {
    return __uint_as_float(k ^ ((u32)((int)~k >> 31) | 0x80000000u));
}

__device__ __forceinline__ int warp_sum(int v) { return __reduce_add_sync(FULL, v); }
__device__ __forceinline__ u32 warp_min(u32 v) { return __reduce_min_sync(FULL, v); }
__device__ __forceinline__ u32 warp_max(u32 v) { return __reduce_max_sync(FULL, v); }

// Halving between two keys by value first (the row's own scale: seven steps on normal data), then
// by bit pattern (ends always).
__device__ __forceinline__ u32 between(u32 low, u32 high, int step) {
    u32 middle = low + (high - low) / 2;
    if (step < 16) {
        u32 m = raw_key(0.5f * (value_of(low) + value_of(high)));
        if (m > low && m < high) middle = m;
    }
    return middle;
}

// Lane 4 r + s holds the columns 8 (4 i + s) + r: all of one residue, so that lane order is residue
// order, and for each i the warp reads 32 neighbouring columns.
__device__ __forceinline__ int place(int lane) { return ((lane & 3) << 3) | (lane >> 2); }
__device__ __forceinline__ int lane_at(int place) { return ((place & 7) << 2) | (place >> 3); }

// Written out: the compiler takes three instructions for a conditional increment.
__device__ __forceinline__ void count_at_least(int& count, u32 key, u32 threshold) {
    asm("{ .reg .pred p; setp.ge.u32 p, %1, %2; @p add.s32 %0, %0, 1; }"
        : "+r"(count)
        : "r"(key), "r"(threshold));
}
__device__ __forceinline__ void store_at_least(u32& address, u32 key, u32 threshold, u32 column) {
    asm volatile(
        "{ .reg .pred p; setp.ge.u32 p, %1, %2; @p st.shared.u16 [%0], %3; @p add.u32 %0, %0, 2; }"
        : "+r"(address)
        : "r"(key), "r"(threshold), "h"((u16)column)
        : "memory");
}

// Leaves the columns of the K largest keys in `stage` (K, rounded up to even). A lane's key i
// belongs to column 32 i + place(lane); columns past WIDTH have the key 0.
template <int PER_LANE>
__device__ __forceinline__ void select_columns(u32 (&key)[PER_LANE], u16* stage, int lane) {
    int at = place(lane);
    u32 largest = key[0], smallest = key[0];
#pragma unroll
    for (int i = 1; i < PER_LANE; i++) {
        largest = max(largest, key[i]);
        smallest = min(smallest, key[i]);
    }
    if (__any_sync(FULL,
                   largest > KEY_INFINITY || smallest < KEY_MINUS_INFINITY)) {  // NaN; padding too
        largest = 0;
        smallest = KEY_TAKEN;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            if (key[i] > KEY_INFINITY || (key[i] != 0 && key[i] < KEY_MINUS_INFINITY))
                key[i] = KEY_NAN;
            largest = max(largest, key[i]);
            smallest = min(smallest, key[i]);
        }
    }
    // At least K keys are >= low, fewer than K are >= high. With K <= 32 the least of the lanes'
    // largest keys is such a low.
    u32 low = max(warp_min(K <= 32 ? largest : smallest), 1u), high = warp_max(largest) + 1u;
    u32 threshold = 0;
    bool one_short = false;
    for (int step = 0; high - low > 1; step++) {
        u32 middle = between(low, high, step);
        int above = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) count_at_least(above, key[i], middle);
        int count = warp_sum(above);
        if (count == K) {
            threshold = middle;
            break;
        }
        if (count > K)
            low = middle;
        else
            high = middle;
        if (count == K - 1) {
            one_short = true;
            break;
        }
    }
    if (one_short) {  // the next key below is the K-th largest
        u32 next = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (key[i] < high) next = max(next, key[i]);
        low = warp_max(next);
        int above = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) count_at_least(above, key[i], low);
        if (warp_sum(above) == K) threshold = low;
    }
    if (threshold == 0) {  // of keys equal to the K-th largest, low, the lowest columns are taken
        threshold = low;
        int above = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) above += key[i] > low;
        int wanted = K - warp_sum(above);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            bool tie = key[i] == low;
            u32 ties = __ballot_sync(
                FULL, __shfl_sync(FULL, (int)tie, lane_at(lane)) != 0);  // in column order
            if (tie) key[i] = __popc(ties & ((1u << at) - 1u)) < wanted ? KEY_TAKEN : 0u;
            wanted -= __popc(ties);
        }
    }
    int taken = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) count_at_least(taken, key[i], threshold);
    int end = taken;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(FULL, end, d);
        if (lane >= d) end += other;
    }
    u32 address = (u32)__cvta_generic_to_shared(stage + (end - taken));
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) store_at_least(address, key[i], threshold, i * 32 + at);
    __syncwarp();
}
