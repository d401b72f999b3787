// Sums of rows' weights times their gradients; then, from those, gradients of queries.
extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(ENTRY_PARAMETERS) {
    uint16_t *const queries = reinterpret_cast<uint16_t *>(shared);
    uint16_t *const gradients = queries + ROWS * DEPTH_PITCH;
    uint16_t *const keys = gradients + ROWS * WIDTH_PITCH;
    uint16_t *const values = keys + 2 * STEP * DEPTH_PITCH;
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int const blocks = (QUERIES + ROWS - 1) / ROWS;
    int const first_row = (blocks - 1 - int(blockIdx.x % blocks)) * ROWS;
    index_t const matrix = blockIdx.x / blocks;
    BATCH_POINT

    FILL(queries, copy_query, first_row, ROWS, DEPTH);
    FILL(gradients, copy_gradient, first_row, ROWS, WIDTH);
    FILL(keys, copy_key, 0, STEP, DEPTH);
    FILL(values, copy_value, 0, STEP, WIDTH);
    end_copies();

    int const warp_row = first_row + warp * 16 * TILES;
    bool const leaves_out = LIMITED && !IS_WILD;
    int const seen = leaves_out ? most_seen(first_row, ROWS) : KEYS;
    int const warp_seen = leaves_out ? most_seen(warp_row, 16 * TILES) : KEYS;
    int const steps = max((seen + STEP - 1) / STEP, 1);

    float sums[TILES][DEPTH / 8][4];
    float shift[TILES][2], inverse[TILES][2], total[TILES][2];
    clear(sums);
    EACH(t, TILES) {
        EACH(h, 2) {
            float maximum, sum;
            row(BUFFERS, maximum, sum BATCH, min(warp_row + t * 16 + h * 8 + lane / 4, QUERIES - 1));
            shift[t][h] = shift_of(maximum);
            inverse[t][h] = 1.0f / sum;
            total[t][h] = 0.0f;
        }
    }

    int step = 0, half = 0;
    bool has_totals = false;
    while (step < steps) {
        await_copies();
        __syncthreads();
        bool const is_last = step + 1 == steps;
        int const next = is_last && HAS_QUERY && !has_totals ? 0 : step + 1;
        if (next < steps) {
            FILL(keys + (1 - half) * STEP * DEPTH_PITCH, copy_key, next * STEP, STEP, DEPTH);
            FILL(values + (1 - half) * STEP * WIDTH_PITCH, copy_value, next * STEP, STEP, WIDTH);
        }
        end_copies();
        if (step * STEP < warp_seen) {
            Scores weights, products;
            bool const all_seen = sees_all(warp_row, 16 * TILES, step * STEP + STEP);
            multiply_rows<DEPTH>(weights, queries + warp * 16 * TILES * DEPTH_PITCH, keys + half * STEP * DEPTH_PITCH);
            multiply_rows<WIDTH>(products, gradients + warp * 16 * TILES * WIDTH_PITCH, values + half * STEP * WIDTH_PITCH);
            logits(weights, BUFFERS BATCH, warp_row, step * STEP, all_seen);
            AT_SCORES(gradient_of_weight, products, warp_row, step * STEP)
            EACH(t, TILES) {
                EACH(n, STEP / 8) {
                    EACH(part, 4) {
                        float const weight = power_of_2(fmaf(weights[t][n][part], LOG2_E, -shift[t][part / 2])) * inverse[t][part / 2];
                        if (has_totals) {
                            products[t][n][part] = weighed(weight, products[t][n][part] - total[t][part / 2]);
                        } else {
                            total[t][part / 2] = total[t][part / 2] + weighed(weight, products[t][n][part]);
                        }
                    }
                }
            }
            if (has_totals) {
                if (all_seen) {
                    AT_SCORES(gradient_of_score_seen, products, warp_row, step * STEP)
                } else {
                    AT_SCORES(gradient_of_score, products, warp_row, step * STEP)
                }
                fill_beyond(products, step * STEP, 0.0f);
                add_product<DEPTH>(sums, products, keys + half * STEP * DEPTH_PITCH);
            }
        }
        if (is_last && !has_totals) {
            EACH(t, TILES) {
                EACH(h, 2) {
                    int const own = warp_row + t * 16 + h * 8 + lane / 4;
                    total[t][h] = sum_of_row(total[t][h]);
                    if (lane % 4 == 0 && own < QUERIES) { totals[matrix * QUERIES + own] = total[t][h]; }
                }
            }
            has_totals = true;
        }
        step = next;
        half = 1 - half;
    }

#if HAS_QUERY
    EACH(t, TILES) {
        EACH(h, 2) {
            int const own = warp_row + t * 16 + h * 8 + lane / 4;
            EACH(n, DEPTH / 8) {
                int const column = n * 8 + lane % 4 * 2;
                if (own < QUERIES && column < QUERY_DEPTH) { epilogue(BUFFERS, sums[t][n][2 * h], sums[t][n][2 * h + 1] BATCH, own, column); }
            }
        }
    }
#endif
}
