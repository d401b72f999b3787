static __device__ __forceinline__ uint32_t place_of(uint16_t const *at) { return uint32_t(__cvta_generic_to_shared(at)); }
static __device__ __forceinline__ void copy16(uint16_t *to, uint16_t const *from, bool inside) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(place_of(to)), "l"(from), "r"(inside ? 16 : 0) : "memory"); }
static __device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
static __device__ __forceinline__ void load4(uint32_t (&x)[4], uint16_t const *row) { asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(place_of(row))); }
static __device__ __forceinline__ void load4_turned(uint32_t (&x)[4], uint16_t const *row) { asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(place_of(row))); }
static __device__ __forceinline__ void multiply(float (&sum)[4], uint32_t const (&x)[4], uint32_t y0, uint32_t y1) { asm("mma.sync.aligned.m16n8k16.row.col.f32.DTYPE.DTYPE.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1)); }
static __device__ __forceinline__ float power_of_2(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
// The 4 lanes that have a row.
static __device__ __forceinline__ float largest_of_row(float x) { x = max_f32(x, __shfl_xor_sync(0xffffffffu, x, 1)); return max_f32(x, __shfl_xor_sync(0xffffffffu, x, 2)); }
static __device__ __forceinline__ float sum_of_row(float x) { x = x + __shfl_xor_sync(0xffffffffu, x, 1); return x + __shfl_xor_sync(0xffffffffu, x, 2); }
// Which row of four 8 by 8 matrices a lane points to: of a left operand, or a right one that is turned; of a right one whose rows are its columns.
static __device__ __forceinline__ int left_place(int lane, int pitch) { return lane % 16 * pitch + lane / 16 * 8; }
static __device__ __forceinline__ int right_place(int lane, int pitch) { return (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8; }
static constexpr float LOG2_E = 1.44269504088896340736f;
