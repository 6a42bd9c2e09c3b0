// Gradient of the edge weights of a dense aggregation: per edge row_scale * column_scale * <x of
// the source, gradient of the target>. One warp an edge at a time over a piece of a target row.
// Macros: VALUE, WIDTH (D), WARPS.
#include "numeric.cuh"
#include "piece.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    spmm_sddmm(const int4* __restrict__ pieces, i64 count, const int* __restrict__ indices,
               const value_t* __restrict__ x, const value_t* __restrict__ grad,
               const float* __restrict__ row_scale, const float* __restrict__ column_scale,
               float* __restrict__ out) {
    int lane = threadIdx.x & 31;
    i64 index = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (index >= count) return;
    Piece piece = read_piece(pieces, index);
    if (piece.row < 0) return;
    constexpr int V = vector_width(WIDTH, 4);
    const value_t* g = grad + (i64)piece.row * WIDTH;
    float scale = row_scale ? __ldg(row_scale + piece.row) : 1.f;
    for (int e = 0; e < piece.length; e++) {
        int source = __ldg(indices + piece.start + e);
        const value_t* h = x + (i64)source * WIDTH;
        float sum = 0.f;
#pragma unroll 4
        for (int c = lane * V; c < WIDTH; c += 32 * V) {
            value_t a[V], b[V];
            load_vector(g + c, a);
            load_vector(h + c, b);
#pragma unroll
            for (int i = 0; i < V; i++) sum = fmaf(to_float(a[i]), to_float(b[i]), sum);
        }
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(FULL, sum, d);
        if (lane == 0)
            out[piece.start + e] =
                sum * scale * (column_scale ? __ldg(column_scale + source) : 1.f);
    }
}
