extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(ENTRY_PARAMETERS) {
    uint16_t *const tile = reinterpret_cast<uint16_t *>(shared);
    int const steps = (MARKED_ROWS + MARKED - 1) / MARKED;
    int const step = blockIdx.x % steps;
    index_t const matrix = blockIdx.x / steps;
    BATCH_POINT
    FILL(tile, copy_marked, step * MARKED, MARKED, MARKED_COLUMNS);
    end_copies();
    await_copies();
    __syncthreads();
    int wild = 0;
    for (int at = int(threadIdx.x); at < MARKED * MARKED_COLUMNS / 2; at += THREADS) {
        int const place = at / (MARKED_COLUMNS / 2) * (MARKED_COLUMNS + 8) / 2 + at % (MARKED_COLUMNS / 2);
        uint32_t const pair = reinterpret_cast<uint32_t const *>(tile)[place];
        wild |= int((pair & 0x7fffu) >= WILD || (pair >> 16 & 0x7fffu) >= WILD);
    }
    int const any = __syncthreads_or(wild);
    if (threadIdx.x == 0) { marks[matrix * steps + step] = any ? 1u : 0u; }
}
