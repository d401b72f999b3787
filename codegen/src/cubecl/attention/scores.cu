// Scores of a warp's fragments: rows of what it owns times rows of what it walks.
template <int EXTENT> static __device__ __forceinline__ void multiply_rows(Scores &x, uint16_t const *own, uint16_t const *walked) {
    int const lane = threadIdx.x % 32;
    own += left_place(lane, EXTENT + 8);
    walked += right_place(lane, EXTENT + 8);
    clear(x);
    EACH(k, EXTENT / 16) {
        uint32_t left[TILES][4];
        EACH(t, TILES) { load4(left[t], own + t * 16 * (EXTENT + 8) + k * 16); }
        EACH(n, STEP / 16) {
            uint32_t right[4];
            load4(right, walked + n * 16 * (EXTENT + 8) + k * 16);
            EACH(t, TILES) {
                multiply(x[t][2 * n], left[t], right[0], right[1]);
                multiply(x[t][2 * n + 1], left[t], right[2], right[3]);
            }
        }
    }
}
// Adds what is made of scores, rounded, times rows of what is walked.
template <int EXTENT> static __device__ __forceinline__ void add_product(float (&sums)[TILES][EXTENT / 8][4], Scores const &x, uint16_t const *walked) {
    walked += left_place(threadIdx.x % 32, EXTENT + 8);
    EACH(k, STEP / 16) {
        uint32_t left[TILES][4];
        EACH(t, TILES) {
            EACH(part, 4) { left[t][part] = PACKED(x[t][2 * k + part / 2][part % 2 * 2], x[t][2 * k + part / 2][part % 2 * 2 + 1]); }
        }
        EACH(n, EXTENT / 16) {
            uint32_t right[4];
            load4_turned(right, walked + k * 16 * (EXTENT + 8) + n * 16);
            EACH(t, TILES) {
                multiply(sums[t][2 * n], left[t], right[0], right[1]);
                multiply(sums[t][2 * n + 1], left[t], right[2], right[3]);
            }
        }
    }
}
// A block at each score of a warp, within the extents.
#define AT_SCORES(of, numbers, first_own, first_walked) \
    EACH(t, TILES) { \
        EACH(h, 2) { \
            int const own = min((first_own) + t * 16 + h * 8 + int(threadIdx.x % 32 / 4), OWN - 1); \
            EACH(n, STEP / 8) { \
                int const walked = min((first_walked) + n * 8 + int(threadIdx.x % 4 * 2), (WALKED - 1) / 2 * 2); \
                of(BUFFERS, numbers[t][n][2 * h], numbers[t][n][2 * h + 1] BATCH, POINT(own, walked)); \
            } \
        } \
    }
// A number beyond what is walked.
static __device__ __forceinline__ void fill_beyond(Scores &x, int first_walked, float number) {
    if (WALKED % STEP == 0 || first_walked + STEP <= WALKED) { return; }
    EACH(n, STEP / 8) {
        int const walked = first_walked + n * 8 + int(threadIdx.x % 4 * 2);
        EACH(t, TILES) {
            EACH(h, 2) {
                if (walked >= WALKED) { x[t][n][2 * h] = number; }
                if (walked + 1 >= WALKED) { x[t][n][2 * h + 1] = number; }
            }
        }
    }
}
// Logits, -inf beyond what is walked.
static __device__ __forceinline__ void logits(Scores &x, PARAMETERS BATCH_PARAMETERS, int first_own, int first_walked, bool all_seen) {
    if (all_seen) {
        AT_SCORES(logit_seen, x, first_own, first_walked)
    } else {
        AT_SCORES(logit, x, first_own, first_walked)
    }
    fill_beyond(x, first_walked, MINUS_INFINITY);
}
// Factors of weights, 0 beyond what is walked.
static __device__ __forceinline__ void factors(Scores &x, PARAMETERS BATCH_PARAMETERS, int first_own, int first_walked) {
    AT_SCORES(factor, x, first_own, first_walked)
    fill_beyond(x, first_walked, 0.0f);
}
