// Gradients of keys and values. Scores stand here with keys as rows.
extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(ENTRY_PARAMETERS) {
    uint16_t *const keys = reinterpret_cast<uint16_t *>(shared);
    uint16_t *const values = keys + ROWS * DEPTH_PITCH;
    uint16_t *const queries = values + ROWS * WIDTH_PITCH;
    uint16_t *const gradients = queries + 2 * STEP * DEPTH_PITCH;
    // Shifts, inverse sums and totals of the rows that are walked.
    float *const statistics = reinterpret_cast<float *>(gradients + 2 * STEP * WIDTH_PITCH);
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int const blocks = (KEYS + ROWS - 1) / ROWS;
    int const steps = (QUERIES + STEP - 1) / STEP;
    // Under a limit, earlier keys most often are seen by more: they come first.
    int const first_key = int(blockIdx.x % blocks) * ROWS;
    index_t const matrix = blockIdx.x / blocks;
    BATCH_POINT
    int const warp_key = first_key + warp * 16 * TILES;
    bool const leaves_out = LIMITED && !IS_WILD;

    auto const next_seen = [&](int step) {
        while (leaves_out && step < steps && most_seen(step * STEP, STEP) <= first_key) { step++; }
        return step;
    };
    auto const fill = [&](int step, int half) {
        FILL(queries + half * STEP * DEPTH_PITCH, copy_query, step * STEP, STEP, DEPTH);
        FILL(gradients + half * STEP * WIDTH_PITCH, copy_gradient, step * STEP, STEP, WIDTH);
        for (int at = int(threadIdx.x); at < STEP; at += THREADS) {
            int const own = step * STEP + at;
            float maximum = 0.0f, sum = 1.0f, total = 0.0f;
            if (own < QUERIES) {
                row(BUFFERS, maximum, sum BATCH, own);
                if (HAS_KEY) { total = totals[matrix * QUERIES + own]; }
            }
            statistics[(half * 3 + 0) * STEP + at] = shift_of(maximum);
            statistics[(half * 3 + 1) * STEP + at] = 1.0f / sum;
            statistics[(half * 3 + 2) * STEP + at] = total;
        }
        end_copies();
    };

    float key_sums[HAS_KEY ? TILES : 1][HAS_KEY ? DEPTH / 8 : 1][4];
    float value_sums[HAS_VALUE ? TILES : 1][HAS_VALUE ? WIDTH / 8 : 1][4];
    clear(key_sums);
    clear(value_sums);
    FILL(keys, copy_key, first_key, ROWS, DEPTH);
    if (HAS_KEY) { FILL(values, copy_value, first_key, ROWS, WIDTH); }
    int step = next_seen(0), half = 0;
    if (step < steps) { fill(step, half); }
    end_copies();
    while (step < steps) {
        await_copies();
        __syncthreads();
        int const next = next_seen(step + 1);
        if (next < steps) { fill(next, 1 - half); }
        if (!leaves_out || most_seen(step * STEP, STEP) > warp_key) {
            Scores weights;
            bool const all_seen = sees_all(step * STEP, STEP, min(warp_key + 16 * TILES, KEYS));
            float const *const own = statistics + half * 3 * STEP;
            multiply_rows<DEPTH>(weights, keys + warp * 16 * TILES * DEPTH_PITCH, queries + half * STEP * DEPTH_PITCH);
            logits(weights, BUFFERS BATCH, warp_key, step * STEP, all_seen);
            EACH(n, STEP / 8) {
                EACH(t, TILES) {
                    EACH(part, 4) {
                        int const at = n * 8 + lane % 4 * 2 + part % 2;
                        weights[t][n][part] = power_of_2(fmaf(weights[t][n][part], LOG2_E, -own[at])) * own[STEP + at];
                    }
                }
            }
#if HAS_KEY
            Scores products;
            multiply_rows<WIDTH>(products, values + warp * 16 * TILES * WIDTH_PITCH, gradients + half * STEP * WIDTH_PITCH);
            AT_SCORES(gradient_of_weight, products, warp_key, step * STEP)
            EACH(n, STEP / 8) {
                EACH(t, TILES) {
                    EACH(part, 4) {
                        int const at = n * 8 + lane % 4 * 2 + part % 2;
                        products[t][n][part] = weighed(weights[t][n][part], products[t][n][part] - own[2 * STEP + at]);
                    }
                }
            }
            if (all_seen) {
                AT_SCORES(gradient_of_score_seen, products, warp_key, step * STEP)
            } else {
                AT_SCORES(gradient_of_score, products, warp_key, step * STEP)
            }
            fill_beyond(products, step * STEP, 0.0f);
            add_product<DEPTH>(key_sums, products, queries + half * STEP * DEPTH_PITCH);
#endif
#if HAS_VALUE
            factors(weights, BUFFERS BATCH, warp_key, step * STEP);
            add_product<WIDTH>(value_sums, weights, gradients + half * STEP * WIDTH_PITCH);
#endif
        }
        step = next;
        half = 1 - half;
    }

    EACH(t, TILES) {
        EACH(h, 2) {
            int const own = warp_key + t * 16 + h * 8 + lane / 4;
            if (own < KEYS) {
#if HAS_KEY
                EACH(n, DEPTH / 8) {
                    int const column = n * 8 + lane % 4 * 2;
                    if (column < QUERY_DEPTH) { key_epilogue(BUFFERS, key_sums[t][n][2 * h], key_sums[t][n][2 * h + 1] BATCH, own, column); }
                }
#endif
#if HAS_VALUE
                EACH(n, WIDTH / 8) {
                    int const column = n * 8 + lane % 4 * 2;
                    if (column < VALUE_WIDTH) { value_epilogue(BUFFERS, value_sums[t][n][2 * h], value_sums[t][n][2 * h + 1] BATCH, own, column); }
                }
#endif
            }
        }
    }
}
