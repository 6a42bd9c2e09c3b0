// Backward aggregation: the gradient of CBSR's values, g[s, t] = column_scale[s] * sum over edges e
// = (s -> i) of weight[e] * row_scale[i] * grad[i, column[s, t]], and the gradient of the edge
// weights.
//
// scatter: one warp a piece of a target row, the row's gradient in shared memory; each edge adds
// its k entries to the source's row in the L2 (16 bytes an instruction from sm_90 on). gather: one
// warp a piece of a source's edges, repeatable bit by bit.
//
// Macros: VALUE, COLUMN_BYTES, WIDTH (D), K, WARPS, UNROLL; VECTOR (entries a lane adds at once);
// STAGED (the row fits shared memory); WEIGHTED (edge weights); PANELS (rows of pieces are panel *
// M + target); MIN_BLOCKS (blocks a multiprocessor that registers leave room for); GROUPS (edges
// side by side, gather and sddmm).
#include "numeric.cuh"
#include "piece.cuh"

#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

#define ROW_WORDS ((WIDTH + 3) / 4 * 4)
extern __shared__ __align__(16) float shared_rows[];

// One target row's gradient: in shared memory as floats times row_scale, or where it lies.
struct Row {
    float* staged;
    const value_t* raw;
    float scale;
    u32 bits;  // 0 where all that this lane staged is 0
    __device__ __forceinline__ float operator[](u32 c) const {
#ifdef STAGED
        return staged[c];
#else
        return to_float(__ldg(raw + c)) * scale;
#endif
    }
};

__device__ __forceinline__ Row stage_row(const value_t* __restrict__ grad,
                                         const float* __restrict__ row_scale, int row) {
    Row r;
    r.raw = grad + (i64)row * WIDTH;
    r.scale = row_scale ? __ldg(row_scale + row) : 1.f;
    r.bits = 0;
    r.staged = shared_rows + (threadIdx.x >> 5) * ROW_WORDS;
#ifdef STAGED
    constexpr int V = vector_width(WIDTH, 4);
#pragma unroll 8
    for (int i = (threadIdx.x & 31) * V; i < WIDTH; i += 32 * V) {
        value_t v[V];
        load_vector(r.raw + i, v);
        float f[V];
#pragma unroll
        for (int c = 0; c < V; c++) {
            f[c] = to_float(v[c]) * r.scale;
            r.bits |= __float_as_uint(f[c]) << 1;  // without the sign
        }
        if constexpr (V == 4)
            *(float4*)(r.staged + i) = make_float4(f[0], f[1], f[2], f[3]);
        else {
#pragma unroll
            for (int c = 0; c < V; c++) r.staged[i + c] = f[c];
        }
    }
    __syncwarp();
#endif
    return r;
}

template <int V>
__device__ __forceinline__ void add_global(float* p, const float (&v)[V]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (V == 4) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]),
                     "f"(v[2]), "f"(v[3])
                     : "memory");
        return;
    } else if constexpr (V == 2) {
        asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v[0]), "f"(v[1])
                     : "memory");
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < V; i++)
        asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p + i), "f"(v[i]) : "memory");
}

#ifdef VECTOR
extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    sspmm_scatter(const int4* __restrict__ pieces, i64 count, const int* __restrict__ indices,
                  const value_t* __restrict__ grad, const column_t* __restrict__ columns,
                  const float* __restrict__ weight, const float* __restrict__ row_scale,
                  float* __restrict__ sums, int rows) {
    constexpr int EACH = K / VECTOR;
    int lane = threadIdx.x & 31;
    i64 index = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (index >= count) return;
    Piece piece = read_piece(pieces, index);
    if (piece.row < 0 || piece.length == 0) return;
#ifdef PANELS
    piece.row = (u32)piece.row % (u32)rows;
#endif
    const int* sources = indices + piece.start;
    int total =
        piece.length * EACH;  // at most 512 edges a piece: fits 31 bits while K is below 2^22
    u32 source[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int t = lane + u * 32;
        source[u] = t < total ? (u32)__ldg(sources + t / EACH) : 0u;
    }
    Row row = stage_row(grad, row_scale, piece.row);
#if defined(STAGED) && !defined(WEIGHTED)
    // Nothing to add: below the loss only the rows of training nodes hold a gradient.
    if (!__any_sync(FULL, row.bits)) return;
#endif
#pragma unroll 1
    for (int base = lane; base - lane < total; base += 32 * UNROLL) {
        u64 entry[UNROLL];
        float w[UNROLL];
        column_t c[UNROLL][VECTOR];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int t = base + u * 32;
            entry[u] = (u64)source[u] * K + (t % EACH) * VECTOR;
            if (t < total) load_vector(columns + entry[u], c[u]);
#ifdef WEIGHTED
            w[u] = t < total ? __ldg(weight + piece.start + t / EACH) : 0.f;
#else
            w[u] = 1.f;
#endif
        }
#pragma unroll
        for (int u = 0; u < UNROLL;
             u++) {  // the next round's edges are on their way while this round adds
            int t = base + (u + UNROLL) * 32;
            source[u] = t < total ? (u32)__ldg(sources + t / EACH) : 0u;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (base + u * 32 < total) {
                float v[VECTOR];
#pragma unroll
                for (int i = 0; i < VECTOR; i++) v[i] = row[c[u][i]] * w[u];
                add_global<VECTOR>(sums + entry[u], v);
            }
        }
    }
}
#endif

