// What kernels on tensor cores share: copies into shared memory, matrix instructions, and the end of a tile.

// Not inlined: unrolled over a tile's sums, the activations would be compiled hundreds of times.
__device__ __noinline__ float activate_one(int kind, float x) { return activate(kind, x); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// For sums that leave in 16 bits.
__device__ __forceinline__ float silu_fast(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// The first `bytes` of 16; the rest is zeros, for which nothing is read.
__device__ __forceinline__ void copy_some(u32 shared, const void* global, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_16(u32 shared, const void* global, bool there) { copy_some(shared, global, there ? 16 : 0); }

__device__ __forceinline__ void load_matrix_4(u32 (&r)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four neighbouring values.
__device__ __forceinline__ float4 load_4(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ float4 load_4(const bf16* p) {
    uint2 two = *(const uint2*)p;
    return make_float4(__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u),
                       __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000u));
}
__device__ __forceinline__ void store_4(float* p, float4 x) { *(float4*)p = x; }
__device__ __forceinline__ void store_4(bf16* p, float4 x) {
    *(uint2*)p = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

__device__ __forceinline__ float4 add(float4 x, float4 y) {
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}
__device__ __forceinline__ float4 times(float4 x, float y) { return make_float4(x.x * y, x.y * y, x.z * y, x.w * y); }

// Eight, of either type.
struct float8 {
    float4 low, high;
};
__device__ __forceinline__ float8 load_8(const void* p, i64 at, int is_bf16) {
    if (!is_bf16) return {load_4((const float*)p + at), load_4((const float*)p + at + 4)};
    uint4 raw = *(const uint4*)((const bf16*)p + at);
    return {make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                        __uint_as_float(raw.y & 0xffff0000u)),
            make_float4(__uint_as_float(raw.z << 16), __uint_as_float(raw.z & 0xffff0000u), __uint_as_float(raw.w << 16),
                        __uint_as_float(raw.w & 0xffff0000u))};
}
__device__ __forceinline__ void store_8(void* p, i64 at, int is_bf16, float8 x) {
    if (!is_bf16) {
        store_4((float*)p + at, x.low);
        store_4((float*)p + at + 4, x.high);
        return;
    }
    *(uint4*)((bf16*)p + at) = make_uint4(pack_bf16(x.low.x, x.low.y), pack_bf16(x.low.z, x.low.w),
                                          pack_bf16(x.high.x, x.high.y), pack_bf16(x.high.z, x.high.w));
}
// A number of the compiler's own, to choose code by.
template <int N>
struct Count {
    static constexpr int COUNT = N;
};

__device__ __forceinline__ float8 add(float8 x, float8 y) { return {add(x.low, y.low), add(x.high, y.high)}; }

// What happens to the sums of a tile on their way out.
struct Ending {
    void* out;
    const float* bias;
    const void* residual;
    int n;
    int activation;
    int out_bf16;
    int residual_bf16;
};

// In phases over all sums, so that loads are in flight together: an in-place residual would otherwise make each
// load wait for the store before it. A thread holds rows `row0 + 8 h + 16 i` and columns `col0 + 8 j`, in pairs.
template <int MT, int NT>
__device__ __forceinline__ void end_tile(
    float (&acc)[MT][NT][4], const Ending& p, int row0, int rows, int col0, int across) {
    int n = p.n;
    const float* bias = p.bias;
    if (bias) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int col = col0 + j * 8;
            float b0 = j < across && col < n ? bias[col] : 0.0f, b1 = j < across && col + 1 < n ? bias[col + 1] : 0.0f;
#pragma unroll
            for (int i = 0; i < MT; i++) {
                acc[i][j][0] += b0;
                acc[i][j][1] += b1;
                acc[i][j][2] += b0;
                acc[i][j][3] += b1;
            }
        }
    }
    if (p.activation) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j][e] = activate_one(p.activation, acc[i][j][e]);
    }
    // Pairs of columns are read and written together where every row holds an even number.
    bool even = n % 2 == 0;
    if (p.residual) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    int row = row0 + i * 16 + half * 8, col = col0 + j * 8;
                    if (j >= across || row >= rows || col >= n) continue;
                    i64 at = (i64)row * n + col;
                    float r0, r1 = 0.0f;
                    if (p.residual_bf16) {
                        const bf16* from = (const bf16*)p.residual + at;
                        if (even) {
                            u32 two = *(const u32*)from;
                            r0 = __uint_as_float(two << 16);
                            r1 = __uint_as_float(two & 0xffff0000u);
                        } else {
                            r0 = load(from);
                            if (col + 1 < n) r1 = load(from + 1);
                        }
                    } else {
                        const float* from = (const float*)p.residual + at;
                        r0 = from[0];
                        if (col + 1 < n) r1 = from[1];
                    }
                    acc[i][j][half * 2] += r0;
                    acc[i][j][half * 2 + 1] += r1;
                }
    }
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int row = row0 + i * 16 + half * 8, col = col0 + j * 8;
                if (j >= across || row >= rows || col >= n) continue;
                i64 at = (i64)row * n + col;
                float x0 = acc[i][j][half * 2], x1 = acc[i][j][half * 2 + 1];
                if (p.out_bf16) {
                    bf16* to = (bf16*)p.out + at;
                    if (even) {
                        *(u32*)to = pack_bf16(x0, x1);
                    } else {
                        store(to, x0);
                        if (col + 1 < n) store(to + 1, x1);
                    }
                } else {
                    float* to = (float*)p.out + at;
                    if (even) {
                        *(float2*)to = make_float2(x0, x1);
                    } else {
                        to[0] = x0;
                        if (col + 1 < n) to[1] = x1;
                    }
                }
            }
}

// For arguments within some thousand turns, to the accuracy of bf16 many times over: the card's sine takes an argument in
// turns, so what is lost is the argument's own last bits.
__device__ __forceinline__ float snake_fast(float x, float alpha, float inverse) {
    float s = __sinf(x * alpha);
    return fmaf(inverse, s * s, x);
}

// Eight neighbouring channels of a row.
__device__ __forceinline__ uint4 snake_8(uint4 raw, const float* alpha, const float* inverse) {
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float a = snake_fast(__uint_as_float(words[k] << 16), alpha[2 * k], inverse[2 * k]);
        float b = snake_fast(__uint_as_float(words[k] & 0xffff0000u), alpha[2 * k + 1], inverse[2 * k + 1]);
        words[k] = pack_bf16(a, b);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint4 snake_8(uint4 raw, const float8& alpha, const float8& inverse) {
    float a[8] = {alpha.low.x, alpha.low.y, alpha.low.z, alpha.low.w, alpha.high.x, alpha.high.y, alpha.high.z, alpha.high.w};
    float i[8] = {inverse.low.x, inverse.low.y, inverse.low.z, inverse.low.w, inverse.high.x, inverse.high.y, inverse.high.z,
                  inverse.high.w};
    return snake_8(raw, a, i);
}
