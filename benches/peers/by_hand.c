/* The memory-bound CPU workloads of benches/peers/kiln.rs as loops written by hand for this very machine: what a compiler could reach at best.
 * A workload's name per line in, one JSON line out, as the peers do.
 *
 *     cc -O3 -march=native -ffast-math -pthread benches/peers/by_hand.c -o by_hand
 *
 * One thread for each core that this process may use; they spin between calls, so that a call starts at once. Memory is touched beforehand, on large
 * pages; results of maps and rows are written past the caches. Formulas are rearranged as suits the machine (one division for the whole gelu
 * chain), with an exponential good to about two units in the last place. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SIDE 4096L
#define TILE 512

static int threads;
static float *x, *a, *b, *y;

static inline float exponential(float v)
{
    v = v < -87.0f ? -87.0f : v > 88.0f ? 88.0f : v;
    float n = rintf(v * 1.44269504088896341f);
    float r = v - n * 0.693145751953125f - n * 1.42860682030941723e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } scale = { .i = ((int32_t)n + 127) << 23 };
    return p * scale.f;
}

/* Writes a tile that lies in the cache to memory. */
static void stream(float *to, const float *from, long count)
{
    for (long i = 0; i < count; i += 8)
        _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
}

static void gelu_part(long first, long last, int past)
{
    float tile[TILE] __attribute__((aligned(64)));
    for (long at = first; at < last; at += TILE) {
        float *to = past ? tile : y + at;
        const float *px = x + at, *pa = a + at, *pb = b + at;
        for (long i = 0; i < TILE; i++) {
            float v = pa[i] * px[i] + pb[i];
            float e = exponential(1.59576912160573f * (v + 0.044715f * v * v * v));
            float s = exponential(-pb[i]);
            to[i] = v * e / ((e + 1.0f) * (1.0f + s));
        }
        if (past)
            stream(y + at, tile, TILE);
    }
}

static void polynomial_part(long first, long last)
{
    for (long i = first; i < last; i += 8) {
        __m256 vx = _mm256_loadu_ps(x + i), va = _mm256_loadu_ps(a + i), vb = _mm256_loadu_ps(b + i);
        __m256 r = _mm256_add_ps(_mm256_mul_ps(vx, va), vb);
        r = _mm256_add_ps(_mm256_mul_ps(r, vx), va);
        r = _mm256_add_ps(_mm256_mul_ps(r, vx), vb);
        _mm256_stream_ps(y + i, r);
    }
}

static void softmax_part(long first, long last)
{
    float row[SIDE] __attribute__((aligned(64)));
    for (long r = first; r < last; r++) {
        const float *px = x + r * SIDE;
        float most = -INFINITY, sum = 0.0f;
        for (long i = 0; i < SIDE; i++)
            most = px[i] > most ? px[i] : most;
        for (long i = 0; i < SIDE; i++) {
            row[i] = exponential(px[i] - most);
            sum += row[i];
        }
        float scale = 1.0f / sum;
        __m256 s = _mm256_set1_ps(scale);
        for (long i = 0; i < SIDE; i += 8)
            _mm256_stream_ps(y + r * SIDE + i, _mm256_mul_ps(_mm256_load_ps(row + i), s));
    }
}

static void norm_part(long first, long last)
{
    for (long r = first; r < last; r++) {
        const float *px = x + r * SIDE;
        float sum = 0.0f, square = 0.0f;
        for (long i = 0; i < SIDE; i++)
            sum += px[i];
        float mean = sum / SIDE;
        for (long i = 0; i < SIDE; i++)
            square += (px[i] - mean) * (px[i] - mean);
        float scale = 1.0f / sqrtf(square / SIDE + 1e-5f);
        __m256 m = _mm256_set1_ps(mean), s = _mm256_set1_ps(scale);
        for (long i = 0; i < SIDE; i += 8) {
            __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(px + i), m), s);
            v = _mm256_add_ps(_mm256_mul_ps(v, _mm256_loadu_ps(a + i)), _mm256_loadu_ps(b + i));
            _mm256_stream_ps(y + r * SIDE + i, v);
        }
    }
}

static void rows_part(long first, long last)
{
    for (long r = first; r < last; r++) {
        float sum = 0.0f;
        for (long i = 0; i < SIDE; i++)
            sum += x[r * SIDE + i];
        y[r] = sum;
    }
}

/* The threads' sums are not added up: that is one row for each. */
static void columns_part(long first, long last, int thread)
{
    float sums[SIDE] __attribute__((aligned(64)));
    memset(sums, 0, sizeof sums);
    for (long r = first; r < last; r++)
        for (long i = 0; i < SIDE; i++)
            sums[i] += x[r * SIDE + i];
    memcpy(y + thread * SIDE, sums, sizeof sums);
}

