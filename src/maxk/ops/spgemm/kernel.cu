// Forward aggregation: y[i] = row_scale[i] * sum over edges e of row i of weight[e] *
// column_scale[s] * h[s], h[s] stored as CBSR.
//
// One warp a piece of a row's edges, with the row's accumulators in shared memory at address column
// * COPIES + copy: the copies and the entries' order by column modulo 8 spread a step's additions
// over the banks. Whole rows are stored; pieces of long rows go to a workspace which spgemm_fold
// adds in order: the result is repeatable bit by bit.
//
// Macros: VALUE, COLUMN_BYTES, WIDTH (D), K, COPIES, WARPS, UNROLL (loads in flight a lane),
// MIN_BLOCKS (blocks a multiprocessor that registers leave room for), PIECES (pieces a warp takes
// one after the other); WEIGHTED (edge weights or column scales, floats only); SEGMENT (columns a
// warp accumulates; below WIDTH, blockIdx.y names the segment, floats only); COLUMN_BITS, LIMIT
// (fixed point: bits of a word that hold the column, largest integer value); SCALED (range, pack).
#include "numeric.cuh"
#include "piece.cuh"

#ifndef PIECES
#define PIECES 1
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
// From sm_100 on the compiler spills where sm_80 and sm_90 do with 48 registers.
#if __CUDA_ARCH__ >= 1000 && MIN_BLOCKS > 16
#undef MIN_BLOCKS
#define MIN_BLOCKS 16
#endif

#ifdef LIMIT
// Fixed-point words: value << COLUMN_BITS | column, value = round(v * LIMIT / max|v|). A piece's
// edges times LIMIT stay inside 31 bits. Rows of words are padded to a multiple of four; padding is
// never added.
#define STRIDE ((K + 3) / 4)  // 16-byte vectors a row
#define OUTLIER \
    128.f  // max|v| above this many times mean|v|: words would hold typical values to less
           // than 1.5e-5
struct Header {
    int use_floats;
    float unit;  // what one step of the integer value stands for
};

__device__ __forceinline__ float scaled(float v, const float* __restrict__ column_scale, i64 row) {
#ifdef SCALED
    return v * __ldg(column_scale + row);
#else
    return v;
#endif
}

template <class T, class F>
__device__ __forceinline__ T block_reduce(T v, T* stage, F combine) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v = combine(v, __shfl_xor_sync(FULL, v, d));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) stage[threadIdx.x >> 5] = v;
    __syncthreads();
    v = stage[threadIdx.x & (blockDim.x / 32 - 1)];
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        if (d < blockDim.x / 32) v = combine(v, __shfl_xor_sync(FULL, v, d));
    return v;
}

#ifdef RANGE
// Each block's max|v| (as bits: NaN lies above inf) and sum|v|.
extern "C" __global__ void __launch_bounds__(512)
    spgemm_range(const value_t* __restrict__ values, const float* __restrict__ column_scale,
                 i64 rows, uint2* __restrict__ parts) {
    constexpr int V = vector_width(K, 16 / sizeof(value_t)), EACH = K / V;
    __shared__ u32 stage[32];
    u32 largest = 0;
    float sum = 0.f;
    i64 count = rows * EACH, step = (i64)gridDim.x * blockDim.x;
#pragma unroll 4
    for (i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x; t < count; t += step) {
        value_t v[V];
        load_vector(values + t * V, v);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float f = fabsf(scaled(to_float(v[i]), column_scale, t / EACH));
            largest = max(largest, __float_as_uint(f));
            sum += f;
        }
    }
    largest = block_reduce(largest, stage, [](u32 a, u32 b) { return max(a, b); });
    sum = block_reduce(sum, (float*)stage, [](float a, float b) { return a + b; });
    if (threadIdx.x == 0) parts[blockIdx.x] = make_uint2(largest, __float_as_uint(sum));
}

