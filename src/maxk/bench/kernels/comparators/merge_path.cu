// Aggregation on a merge path: rows and edges together are one list of M + E items, cut into equal
// shares, one warp a share. Rows that lie inside one share are stored; rows that cross a border are
// added with atomics, so the output starts at zero.
//
// y[t, c] = target_scale[t] * sum over edges s -> t of source_scale[s] * x[s, c]
//
// Macro WIDTH: columns of a row. A lane owns PARTS of them, 32 apart.

#define PARTS ((WIDTH + 31) / 32)

// First row whose end does not lie before the diagonal: the merge of row ends and edge numbers.
__device__ __forceinline__ long long merge_row(const long long* __restrict__ indptr,
                                               long long diagonal, long long rows,
                                               long long edges) {
    long long low = diagonal > edges ? diagonal - edges : 0;
    long long high = diagonal < rows ? diagonal : rows;
    while (low < high) {
        const long long middle = (low + high) / 2;
        if (indptr[middle + 1] <= diagonal - middle - 1) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

extern "C" __global__ void merge_path(const long long* __restrict__ indptr,
                                      const int* __restrict__ indices,
                                      const float* __restrict__ target_scale,
                                      const float* __restrict__ source_scale,
                                      const float* __restrict__ x, float* __restrict__ y,
                                      long long rows, long long edges, int share) {
    const long long warp =
        static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    const long long first = warp * share;
    if (first >= rows + edges) return;
    const long long last = first + share < rows + edges ? first + share : rows + edges;
    const int lane = threadIdx.x % 32;

    long long row = merge_row(indptr, first, rows, edges);
    long long edge = first - row;
    const long long last_row = merge_row(indptr, last, rows, edges);
    const long long last_edge = last - last_row;

    for (; row <= last_row && row < rows; ++row) {
        const long long row_end = indptr[row + 1];
        const long long end = row < last_row ? row_end : last_edge;
        const bool whole = row < last_row && edge == indptr[row];

        float sum[PARTS] = {};
        const bool empty = edge == end;
        for (; edge < end; ++edge) {
            const int s = __ldg(indices + edge);
            const float scale = source_scale ? __ldg(source_scale + s) : 1.0f;
            const float* row_x = x + static_cast<long long>(s) * WIDTH;
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                const int c = p * 32 + lane;
                if (c < WIDTH) sum[p] += scale * __ldg(row_x + c);
            }
        }
        if (empty) continue;  // The output is zero there already.

        const float scale = target_scale ? target_scale[row] : 1.0f;
        float* row_y = y + row * WIDTH;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const int c = p * 32 + lane;
            if (c < WIDTH) {
                if (whole) {
                    row_y[c] = scale * sum[p];
                } else {
                    atomicAdd(row_y + c, scale * sum[p]);
                }
            }
        }
    }
}
