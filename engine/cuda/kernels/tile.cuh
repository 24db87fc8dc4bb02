// What kernels on tensor cores share: copies into shared memory, matrix instructions, and the end of a tile.

// Not inlined: unrolled over a tile's sums, the activations would be compiled hundreds of times.
__device__ __noinline__ float activate_one(int kind, float x) { return activate(kind, x); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ void copy_16(u32 shared, const void* global, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

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