// Words of all rows, unless the parts tell of inf, NaN or a dominating outlier. `count` parts, at
// most one a thread.
extern "C" __global__ void __launch_bounds__(256)
    spgemm_pack(const value_t* __restrict__ values, const column_t* __restrict__ columns,
                const float* __restrict__ column_scale, i64 rows, const uint2* __restrict__ parts,
                int count, Header* __restrict__ header, uint4* __restrict__ words) {
    __shared__ u32 stage[32];
    uint2 part = threadIdx.x < count ? __ldg(parts + threadIdx.x) : make_uint2(0, 0);
    u32 bits = block_reduce(part.x, stage, [](u32 a, u32 b) { return max(a, b); });
    float sum = block_reduce(__uint_as_float(part.y), (float*)stage,
                             [](float a, float b) { return a + b; });
    float largest = __uint_as_float(bits), mean = sum / ((float)rows * K);
    bool none = bits == 0;
    bool use_floats = !none && !(largest > 1e-30f && largest < 1e30f && largest <= OUTLIER * mean);
    float scale = none ? 0.f : (float)LIMIT / largest;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        header->use_floats = use_floats;
        header->unit = none ? 0.f : largest / (float)LIMIT;
    }
    if (use_floats) return;
    i64 total = rows * STRIDE, step = (i64)gridDim.x * blockDim.x;
