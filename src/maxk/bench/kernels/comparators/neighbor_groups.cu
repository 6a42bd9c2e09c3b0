// Aggregation by neighbour groups, GNNAdvisor's scheme: every row is cut into groups of a fixed
// number of edges, one warp sums one group in registers and adds it to the output with atomics.
//
// y[t, c] += target_scale[t] * sum over the group's edges of source_scale[s] * x[s, c]
//
// Macro WIDTH: columns of a row. A lane owns PARTS of them, 32 apart, so that loads and atomics
// coalesce.

#define PARTS ((WIDTH + 31) / 32)

extern "C" __global__ void neighbor_groups(
    const int* __restrict__ group_row, const long long* __restrict__ group_start,
    const long long* __restrict__ indptr, const int* __restrict__ indices,
    const float* __restrict__ target_scale, const float* __restrict__ source_scale,
    const float* __restrict__ x, float* __restrict__ y, long long groups, int group_size) {
    const long long group =
        static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (group >= groups) return;
    const int lane = threadIdx.x % 32;
    const int row = group_row[group];
    const long long start = group_start[group];
    const long long row_end = indptr[row + 1];
    const long long end = start + group_size < row_end ? start + group_size : row_end;

    float sum[PARTS] = {};
    for (long long e = start; e < end; ++e) {
        const int s = __ldg(indices + e);
        const float scale = source_scale ? __ldg(source_scale + s) : 1.0f;
        const float* row_x = x + static_cast<long long>(s) * WIDTH;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const int c = p * 32 + lane;
            if (c < WIDTH) sum[p] += scale * __ldg(row_x + c);
        }
    }

    const float scale = target_scale ? target_scale[row] : 1.0f;
    float* row_y = y + static_cast<long long>(row) * WIDTH;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int c = p * 32 + lane;
        if (c < WIDTH) atomicAdd(row_y + c, scale * sum[p]);
    }
}
