// What a warp holds of scores: in lane l, rows l / 4 and l / 4 + 8 of each fragment, columns l % 4 * 2 and the next one of each 8.
typedef float Scores[TILES][STEP / 8][4];
template <int TALL, int LONG> static __device__ __forceinline__ void clear(float (&x)[TALL][LONG][4]) {
    EACH(t, TALL) {
        EACH(n, LONG) { x[t][n][0] = x[t][n][1] = x[t][n][2] = x[t][n][3] = 0.0f; }
    }
}
// How many keys some row of several sees; whether all of them see so many.
static __device__ __forceinline__ int most_seen(int first_row, int rows) { return max(keys_seen(first_row), keys_seen(first_row + rows - 1)); }
static __device__ __forceinline__ bool sees_all(int first_row, int rows, int keys) { return min(keys_seen(first_row), keys_seen(first_row + rows - 1)) >= keys; }
// What is subtracted from logits, in powers of 2; where all are -inf, their exponentials are 0.
static __device__ __forceinline__ float shift_of(float maximum) { return maximum == MINUS_INFINITY ? 0.0f : maximum * LOG2_E; }
// Whether marks of a matrix are set, as each thread sees some of them.
static __device__ __forceinline__ int finds(uint32_t const *marks, index_t matrix, int count) {
    int found = 0;
    for (int at = int(threadIdx.x); at < count; at += THREADS) { found |= int(marks[matrix * count + at]); }
    return found;
}
