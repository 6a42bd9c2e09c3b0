// What the memory system gives to the two access patterns of aggregation, without the arithmetic.
//
// Macro WORDS: 32-bit words of a row. Short rows share a warp: each gets LANES lanes.

#define LANES (WORDS > 16 ? 32 : WORDS > 8 ? 16 : WORDS > 4 ? 8 : WORDS > 2 ? 4 : WORDS)
#define TOGETHER (32 / LANES)

// One row an edge, gathered.
extern "C" __global__ void gather_rows(const int* __restrict__ indices,
                                       const unsigned* __restrict__ rows,
                                       unsigned* __restrict__ sink, long long edges,
                                       int edges_per_warp) {
    const long long warp =
        static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % LANES;
    const long long start = warp * edges_per_warp;
    const long long end = start + edges_per_warp < edges ? start + edges_per_warp : edges;
    unsigned mixed = 0;
#pragma unroll 8
    for (long long e = start + threadIdx.x % 32 / LANES; e < end; e += TOGETHER) {
        const unsigned* row = rows + static_cast<long long>(__ldg(indices + e)) * WORDS;
        for (int w = lane; w < WORDS; w += LANES) mixed ^= __ldg(row + w);
    }
    // Never true for random rows, but the compiler cannot know, so the loads stay.
    if (mixed == 0x5eed5eedu) sink[0] = mixed;
}

// One row of floats an edge, added into memory.
extern "C" __global__ void reduce_rows(const int* __restrict__ indices, float* __restrict__ rows,
                                       long long edges, int edges_per_warp) {
    const long long warp =
        static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % LANES;
    const long long start = warp * edges_per_warp;
    const long long end = start + edges_per_warp < edges ? start + edges_per_warp : edges;
    for (long long e = start + threadIdx.x % 32 / LANES; e < end; e += TOGETHER) {
        float* row = rows + static_cast<long long>(__ldg(indices + e)) * WORDS;
        for (int w = lane; w < WORDS; w += LANES) atomicAdd(row + w, 1.0f);
    }
}
