// LayerNorm and MaxK in one pass, and their gradient in one pass.
//
// Forward: one warp a row. The row is read once into registers; mean, variance, normalised keys and
// the choice of K never leave them, and only CBSR and two numbers a row are written.
// Backward: the K gradients of a row are laid out in shared memory; the row is read once, its
// gradient written once. A warp takes every (gridDim.x * WARPS)-th row, so that a lane sums the
// gradients of weight and bias for its columns in registers; a block writes its part of them, and
// the parts are added in a fixed order.
//
// Macros: VALUE, COLUMN_BYTES, WIDTH (D), K, WARPS (warps a block).
#include "numeric.cuh"
#include "select.cuh"

#define PER_LANE ((WIDTH + 31) / 32)

__device__ __forceinline__ float warp_add(float v) {
#pragma unroll
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(FULL, v, d);
    return v;
}

#ifdef FORWARD
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    norm_select(const value_t* __restrict__ x, i64 rows, const float* __restrict__ weight,
                const float* __restrict__ bias, float eps, value_t* __restrict__ values,
                column_t* __restrict__ columns, float* __restrict__ means,
                float* __restrict__ rstds) {
    __shared__ u16 stage_all[WARPS][(K + 1) / 2 * 2];
    int lane = threadIdx.x & 31, at = place(lane);
    u16* stage = stage_all[threadIdx.x >> 5];
    i64 row = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    const value_t* xr = x + row * WIDTH;
    float v[PER_LANE];
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        bool inside = i * 32 + 31 < WIDTH || i * 32 + at < WIDTH;
        v[i] = inside ? to_float(__ldg(xr + i * 32 + at)) : 0.f;
        sum += v[i];
    }
    float mean = warp_add(sum) * (1.f / WIDTH), squares = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        bool inside = i * 32 + 31 < WIDTH || i * 32 + at < WIDTH;
        float d = inside ? v[i] - mean : 0.f;
        squares += d * d;
    }
    float rstd = rsqrtf(warp_add(squares) * (1.f / WIDTH) + eps);
    u32 key[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int c = i * 32 + at;
        bool inside = i * 32 + 31 < WIDTH || c < WIDTH;
        key[i] = 0u;
        if (inside) {
            float n = fmaf((v[i] - mean) * rstd, __ldg(weight + c), __ldg(bias + c));
            key[i] = raw_key(to_float(from_float(n)));  // ranks as it is stored
        }
    }
    select_columns(key, stage, lane);
#pragma unroll 4
    for (int t = lane; t < K; t += 32) {
        int c = stage[t];
        float d = (to_float(__ldg(xr + c)) - mean) * rstd;
        values[row * K + t] = from_float(fmaf(d, __ldg(weight + c), __ldg(bias + c)));
        columns[row * K + t] = (column_t)c;
    }
    if (lane == 0) {
        means[row] = mean;
        rstds[row] = rstd;
    }
}
#endif

#ifdef BACKWARD
// With g the incoming gradient (0 where nothing is kept), n = d rstd the normalised row and
// t = g weight: dx = rstd (t - mean(t) - n mean(t n)), dweight = sum g n, dbias = sum g.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    norm_select_grad(const value_t* __restrict__ grad, const column_t* __restrict__ columns,
                     const value_t* __restrict__ x, const float* __restrict__ means,
                     const float* __restrict__ rstds, const float* __restrict__ weight, i64 rows,
                     value_t* __restrict__ dx, float* __restrict__ parts) {
    __shared__ float kept_all[WARPS][PER_LANE * 32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float* kept = kept_all[warp];
    float w[PER_LANE], dweight[PER_LANE], dbias[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int c = i * 32 + lane;
        w[i] = c < WIDTH ? __ldg(weight + c) : 0.f;
        dweight[i] = dbias[i] = kept[c] = 0.f;
    }
    __syncwarp();
    for (i64 row = (i64)blockIdx.x * WARPS + warp; row < rows; row += (i64)gridDim.x * WARPS) {
        const value_t* xr = x + row * WIDTH;
        float n[PER_LANE], t[PER_LANE];
        float mean = __ldg(means + row), rstd = __ldg(rstds + row);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            bool inside = i * 32 + 31 < WIDTH || i * 32 + lane < WIDTH;
            n[i] = inside ? (to_float(__ldg(xr + i * 32 + lane)) - mean) * rstd : 0.f;
        }
        for (int e = lane; e < K; e += 32)
            kept[__ldg(columns + row * K + e)] = to_float(__ldg(grad + row * K + e));
        __syncwarp();
        float sum = 0.f, product = 0.f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            float g = kept[i * 32 + lane];
            kept[i * 32 + lane] = 0.f;
            t[i] = g * w[i];
            sum += t[i];
            product += t[i] * n[i];
            dbias[i] += g;
            dweight[i] += g * n[i];
        }
        __syncwarp();
        sum = warp_add(sum) * (1.f / WIDTH);
        product = warp_add(product) * (1.f / WIDTH);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (i * 32 + 31 < WIDTH || i * 32 + lane < WIDTH)
                dx[row * WIDTH + i * 32 + lane] = from_float(rstd * (t[i] - sum - n[i] * product));
    }
#pragma unroll
    for (int which = 0; which < 2; which++) {
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) kept[i * 32 + lane] = which ? dbias[i] : dweight[i];
        __syncthreads();
        for (int c = threadIdx.x; c < WIDTH; c += WARPS * 32) {
            float total = 0.f;
#pragma unroll
            for (int i = 0; i < WARPS; i++) total += kept_all[i][c];
            parts[((i64)blockIdx.x * 2 + which) * WIDTH + c] = total;
        }
        __syncthreads();
    }
}
#endif
