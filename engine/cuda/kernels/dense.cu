// Matrix products: linear layers, and convolutions seen as products over rows that overlap.
//
// `out[r, n] = act(sum_k a(r, k) w[n, k] + bias[n]) (+ residual[r, n])`, k running over `taps` taps of `cin`
// values. Row r begins at `(r / group) * group_stride + (r % group) * row_stride`, a tap lies `tap_stride`
// values after the one before. A linear layer has one tap. Up to three matrices may share one input (q, k, v);
// a gated pair gives `silu(a w0) * (a w1)`.
//
// Each sum runs over k in one order that depends on the shape alone, so a row's result does not depend on its
// place or its neighbours.

__device__ __forceinline__ void finish(const Product& p, int matrix, int row, int col, float x) {
    if (p.bias[matrix]) x += p.bias[matrix][col];
    x = activate_one(p.activation, x);
    i64 at = (i64)row * p.n[matrix] + col;
    if (p.residual) {
        x += p.residual_bf16 ? load((const bf16*)p.residual + at) : load((const float*)p.residual + at);
    }
    if (p.out_bf16) store((bf16*)p.out[matrix] + at, x);
    else store((float*)p.out[matrix] + at, x);
}

// Any shape, any alignment: one 64 x 64 tile a block of 256 threads, f32 sums on plain cores.
template <class A, class W>
__device__ __forceinline__ void product_plain(const Product& p) {
    constexpr int BM = 64, BN = 64, BK = 16;
    __shared__ float as[BK][BM + 4];
    __shared__ float ws[2][BK][BN + 4];
    int tile = blockIdx.x, matrix = 0;
    if (!p.gated) {
        while (matrix + 1 < p.matrices && tile >= (p.n[matrix] + BN - 1) / BN) {
            tile -= (p.n[matrix] + BN - 1) / BN;
            matrix++;
        }
    }
    int n = p.n[matrix], n0 = tile * BN, m0 = blockIdx.y * BM;
    int K = p.cin * p.taps;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float acc[2][4][4] = {};
    int weights = p.gated ? 2 : 1;
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += 256) {
            int r = i / BK, k = i % BK, row = m0 + r, kk = k0 + k;
            float x = 0.0f;
            if (row < p.rows && kk < K) {
                int tap = kk / p.cin;
                x = load((const A*)p.a + row_start(p, row) + tap * p.tap_stride + (kk - tap * p.cin));
            }
            as[k][r] = x;
        }
        for (int g = 0; g < weights; g++) {
            const W* w = (const W*)p.w[p.gated ? g : matrix];
            for (int i = threadIdx.x; i < BN * BK; i += 256) {
                int c = i / BK, k = i % BK, col = n0 + c, kk = k0 + k;
                ws[g][k][c] = col < n && kk < K ? load(w + (i64)col * K + kk) : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; k++) {
            float a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = as[k][ty * 4 + i];
            for (int g = 0; g < weights; g++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float w = ws[g][k][tx * 4 + j];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (g == 0) acc[0][i][j] = fmaf(a[i], w, acc[0][i][j]);
                        else acc[1][i][j] = fmaf(a[i], w, acc[1][i][j]);
                    }
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = m0 + ty * 4 + i, col = n0 + tx * 4 + j;
            if (row >= p.rows || col >= n) continue;
            float x = acc[0][i][j];
            if (p.gated) x = silu(x) * acc[1][i][j];
            finish(p, matrix, row, col, x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) product_plain_ff(const __grid_constant__ Product p) {
    take_turn();
    product_plain<float, float>(p);
}
extern "C" __global__ void __launch_bounds__(256) product_plain_bb(const __grid_constant__ Product p) {
    take_turn();
    product_plain<bf16, bf16>(p);
}

// ---- tensor cores ------------------------------------------------------------------------------------

// A tile of BM rows and BN columns for WM x WN warps, k in steps of 64, STAGES steps in flight.
//
// Rows of 64 values lie in shared memory as eight pieces of 16 bytes, piece c of row r at c ^ (r & 7), so that
// eight rows of one piece fall into different banks.
template <int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void product_tensor(const Product& p) {
    constexpr int THREADS = WM * WN * 32;
    constexpr int MT = BM / WM / 16, NT = BN / WN / 8;
    constexpr int STEP = THREADS / 8;
    constexpr int AR = (BM + STEP - 1) / STEP, WR = (BN + STEP - 1) / STEP;
    constexpr u32 STAGE_BYTES = (BM + BN) * 128;
    extern __shared__ __align__(128) u8 shared[];
    u32 base = (u32)__cvta_generic_to_shared(shared);

    int tile = blockIdx.x, matrix = 0;
    constexpr int COLS = BN;
    if (!p.gated) {
        while (matrix + 1 < p.matrices && tile >= (p.n[matrix] + COLS - 1) / COLS) {
            tile -= (p.n[matrix] + COLS - 1) / COLS;
            matrix++;
        }
    }
    int n = p.n[matrix];
    int n0 = p.gated ? tile * (BN / 2) : tile * BN;
    int m0 = blockIdx.y * BM;
    int K = p.cin * p.taps;
    int steps = (K + 63) / 64;
    int first = (int)((i64)blockIdx.z * steps / p.splits), last = (int)((i64)(blockIdx.z + 1) * steps / p.splits);

    int piece = threadIdx.x % 8, line = threadIdx.x / 8;
    const bf16* a_rows[AR];
    const bf16* w_rows[WR];
#pragma unroll
    for (int i = 0; i < AR; i++) {
        int r = line + i * STEP, row = m0 + r;
        a_rows[i] = r < BM && row < p.rows ? (const bf16*)p.a + row_start(p, row) : nullptr;
    }
#pragma unroll
    for (int i = 0; i < WR; i++) {
        int r = line + i * STEP;
        int which = matrix, col = n0 + r;
        if (p.gated) {
            which = (r / 8) % 2;
            col = n0 + r / 16 * 8 + r % 8;
        }
        w_rows[i] = r < BN && col < n ? (const bf16*)p.w[which] + (i64)col * K : nullptr;
    }

    auto fetch_a = [&](int step, int stage) {
        int kk = step * 64 + piece * 8;
        bool inside = kk < K;
        int tap = p.taps == 1 ? 0 : kk / p.cin;
        i64 offset = (i64)tap * p.tap_stride + (kk - tap * p.cin);
        u32 to = base + stage * STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < AR; i++) {
            int r = line + i * STEP;
            if (BM % STEP != 0 && r >= BM) break;
            bool there = inside && a_rows[i];
            copy_16(to + r * 128 + ((piece ^ (r & 7)) << 4), there ? a_rows[i] + offset : (const bf16*)p.a, there);
        }
    };
    auto fetch_w = [&](int step, int stage) {
        int kk = step * 64 + piece * 8;
        bool inside = kk < K;
        u32 to = base + stage * STAGE_BYTES + BM * 128;
#pragma unroll
        for (int i = 0; i < WR; i++) {
            int r = line + i * STEP;
            if (BN % STEP != 0 && r >= BN) break;
            bool there = inside && w_rows[i];
            copy_16(to + r * 128 + ((piece ^ (r & 7)) << 4), there ? w_rows[i] + kk : (const bf16*)p.w[0], there);
        }
    };

    float acc[MT][NT][4] = {};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int wm = warp % WM * (BM / WM), wn = warp / WM * (BN / WN);

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < last) fetch_w(first + s, s);
    }
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < last) fetch_a(first + s, s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int step = first; step < last; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        int next = step + STAGES - 1;
        if (next < last) {
            fetch_a(next, (next - first) % STAGES);
            fetch_w(next, (next - first) % STAGES);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");

        u32 a_base = base + ((step - first) % STAGES) * STAGE_BYTES, w_base = a_base + BM * 128;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 a[MT][4];
#pragma unroll
            for (int i = 0; i < MT; i++) {
                int r = wm + i * 16 + lane % 16, c = k * 2 + lane / 16;
                load_matrix_4(a[i], a_base + r * 128 + ((c ^ (r & 7)) << 4));
            }
#pragma unroll
            for (int j = 0; j < NT; j += 2) {
                u32 b[4];
                int r = wn + j * 8 + lane / 16 * 8 + lane % 8, c = k * 2 + lane / 8 % 2;
                load_matrix_4(b, w_base + r * 128 + ((c ^ (r & 7)) << 4));
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma(acc[i][j], a[i], b[0], b[1]);
                    mma(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");

    if (p.splits > 1) {
        // Partial sums meet in memory; the block that comes last adds them up, always in the same order.
        constexpr int VALUES = MT * NT * 4;
        __shared__ u32 ticket;
        int tiles = gridDim.x * gridDim.y, here = blockIdx.y * gridDim.x + blockIdx.x;
        float* mine = p.partial + ((i64)blockIdx.z * tiles + here) * VALUES * THREADS + threadIdx.x;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) mine[((i * NT + j) * 4 + e) * THREADS] = acc[i][j][e];
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) ticket = atomicAdd(p.counters + here, 1);
        __syncthreads();
        if (ticket != p.splits - 1) return;
        __threadfence();
        const float* all = p.partial + (i64)here * VALUES * THREADS + threadIdx.x;
        i64 stride = (i64)tiles * VALUES * THREADS;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j][e] = 0.0f;
#pragma unroll 4
        for (int s = 0; s < p.splits; s++) {
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        acc[i][j][e] += __ldcg(all + s * stride + ((i * NT + j) * 4 + e) * THREADS);
        }
        if (threadIdx.x == 0) p.counters[here] = 0;
    }

    if (p.gated) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j += 2)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j / 2][e] = silu(acc[i][j][e]) * acc[i][j + 1][e];
    }
    Ending ending = {p.out[matrix], p.bias[matrix], p.residual, n, p.activation, p.out_bf16, p.residual_bf16};
    int col0 = (p.gated ? n0 + wn / 2 : n0 + wn) + lane % 4 * 2;
    end_tile<MT, NT>(acc, ending, m0 + wm + lane / 4, p.rows, col0, p.gated ? NT / 2 : NT);
}

#define PRODUCT_ENTRY(BM, BN, WM, WN, STAGES)                                                 \
    extern "C" __global__ void __launch_bounds__(WM* WN * 32)                                 \
        product_tensor_##BM##x##BN(const __grid_constant__ Product p) {                       \
        product_tensor<BM, BN, WM, WN, STAGES>(p);                                            \
    }

PRODUCT_ENTRY(16, 64, 1, 4, 6)
PRODUCT_ENTRY(32, 64, 1, 4, 6)
PRODUCT_ENTRY(64, 32, 4, 2, 6)
PRODUCT_ENTRY(64, 64, 4, 2, 5)
PRODUCT_ENTRY(128, 32, 4, 2, 4)
PRODUCT_ENTRY(128, 64, 4, 2, 4)
PRODUCT_ENTRY(128, 96, 4, 2, 3)
PRODUCT_ENTRY(128, 128, 2, 4, 3)
