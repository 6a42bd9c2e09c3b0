// One piece of a row's edges, as graph/schedule.py packs it into four 32-bit words:
// row (negative: unused), start's low 31 bits, start's high bits << 16 | length, slot of the
// partial sum (negative: a whole row).
#pragma once
struct Piece {
    int row, length, slot;
    i64 start;
};

__device__ __forceinline__ Piece read_piece(const int4* __restrict__ pieces, i64 index) {
    int4 q = __ldg(pieces + index);
    Piece p;
    p.row = q.x;
    p.start = ((i64)(q.z >> 16) << 31) | (i64)q.y;
    p.length = q.z & 0xffff;
    p.slot = q.w;
    return p;
}

// Asks for the line of p ahead of time.
__device__ __forceinline__ void prefetch(const void* p) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

// Adds the long rows' partial sums in the order of their edges and writes the scaled rows, one
// block a row at a time. The list has room for more rows than are long; those come first.
template <int COLUMNS>
__device__ __forceinline__ void fold_rows(const int4* __restrict__ long_rows, int count,
                                          const float* __restrict__ partial,
                                          const float* __restrict__ scale,
                                          value_t* __restrict__ out) {
#pragma unroll 1
    for (int at = blockIdx.x; at < count; at += gridDim.x) {
        int4 q = __ldg(long_rows + at);
        if (q.x < 0) return;
        float s = scale ? __ldg(scale + q.x) : 1.f;
        for (int c = threadIdx.x; c < COLUMNS; c += blockDim.x) {
            const float* p = partial + (i64)q.y * COLUMNS + c;
            float sum = 0.f;
#pragma unroll 4
            for (int i = 0; i < q.z; i++) sum += __ldg(p + (i64)i * COLUMNS);
            out[(i64)q.x * COLUMNS + c] = from_float(sum * s);
        }
    }
}
