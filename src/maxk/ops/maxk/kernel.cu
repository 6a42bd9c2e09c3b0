// MaxK on the device: dense [N, D] -> the K largest of each row, and back. One warp a row.
//
// Macros: VALUE, COLUMN_BYTES, WIDTH (D), K, WARPS (warps a block); SEGMENT (columns a warp
// scatters). Order of what is stored: by column modulo 8, which the aggregation's accumulator
// copies like best (see spgemm/kernel.cu).
#include "numeric.cuh"
#include "select.cuh"

#ifdef SELECT
#define PER_LANE ((WIDTH + 31) / 32)

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    maxk_select(const value_t* __restrict__ x, i64 rows, value_t* __restrict__ values,
                column_t* __restrict__ columns) {
    __shared__ u16 stage_all[WARPS][(K + 1) / 2 * 2];
    int lane = threadIdx.x & 31;
    u16* stage = stage_all[threadIdx.x >> 5];
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    const value_t* xr = x + row * WIDTH;
    int at = place(lane);
    const value_t* mine = xr + at;
    asm("" : "+l"(mine));  // one address and constant offsets from it
    u32 key[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        key[i] = i * 32 + 31 < WIDTH || i * 32 + at < WIDTH
                     ? raw_key(to_float(__ldg(mine + i * 32)))
                     : 0u;
    select_columns(key, stage, lane);
#pragma unroll 4
    for (int t = lane; t < K; t += 32) {
        int c = stage[t];
        values[row * K + t] = __ldg(xr + c);
        columns[row * K + t] = (column_t)c;
    }
}
#endif

#ifdef STREAM
// Rows too wide for registers: every count reads the row again, through the caches.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    maxk_select_stream(const value_t* __restrict__ x, i64 rows, value_t* __restrict__ values,
                       column_t* __restrict__ columns) {
    int lane = threadIdx.x & 31;
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    const value_t* xr = x + row * WIDTH;
    u32 largest = 0;
    for (int c = lane; c < WIDTH; c += 32) largest = max(largest, key_of(to_float(__ldg(xr + c))));
    u32 low = 1u, high = warp_max(largest) + 1u;
    for (int step = 0; high - low > 1; step++) {
        u32 middle = between(low, high, step);
        int mine = 0;
#pragma unroll 8
        for (int c = lane; c < WIDTH; c += 32) mine += key_of(to_float(__ldg(xr + c))) >= middle;
        int count = warp_sum(mine);
        if (count >= K)
            low = middle;
        else
            high = middle;
        if (count == K) break;
    }
    int above = 0;
#pragma unroll 8
    for (int c = lane; c < WIDTH; c += 32) above += key_of(to_float(__ldg(xr + c))) > low;
    int wanted = K - warp_sum(above);
    // low is the K-th largest key, or a threshold with exactly K keys at or above it: then at most
    // `wanted` keys lie between low and the next one
    int stored = 0;
    u32 before = (1u << lane) - 1u;
    bool exact = false;
    {
        int mine = 0;
        for (int c = lane; c < WIDTH; c += 32) mine += key_of(to_float(__ldg(xr + c))) >= low;
        exact = warp_sum(mine) == K;
    }
    for (int first = 0; first < WIDTH; first += 32) {
        int c = first + lane;
        u32 k = c < WIDTH ? key_of(to_float(__ldg(xr + c))) : 0u;
        bool tie = !exact && k == low;
        u32 ties = __ballot_sync(FULL, tie);
        bool take = (exact ? k >= low : k > low) || (tie && __popc(ties & before) < wanted);
        u32 takes = __ballot_sync(FULL, take);
        if (take) {
            i64 t = row * K + stored + __popc(takes & before);
            values[t] = __ldg(xr + c);
            columns[t] = (column_t)c;
        }
        stored += __popc(takes);
        wanted -= __popc(ties);
    }
}
#endif

#ifdef ADD
// y += scale * CBSR, in place: one thread an entry; the columns of a row are distinct.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    maxk_add(const value_t* __restrict__ values, const column_t* __restrict__ columns, i64 entries,
             const float* __restrict__ scale, value_t* __restrict__ y) {
    float s = __ldg(scale);
    i64 step = (i64)gridDim.x * WARPS * 32;
    for (i64 e = (i64)blockIdx.x * WARPS * 32 + threadIdx.x; e < entries; e += step) {
        value_t* at = y + e / K * WIDTH + __ldg(columns + e);
        *at = from_float(to_float(*at) + s * to_float(__ldg(values + e)));
    }
}
#endif

#ifdef SEGMENT
// Dense rows from stored entries: one warp writes SEGMENT columns of a row, whole, zeros included.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    maxk_scatter(const value_t* __restrict__ values, const column_t* __restrict__ columns, i64 rows,
                 value_t* __restrict__ dense) {
    __shared__ __align__(16) value_t stage_all[WARPS][SEGMENT];
    int lane = threadIdx.x & 31;
    value_t* stage = stage_all[threadIdx.x >> 5];
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    int first = blockIdx.y * SEGMENT, count = min(SEGMENT, WIDTH - first);
    constexpr int V = vector_width(WIDTH, 16 / sizeof(value_t));
    typedef typename Raw<V * sizeof(value_t)>::type raw_t;
#pragma unroll 4
    for (int i = lane; i < SEGMENT / V; i += 32) ((raw_t*)stage)[i] = raw_t{};
    __syncwarp();
#pragma unroll 4
    for (int t = lane; t < K; t += 32) {
        u32 c = (u32)__ldg(columns + row * K + t) - (u32)first;
        if (c < (u32)count) stage[c] = __ldg(values + row * K + t);
    }
    __syncwarp();
    raw_t* out = (raw_t*)(dense + row * WIDTH + first);
#pragma unroll 4
    for (int i = lane; i < count / V; i += 32) out[i] = ((raw_t*)stage)[i];
}
#endif