static void transpose_part(long first, long last)
{
    float block[16][16] __attribute__((aligned(64)));
    for (long r = first; r < last; r += 16)
        for (long c = 0; c < SIDE; c += 16) {
            for (int i = 0; i < 16; i++)
                for (int j = 0; j < 16; j++)
                    block[j][i] = x[(c + i) * SIDE + r + j];
            for (int j = 0; j < 16; j++)
                for (int i = 0; i < 16; i += 8)
                    _mm256_stream_ps(y + (r + j) * SIDE + c + i,
                                     _mm256_add_ps(_mm256_load_ps(&block[j][i]), _mm256_set1_ps(1.0f)));
        }
}

static void part(const char *name, int thread)
{
    long large = 1L << 24, small = 1L << 16, of = threads;
#define SHARE(count, grain) (count) / (grain) * thread / of * (grain), (count) / (grain) * (thread + 1) / of * (grain)
    if (!strcmp(name, "gelu chain 2^24")) gelu_part(SHARE(large, TILE), 1);
    else if (!strcmp(name, "gelu chain 2^16")) gelu_part(SHARE(small, TILE), 0);
    else if (!strcmp(name, "polynomial 2^24")) polynomial_part(SHARE(large, TILE));
    else if (!strcmp(name, "softmax")) softmax_part(SHARE(SIDE, 1));
    else if (!strcmp(name, "layer norm")) norm_part(SHARE(SIDE, 1));
    else if (!strcmp(name, "sum rows") || !strcmp(name, "sum all")) rows_part(SHARE(SIDE, 1));
    else if (!strcmp(name, "sum columns")) columns_part(SHARE(SIDE, 1), thread);
    else if (!strcmp(name, "transpose + 1")) transpose_part(SHARE(SIDE, 16));
}

static const char *known[] = { "gelu chain 2^24", "gelu chain 2^16", "polynomial 2^24", "softmax", "layer norm", "sum rows", "sum all",
                               "sum columns", "transpose + 1" };
static char name[256];
static atomic_long turn, done;
static atomic_int stop;

static void *helper(void *argument)
{
    int thread = (int)(intptr_t)argument;
    for (long seen = 0;;) {
        long now;
        while ((now = atomic_load_explicit(&turn, memory_order_acquire)) == seen) {
            if (atomic_load_explicit(&stop, memory_order_relaxed))
                return NULL;
            _mm_pause();
        }
        seen = now;
        part(name, thread);
        atomic_fetch_add_explicit(&done, 1, memory_order_release);
    }
}

static double call(void)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    atomic_store_explicit(&done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&turn, 1, memory_order_release);
    part(name, 0);
    while (atomic_load_explicit(&done, memory_order_acquire) < threads - 1)
        _mm_pause();
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6;
}

static float *memory(long count, int random)
{
    float *made = mmap(NULL, count * 4 + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        exit(1);
    made = (float *)(((uintptr_t)made + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
    madvise(made, count * 4, MADV_HUGEPAGE);
    for (long i = 0; i < count; i++)
        made[i] = random ? (float)((i * 7919) % 1009) / 504.5f - 1.0f : 0.0f;
    return made;
}

static int order(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(void)
{
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    threads = CPU_COUNT(&cores);
    x = memory(1L << 24, 1), a = memory(1L << 24, 1), b = memory(1L << 24, 1), y = memory(1L << 24, 0);
    printf("{\"system\": \"by hand\"}\n");
    fflush(stdout);
    char line[256];
    static double times[2000];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        int index = -1;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(known[i], line))
                index = (int)i;
        if (index < 0) {
            printf("{\"work\": \"%s\"}\n", line);
            fflush(stdout);
            continue;
        }
        strcpy(name, line);
        /* Threads spin only while something is timed. */
        pthread_t helpers[256];
        atomic_store(&turn, 0);
        atomic_store(&stop, 0);
        for (int thread = 1; thread < threads; thread++)
            pthread_create(&helpers[thread], NULL, helper, (void *)(intptr_t)thread);
        double first = call(), all = 0;
        int count = 0;
        while (count < 5 || (all < 1000.0 && count < 2000))
            all += times[count++] = call();
        for (int thread = 1; thread < threads; thread++) {
            atomic_store(&stop, 1);
            pthread_join(helpers[thread], NULL);
        }
        qsort(times, count, sizeof *times, order);
        printf("{\"work\": \"%s\", \"ms\": %g, \"first_ms\": %g}\n", line, times[count / 2], first);
        fflush(stdout);
    }
    return 0;
}
