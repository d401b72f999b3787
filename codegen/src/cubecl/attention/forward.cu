extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(ENTRY_PARAMETERS) {
    uint16_t *const queries = reinterpret_cast<uint16_t *>(shared);
    uint16_t *const keys = queries + ROWS * DEPTH_PITCH;
    uint16_t *const values = keys + 2 * STEP * DEPTH_PITCH;
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int const blocks = (QUERIES + ROWS - 1) / ROWS;
    // Under a limit, later rows most often see more: they come first.
    int const first_row = (blocks - 1 - int(blockIdx.x % blocks)) * ROWS;
    index_t const matrix = blockIdx.x / blocks;
    BATCH_POINT

    FILL(queries, copy_query, first_row, ROWS, DEPTH);
    FILL(keys, copy_key, 0, STEP, DEPTH);
    FILL(values, copy_value, 0, STEP, WIDTH);
    end_copies();

    int const warp_row = first_row + warp * 16 * TILES;
    bool const leaves_out = LIMITED && !IS_WILD;
    int const seen = leaves_out ? most_seen(first_row, ROWS) : KEYS;
    int const warp_seen = leaves_out ? most_seen(warp_row, 16 * TILES) : KEYS;
    int const steps = max((seen + STEP - 1) / STEP, 1);

    uint32_t query[TILES][KEPT ? DEPTH / 16 : 1][4];
    float sums[TILES][WIDTH / 8][4];
    // Exponentials are taken of what logits are above a bound, which follows the maximum once that is LAG above it.
    float maximum[TILES][2], bound[TILES][2], total[TILES][2];
    clear(sums);
    EACH(t, TILES) {
        maximum[t][0] = maximum[t][1] = bound[t][0] = bound[t][1] = MINUS_INFINITY;
        total[t][0] = total[t][1] = 0.0f;
    }
    uint16_t const *const own_queries = queries + warp * 16 * TILES * DEPTH_PITCH + left_place(lane, DEPTH_PITCH);

    int step = 0, half = 0;
    bool is_first = true, has_totals = false;
    while (step < steps) {
        await_copies();
        __syncthreads();
        bool const is_last = step + 1 == steps;
        int const next = is_last && !ONLINE && !has_totals ? 0 : step + 1;
        if (next < steps) {
            FILL(keys + (1 - half) * STEP * DEPTH_PITCH, copy_key, next * STEP, STEP, DEPTH);
            FILL(values + (1 - half) * STEP * WIDTH_PITCH, copy_value, next * STEP, STEP, WIDTH);
        }
        end_copies();
        if (KEPT && is_first) {
            EACH(t, TILES) {
                EACH(k, DEPTH / 16) { load4(query[t][KEPT ? k : 0], own_queries + t * 16 * DEPTH_PITCH + k * 16); }
            }
        }
        is_first = false;
        if (step * STEP < warp_seen) {
            Scores scores;
            clear(scores);
            uint16_t const *const own_keys = keys + half * STEP * DEPTH_PITCH + right_place(lane, DEPTH_PITCH);
            EACH(k, DEPTH / 16) {
                if (!KEPT) {
                    EACH(t, TILES) { load4(query[t][0], own_queries + t * 16 * DEPTH_PITCH + k * 16); }
                }
                EACH(n, STEP / 16) {
                    uint32_t key[4];
                    load4(key, own_keys + n * 16 * DEPTH_PITCH + k * 16);
                    EACH(t, TILES) {
                        multiply(scores[t][2 * n], query[t][KEPT ? k : 0], key[0], key[1]);
                        multiply(scores[t][2 * n + 1], query[t][KEPT ? k : 0], key[2], key[3]);
                    }
                }
            }
            logits(scores, BUFFERS BATCH, warp_row, step * STEP, sees_all(warp_row, 16 * TILES, step * STEP + STEP));

            if (!has_totals) {
                bool rises = false;
                EACH(t, TILES) {
                    EACH(h, 2) {
                        float largest = maximum[t][h];
                        EACH(n, STEP / 8) { largest = max_f32(largest, max_f32(scores[t][n][2 * h], scores[t][n][2 * h + 1])); }
                        maximum[t][h] = largest_of_row(largest);
                        rises = rises || maximum[t][h] - bound[t][h] > LAG;
                    }
                }
                if (__any_sync(0xffffffffu, rises)) {
                    EACH(t, TILES) {
                        EACH(h, 2) {
                            float const before = bound[t][h] == MINUS_INFINITY ? 0.0f : power_of_2((bound[t][h] - maximum[t][h]) * LOG2_E);
                            bound[t][h] = maximum[t][h];
                            total[t][h] = total[t][h] * before;
                            if (ONLINE) {
                                EACH(n, WIDTH / 8) {
                                    sums[t][n][2 * h] = sums[t][n][2 * h] * before;
                                    sums[t][n][2 * h + 1] = sums[t][n][2 * h + 1] * before;
                                }
                            }
                        }
                    }
                }
            }
            EACH(t, TILES) {
                EACH(h, 2) {
                    float const shift = shift_of(bound[t][h]);
                    EACH(n, STEP / 8) {
                        scores[t][n][2 * h] = power_of_2(fmaf(scores[t][n][2 * h], LOG2_E, -shift));
                        scores[t][n][2 * h + 1] = power_of_2(fmaf(scores[t][n][2 * h + 1], LOG2_E, -shift));
                    }
                    if (!has_totals) {
                        EACH(n, STEP / 8) { total[t][h] = total[t][h] + (scores[t][n][2 * h] + scores[t][n][2 * h + 1]); }
                    } else {
                        EACH(n, STEP / 8) {
                            scores[t][n][2 * h] = scores[t][n][2 * h] / total[t][h];
                            scores[t][n][2 * h + 1] = scores[t][n][2 * h + 1] / total[t][h];
                        }
                    }
                }
            }
            if (ONLINE || has_totals) {
                factors(scores, BUFFERS BATCH, warp_row, step * STEP);
                add_product<WIDTH>(sums, scores, values + half * STEP * WIDTH_PITCH);
            }
        }
        if (is_last && !has_totals) {
            EACH(t, TILES) {
                // A row that sees nothing is NaN, as subtracting an infinity from itself makes it.
                EACH(h, 2) { total[t][h] = maximum[t][h] == MINUS_INFINITY ? NOT_A_NUMBER : sum_of_row(total[t][h]); }
            }
            has_totals = true;
        }
        step = next;
        half = 1 - half;
    }

    EACH(t, TILES) {
        EACH(h, 2) {
            int const own = warp_row + t * 16 + h * 8 + lane / 4;
            if (own < QUERIES) {
                float sum = total[t][h] * power_of_2((bound[t][h] - maximum[t][h]) * LOG2_E);
                if (lane % 4 == 0) { row(BUFFERS, maximum[t][h], sum BATCH, own); }
                float const scale = ONLINE ? 1.0f / total[t][h] : 1.0f;
                EACH(n, WIDTH / 8) {
                    int const column = n * 8 + lane % 4 * 2;
                    float first = sums[t][n][2 * h] * scale, second = sums[t][n][2 * h + 1] * scale;
                    if (column < VALUE_WIDTH) { epilogue(BUFFERS, first, second BATCH, own, column); }
                }
            }
        }
    }
}
