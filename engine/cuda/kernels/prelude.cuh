// Types and conversions every kernel uses. Includes nothing, so that a machine needs no toolkit.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct bf16 {
    u16 bits;
};

__device__ __forceinline__ float load(const float* p) { return *p; }
__device__ __forceinline__ float load(const bf16* p) { return __uint_as_float((u32)p->bits << 16); }
__device__ __forceinline__ void store(float* p, float x) { *p = x; }
__device__ __forceinline__ void store(bf16* p, float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    p->bits = bits;
}

// Low half `a`, high half `b`.
__device__ __forceinline__ u32 pack_bf16(float a, float b) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a));
    return bits;
}

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// Work of one stream overlaps: a kernel lets the next one start early, and waits for the one before it to have
// ended before it touches anything that one may write. Weights may be fetched before the wait.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For kernels that fetch nothing early.
__device__ __forceinline__ void take_turn() {
    let_next_start();
    wait_for_previous();
}

enum Activation { ACT_NONE = 0, ACT_ELU, ACT_GELU_ERF, ACT_RELU, ACT_SIGMOID, ACT_SILU, ACT_TANH };

__device__ __forceinline__ float activate(int kind, float x) {
    switch (kind) {
        case ACT_ELU: return x > 0.0f ? x : expm1f(x);
        case ACT_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
        case ACT_RELU: return fmaxf(x, 0.0f);
        case ACT_SIGMOID: return 1.0f / (1.0f + expf(-x));
        case ACT_SILU: return x / (1.0f + expf(-x));
        case ACT_TANH: return tanhf(x);
        default: return x;
    }
}

// `inverse` is 1 / (exp(beta) + 1e-9), `alpha` is exp(alpha): SnakeBeta with its logs already taken.
__device__ __forceinline__ float snake(float x, float alpha, float inverse) {
    float s = sinf(x * alpha);
    return fmaf(inverse, s * s, x);
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

// Sum over a block of up to 1024 threads, the same in every thread. `scratch` holds 32 floats.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    int warps = (blockDim.x + 31) / 32;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < warps; i++) sum += scratch[i];
    return sum;
}