#ifdef FINISH
// Sums to the gradient's dtype, times column_scale where there is one.
extern "C" __global__ void __launch_bounds__(256)
    sspmm_finish(const float* __restrict__ sums, const float* __restrict__ column_scale, i64 rows,
                 value_t* __restrict__ out) {
    i64 total = rows * K, step = (i64)gridDim.x * blockDim.x;
#pragma unroll 4
    for (i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x; t < total; t += step)
        out[t] = from_float(__ldg(sums + t) * (column_scale ? __ldg(column_scale + t / K) : 1.f));
}
#endif

#ifdef GATHER
#define LANES (32 / GROUPS)
// Pieces are of the transpose's rows: one source, its targets. Entries are taken LANES at a time,
// GROUPS edges side by side.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    sspmm_gather(const int4* __restrict__ pieces, i64 count, const int* __restrict__ targets,
                 const i64* __restrict__ edges, const value_t* __restrict__ grad,
                 const column_t* __restrict__ columns, const float* __restrict__ weight,
                 const float* __restrict__ row_scale, const float* __restrict__ column_scale,
                 value_t* __restrict__ out, float* __restrict__ partial) {
    int lane = threadIdx.x & 31, group = lane / LANES, at = lane % LANES;
    i64 index = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (index >= count) return;
    Piece piece = read_piece(pieces, index);
    if (piece.row < 0) return;
    float scale = column_scale ? __ldg(column_scale + piece.row) : 1.f;
#pragma unroll 1
    for (int first = 0; first < K; first += LANES) {
        int t = first + at;
        u32 c = t < K ? (u32)__ldg(columns + (i64)piece.row * K + t) : 0u;
        float sum = 0.f;
#pragma unroll 4
        for (int e = group; e < piece.length; e += GROUPS) {
            int target = __ldg(targets + piece.start + e);
            float w = row_scale ? __ldg(row_scale + target) : 1.f;
#ifdef WEIGHTED
            w *= __ldg(weight + __ldg(edges + piece.start + e));
#endif
            sum = fmaf(w, to_float(__ldg(grad + (i64)target * WIDTH + c)), sum);
        }
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) sum += __shfl_xor_sync(FULL, sum, d);
        if (group == 0 && t < K) {
            if (piece.slot < 0)
                out[(i64)piece.row * K + t] = from_float(sum * scale);
            else
                partial[(i64)piece.slot * K + t] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    sspmm_fold(const int4* __restrict__ long_rows, int count, const float* __restrict__ partial,
               const float* __restrict__ column_scale, value_t* __restrict__ out) {
    fold_rows<K>(long_rows, count, partial, column_scale, out);
}
#endif

#ifdef SDDMM
#define LANES (32 / GROUPS)
// Per edge row_scale * column_scale * <values of the source, the target's gradient at their
// columns>.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    sspmm_sddmm(const int4* __restrict__ pieces, i64 count, const int* __restrict__ indices,
                const value_t* __restrict__ grad, const value_t* __restrict__ values,
                const column_t* __restrict__ columns, const float* __restrict__ row_scale,
                const float* __restrict__ column_scale, float* __restrict__ out) {
    int lane = threadIdx.x & 31, group = lane / LANES, at = lane % LANES;
    i64 index = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (index >= count) return;
    Piece piece = read_piece(pieces, index);
    if (piece.row < 0 || piece.length == 0) return;
    Row row = stage_row(grad, row_scale, piece.row);
#pragma unroll 2
    for (int base = 0; base < piece.length; base += GROUPS) {
        int e = base + group;
        int source = __ldg(indices + piece.start + min(e, piece.length - 1));
        float sum = 0.f;
#pragma unroll 4
        for (int t = at; t < K; t += LANES) {
            i64 p = (i64)source * K + t;
            sum = fmaf(to_float(__ldg(values + p)), row[__ldg(columns + p)], sum);
        }
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(FULL, sum, d);
        if (at == 0 && e < piece.length)
            out[piece.start + e] = column_scale ? sum * __ldg(column_scale + source) : sum;
    }
}
#endif

#ifdef PICK
// Entries of dense rows at the stored columns.
extern "C" __global__ void __launch_bounds__(256)
    sspmm_pick(const value_t* __restrict__ dense, const column_t* __restrict__ columns, i64 rows,
               value_t* __restrict__ out) {
    i64 total = rows * K, step = (i64)gridDim.x * blockDim.x;
#pragma unroll 4
    for (i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x; t < total; t += step)
        out[t] = __ldg(dense + t / K * WIDTH + __ldg(columns + t));
}
#endif
