// Blocks of threads on this machine, after the functions of `host.rs`: a thread is a context of its own that runs until it meets others.
#include <ucontext.h>
#include <cstdlib>
#include <vector>
static ucontext_t outside, contexts[256];
static char stacks[256][1 << 18];
static bool ended[256];
static unsigned threads;
struct Meeting { unsigned arrived, number; };
static Meeting of_block, of_warp[8];
static void require(bool holds, char const *what) { if (!holds) { fprintf(stderr, "%s\n", what); abort(); } }
static void pause() { unsigned const self = threadIdx.x; swapcontext(&contexts[self], &outside); threadIdx.x = self; }
static void meet(Meeting &meeting, unsigned count) {
    unsigned const number = meeting.number;
    if (++meeting.arrived == count) { meeting.arrived = 0; meeting.number++; }
    while (meeting.number == number) { pause(); }
}
struct Given { uint32_t words[6]; uint16_t const *row; };
static Given given[256];
static Given *warp() { return given + threadIdx.x / 32 * 32; }
static void meet_warp() { meet(of_warp[threadIdx.x / 32], 32); }
static void __syncthreads() { meet(of_block, threads); }
static int __syncthreads_or(int x) {
    given[threadIdx.x].words[0] = x != 0;
    __syncthreads();
    int any = 0;
    for (unsigned at = 0; at < threads; at++) { any |= int(given[at].words[0]); }
    __syncthreads();
    return any;
}
static float __shfl_xor_sync(unsigned, float x, int mask) {
    given[threadIdx.x].words[0] = __float_as_uint(x);
    meet_warp();
    float const other = __uint_as_float(warp()[threadIdx.x % 32 ^ mask].words[0]);
    meet_warp();
    return other;
}
static bool __any_sync(unsigned, bool x) {
    given[threadIdx.x].words[0] = x;
    meet_warp();
    bool any = false;
    for (int lane = 0; lane < 32; lane++) { any = any || warp()[lane].words[0] != 0; }
    meet_warp();
    return any;
}
static size_t __cvta_generic_to_shared(void const *) { return 0; }
// Copies are made when they are awaited, no earlier.
struct Copy { uint16_t *to; uint16_t const *from; bool inside; };
static std::vector<Copy> begun[256], ready[256];
static void copy16(uint16_t *to, uint16_t const *from, bool inside) {
    require(uintptr_t(to) % 16 == 0 && uintptr_t(from) % 16 == 0, "a copy is not aligned");
    begun[threadIdx.x].push_back({to, from, inside});
}
static void end_copies() {
    auto &own = begun[threadIdx.x];
    ready[threadIdx.x].insert(ready[threadIdx.x].end(), own.begin(), own.end());
    own.clear();
}
static void await_copies() {
    for (Copy const &copy : ready[threadIdx.x]) {
        if (copy.inside) { memcpy(copy.to, copy.from, 16); } else { memset(copy.to, 0, 16); }
    }
    ready[threadIdx.x].clear();
}
static void load4(uint32_t (&x)[4], uint16_t const *row) {
    require(uintptr_t(row) % 16 == 0, "a row of a fragment is not aligned");
    given[threadIdx.x].row = row;
    meet_warp();
    unsigned const lane = threadIdx.x % 32;
    for (int part = 0; part < 4; part++) { memcpy(&x[part], warp()[part * 8 + lane / 4].row + lane % 4 * 2, 4); }
    meet_warp();
}
static void load4_turned(uint32_t (&x)[4], uint16_t const *row) {
    require(uintptr_t(row) % 16 == 0, "a row of a fragment is not aligned");
    given[threadIdx.x].row = row;
    meet_warp();
    unsigned const lane = threadIdx.x % 32;
    for (int part = 0; part < 4; part++) {
        Given const *const rows = warp() + part * 8 + lane % 4 * 2;
        x[part] = rows[0].row[lane / 4] | uint32_t(rows[1].row[lane / 4]) << 16;
    }
    meet_warp();
}
static float half_of(uint32_t word, int which) {
    uint16_t const bits = uint16_t(word >> 16 * which);
    return IS_F16 ? f16_load(bits) : __uint_as_float(uint32_t(bits) << 16);
}
static void multiply(float (&sum)[4], uint32_t const (&x)[4], uint32_t y0, uint32_t y1) {
    Given &own = given[threadIdx.x];
    for (int part = 0; part < 4; part++) { own.words[part] = x[part]; }
    own.words[4] = y0;
    own.words[5] = y1;
    meet_warp();
    unsigned const lane = threadIdx.x % 32;
    for (int part = 0; part < 4; part++) {
        unsigned const row = lane / 4 + part / 2 * 8, column = lane % 4 * 2 + part % 2;
        float all = 0.0f;
        for (unsigned k = 0; k < 16; k++) {
            uint32_t const left = warp()[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2];
            uint32_t const right = warp()[column * 4 + k % 8 / 2].words[4 + k / 8];
            all += half_of(left, k % 2) * half_of(right, k % 2);
        }
        sum[part] += all;
    }
    meet_warp();
}
static float power_of_2(float x) { return exp2f(x); }
alignas(16) static unsigned char shared[SHARED_BYTES];
// Runs a body in every thread of every block. Shared memory is NaN before.
static void (*body)();
static void enter() { body(); ended[threadIdx.x] = true; pause(); }
static void run_blocks(void (*entry)(), unsigned blocks, unsigned count) {
    body = entry;
    threads = count;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        memset(shared, 0xff, sizeof shared);
        for (unsigned at = 0; at < threads; at++) {
            ended[at] = false;
            getcontext(&contexts[at]);
            contexts[at].uc_stack.ss_sp = stacks[at];
            contexts[at].uc_stack.ss_size = sizeof stacks[at];
            makecontext(&contexts[at], enter, 0);
        }
        for (unsigned open = threads; open > 0;) {
            open = 0;
            for (unsigned at = 0; at < threads; at++) {
                if (!ended[at]) {
                    threadIdx.x = at;
                    swapcontext(&outside, &contexts[at]);
                    open += !ended[at];
                }
            }
        }
        for (unsigned at = 0; at < threads; at++) { require(begun[at].empty() && ready[at].empty(), "a copy is not awaited"); }
    }
}