#pragma unroll 2
    for (i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x; t < total; t += step) {
        i64 row = t / STRIDE;
        int first = (int)(t - row * STRIDE) * 4;
        u32 w[4];
        value_t v[4] = {};
        column_t c[4] = {};
        if constexpr (K % 4 == 0) {
            load_vector(values + t * 4, v);
            load_vector(columns + t * 4, c);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (first + i < K) {
                    v[i] = __ldg(values + row * K + first + i);
                    c[i] = __ldg(columns + row * K + first + i);
                }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = (u32)max(min(__float2int_rn(scaled(to_float(v[i]), column_scale, row) * scale),
                                LIMIT),
                            -LIMIT)
                       << COLUMN_BITS |
                   (u32)c[i];
        if constexpr (K % 4 == 0 && K < 32) {
            // Several edges share a step of the sum: turned by its own amount, a row does not meet
            // the others' residues.
            u32 turn = (u32)row * 0x9e3779b1u >> 16;
            u32 shift = turn & 3, vector = ((u32)(t - row * STRIDE) + (turn >> 2)) % STRIDE;
#pragma unroll
            for (int s = 1; s <= 2; s *= 2)
                if (shift & s) {
                    u32 a = w[0], b = w[1];
                    if (s == 1)
                        w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = a;
                    else
                        w[0] = w[2], w[1] = w[3], w[2] = a, w[3] = b;
                }
            words[row * STRIDE + vector] = make_uint4(w[0], w[1], w[2], w[3]);
        } else {
            words[t] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}
#endif
#endif

#ifdef COPIES
#ifdef WEIGHTED
#define IS_WEIGHTED 1
#else
#define IS_WEIGHTED 0
#endif

struct Entries {
    const value_t* values;
    const column_t* columns;
    const float* weight;        // may be null
    const float* column_scale;  // may be null
};

// Adds the piece's edges with GROUPS edges side by side, each in its own copy of the accumulators:
// columns of one edge differ, so a plain read, add, write cannot collide. LOADS entries a lane are
// in flight.
template <int GROUPS, int LOADS>
__device__ __forceinline__ void add_floats(const Piece& piece, const int* __restrict__ indices,
                                           const Entries& in, int first_column, float* sums) {
    constexpr int LANES = 32 / GROUPS, PER = (K + LANES - 1) / LANES;
    constexpr bool EXACT =
        PER * LANES == K && PER <= 8;  // every lane has PER neighbouring entries, read as vectors
    constexpr int V = EXACT ? vector_width(PER, 4) : 1;
    constexpr int BLOCK = PER < 8 ? PER : 8, EDGES = BLOCK >= LOADS ? 1 : LOADS / BLOCK;
    int lane = threadIdx.x & 31, group = lane / LANES, at = lane % LANES;
    const int* sources = indices + piece.start;
    float* mine = sums + group;
#pragma unroll 1
    for (int base = 0; base < piece.length; base += EDGES * GROUPS) {
        int source[EDGES];
        float weight[EDGES];
#pragma unroll
        for (int u = 0; u < EDGES; u++) {
            int e = base + u * GROUPS + group;
            source[u] = e < piece.length ? __ldg(sources + e) : -1;
        }
#pragma unroll
        for (int u = 0; u < EDGES; u++) {
            weight[u] = 1.f;
            if (IS_WEIGHTED && source[u] >= 0) {
                if (in.weight)
                    weight[u] = __ldg(in.weight + piece.start + base + u * GROUPS + group);
                if (in.column_scale) weight[u] *= __ldg(in.column_scale + source[u]);
            }
        }
#pragma unroll 1
        for (int block = 0; block < PER; block += BLOCK) {
            value_t v[EDGES][BLOCK];
            column_t c[EDGES][BLOCK];
#pragma unroll
            for (int u = 0; u < EDGES; u++) {
                i64 row = (i64)source[u] * K;
                if constexpr (EXACT) {
                    if (source[u] >= 0) {
#pragma unroll
                        for (int r = 0; r < BLOCK; r += V) {
                            load_vector(in.values + row + at * PER + r, *(value_t(*)[V]) & v[u][r]);
                            load_vector(in.columns + row + at * PER + r,
                                        *(column_t(*)[V]) & c[u][r]);
                        }
                    }
                } else {
#pragma unroll
                    for (int r = 0; r < BLOCK; r++) {
                        int t = (block + r) * LANES + at;
                        if (source[u] >= 0 && t < K) {
                            v[u][r] = __ldg(in.values + row + t);
                            c[u][r] = __ldg(in.columns + row + t);
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < EDGES; u++) {
                float old[BLOCK];
                bool use[BLOCK];
                float* where[BLOCK];
#pragma unroll
                for (int r = 0; r < BLOCK; r++) {
                    u32 column = (u32)c[u][r] - (u32)first_column;
                    use[r] = source[u] >= 0 && (EXACT || (block + r) * LANES + at < K) &&
                             (SEGMENT >= WIDTH || column < SEGMENT);
                    where[r] = mine + column * COPIES;
                    if (use[r]) old[r] = *where[r];
                }
#pragma unroll
                for (int r = 0; r < BLOCK; r++)
                    if (use[r])
                        *where[r] = IS_WEIGHTED ? fmaf(weight[u], to_float(v[u][r]), old[r])
                                                : old[r] + to_float(v[u][r]);
                __syncwarp();
            }
        }
    }
}

template <class T>
__device__ __forceinline__ T sum_copies(const T* sums, int column) {
    T s = 0;
    if constexpr (COPIES % 4 == 0) {
#pragma unroll
        for (int h = 0; h < COPIES; h += 4) {
            union {
                uint4 raw;
                T item[4];
            } u;
            u.raw = ((const uint4*)sums)[column * (COPIES / 4) + h / 4];
            s += (u.item[0] + u.item[1]) + (u.item[2] + u.item[3]);
        }
    } else {
#pragma unroll
        for (int h = 0; h < COPIES; h++) s += sums[column * COPIES + h];
    }
    return s;
}

#define WORDS ((SEGMENT * COPIES + 3) / 4 * 4)

__device__ __forceinline__ u32* clear_sums(u32* shared) {
    u32* sums = shared + (threadIdx.x >> 5) * WORDS;
#pragma unroll 8
    for (int i = threadIdx.x & 31; i < WORDS / 4; i += 32)
        ((uint4*)sums)[i] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    return sums;
}

struct Output {
    const float* row_scale;  // may be null
    value_t* y;
    float* partial;
};

// Results are not read again here: they need not push the features out of the L2.
__device__ __forceinline__ void store_once(value_t* p, value_t v) { __stcs(p, v); }

template <class T>
__device__ __forceinline__ void write_row(const Piece& piece, const T* sums, float unit,
                                          int first_column, const Output& out) {
    __syncwarp();
    int lane = threadIdx.x & 31, count = min(SEGMENT, WIDTH - first_column);
    if (piece.slot < 0) {
        float s = unit * (out.row_scale ? __ldg(out.row_scale + piece.row) : 1.f);
        value_t* y = out.y + (i64)piece.row * WIDTH + first_column;
#pragma unroll 8
        for (int c = lane; c < count; c += 32)
            store_once(y + c, from_float((float)sum_copies(sums, c) * s));
    } else {
        float* p = out.partial + (i64)piece.slot * WIDTH + first_column;
#pragma unroll 8
        for (int c = lane; c < count; c += 32) p[c] = (float)sum_copies(sums, c) * unit;
    }
}

extern __shared__ __align__(16) u32 shared_sums[];

#ifdef LIMIT
// Adds LOADS vectors a lane, from vector t on in steps of 32. Integer additions to shared memory
// need no read back, and their order does not matter.
template <int LOADS, bool WHOLE>
__device__ __forceinline__ void add_words(u32 t, u32 total, const int* __restrict__ sources,
                                          const uint4* __restrict__ words, int* sums) {
    u32 source[LOADS];
    uint4 w[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; u++)
        source[u] = WHOLE || t + u * 32 < total ? (u32)__ldg(sources + (t + u * 32) / STRIDE) : 0u;
#pragma unroll
    for (int u = 0; u < LOADS; u++)
        if (WHOLE || t + u * 32 < total)
            w[u] = __ldg(words + (u64)source[u] * STRIDE + (t + u * 32) % STRIDE);
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
        if (WHOLE || t + u * 32 < total) {
            u32 word[4] = {w[u].x, w[u].y, w[u].z, w[u].w};
#pragma unroll
            for (int r = 0; r < 4; r++)
                if (K % 4 == 0 || (t + u * 32) % STRIDE * 4 + r < K)
                    atomicAdd(sums + (word[r] & ((1u << COLUMN_BITS) - 1u)) * COPIES,
                              (int)word[r] >> COLUMN_BITS);
        }
    }
}

// Rare, and kept apart so that it takes no registers of the usual way.
__device__ __noinline__ void instead_of_words(Piece piece, const int* indices, Entries in,
                                              float* sums, Output out) {
    add_floats<1, 4>(piece, indices, in, 0, sums);
    write_row(piece, sums, 1.f, 0, out);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    spgemm_fixed(const int4* __restrict__ pieces, i64 count, const int* __restrict__ indices,
                 const uint4* __restrict__ words, const Header* __restrict__ header,
                 const value_t* __restrict__ values, const column_t* __restrict__ columns,
                 const float* __restrict__ column_scale, const float* __restrict__ row_scale,
                 value_t* __restrict__ y, float* __restrict__ partial, i64 edges) {
    i64 first = ((i64)blockIdx.x * WARPS + (threadIdx.x >> 5)) * PIECES;
    int lane = threadIdx.x & 31;
    Output out = {row_scale, y, partial};
#pragma unroll 1
    for (int q = 0; q < PIECES && first + q < count; q++) {
        Piece piece = read_piece(pieces, first + q);
        if (piece.row < 0) return;
        const int* sources = indices + piece.start;
        if (PIECES > 1 && q + 1 < PIECES && lane < 2 &&
            piece.start + piece.length + lane * 32 < edges)
            prefetch(sources + piece.length + lane * 32);  // the next piece's edges follow
        u32* sums = clear_sums(shared_sums);
        if (__ldg(&header->use_floats)) {
            instead_of_words(piece, indices, {values, columns, nullptr, column_scale}, (float*)sums,
                             out);
        } else {
            int total = piece.length * STRIDE;
            // Entries are sorted by column modulo 8. An edge's lanes of equal residue take
            // different copies, and so do a step's edges.
            constexpr int SPREAD = STRIDE >= 8 && 32 % STRIDE == 0 ? COPIES * STRIDE / 32 : 0;
            int copy = SPREAD > 1    ? lane / STRIDE * SPREAD + lane % SPREAD
                       : SPREAD == 1 ? lane / STRIDE
                                     : lane / (32 / COPIES);
            int* mine = (int*)sums + copy % COPIES;
            int base = 0;
#pragma unroll 1
            for (; base + 32 * UNROLL <= total; base += 32 * UNROLL)
                add_words<UNROLL, true>(base + lane, total, sources, words, mine);
            if (base < total) add_words<UNROLL, false>(base + lane, total, sources, words, mine);
            write_row(piece, (const int*)sums, __ldg(&header->unit), 0, out);
        }
        if (PIECES > 1) __syncwarp();
    }
}
#else
extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    spgemm_float(const int4* __restrict__ pieces, i64 count, const int* __restrict__ indices,
                 const value_t* __restrict__ values, const column_t* __restrict__ columns,
                 const float* __restrict__ weight, const float* __restrict__ column_scale,
                 const float* __restrict__ row_scale, value_t* __restrict__ y,
                 float* __restrict__ partial) {
    i64 index = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (index >= count) return;
    Piece piece = read_piece(pieces, index);
    if (piece.row < 0) return;
    int first_column = blockIdx.y * SEGMENT;
    Entries in = {values, columns, weight, column_scale};
    Output out = {row_scale, y, partial};
    float* sums = (float*)clear_sums(shared_sums);
    add_floats<COPIES, UNROLL>(piece, indices, in, first_column, sums);
    write_row(piece, sums, 1.f, first_column, out);
}
#endif
#endif

#ifdef FOLD
extern "C" __global__ void __launch_bounds__(256)
    spgemm_fold(const int4* __restrict__ long_rows, int count, const float* __restrict__ partial,
                const float* __restrict__ row_scale, value_t* __restrict__ y) {
    fold_rows<WIDTH>(long_rows, count, partial, row_scale, y);
}
#endif
