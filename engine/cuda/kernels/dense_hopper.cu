// Matrix products on Hopper's matrix instructions; the portable kernels of `dense.cu` mean the same.
//
// A block of WG warpgroups makes a tile of rows by columns. Either factor may be the one the instruction gives 64 rows
// a warpgroup: with many rows of input that is the input, with few (SWAP) it is the weights. k may be split over a
// cluster of blocks (grid z), whose tiles meet in shared memory: each block ends its share of the rows, adding the
// parts up in the order of k.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Four sums of block `rank` of the cluster, at the place they have in every block's shared memory.
__device__ __forceinline__ float4 part(u32 shared, int rank, int splits) {
    float4 x;
    if (splits == 1) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(shared) : "memory");
        return x;
    }
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}

// Sum over the `lanes` neighbouring lanes that share a row, a power of two, each the same.
__device__ __forceinline__ float lanes_sum(float x, int lanes) {
    u32 mask = lanes == 32 ? 0xffffffffu : ((1u << lanes) - 1) << (threadIdx.x % 32 & ~(lanes - 1));
    for (int d = lanes / 2; d > 0; d >>= 1) x += __shfl_xor_sync(mask, x, d);
    return x;
}

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

// The sums of `rows` rows of a tile, from the first at `shared` on, leave as result rows `row0` and on.
template <int COLS, int STRIDE, int THREADS, bool GATED>
__device__ __forceinline__ void end_rows(
    const Product& p, int matrix, u32 shared, int row0, int rows, int n0, const float* scales) {
    constexpr int ACROSS = (GATED ? COLS / 2 : COLS) / 4;
    int n = p.n[matrix];
    const float* bias = p.bias[matrix];
    // What is added to the sums is on its way while they are gathered.
    constexpr int BATCH = 4;
    for (int from = threadIdx.x; from < rows * ACROSS; from += BATCH * THREADS) {
        float4 old[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int i = from + k * THREADS, row = row0 + i / ACROSS, col = n0 + i % ACROSS * 4;
            if (!p.residual || i >= rows * ACROSS || row >= p.rows || col >= n) continue;
            i64 at = (i64)row * n + col;
            old[k] = p.residual_bf16 ? load_4((const bf16*)p.residual + at) : load_4((const float*)p.residual + at);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int i = from + k * THREADS, r = i / ACROSS, c = i % ACROSS * 4, row = row0 + r, col = n0 + c;
            if (i >= rows * ACROSS) break;
            u32 at = shared + (r * STRIDE + (GATED ? c / 8 * 16 + c % 8 : c)) * 4;
            float4 x = part(at, 0, p.splits), up;
            if (GATED) up = part(at + 32, 0, p.splits);
            for (int s = 1; s < p.splits; s++) {
                x = add(x, part(at, s, p.splits));
                if (GATED) up = add(up, part(at + 32, s, p.splits));
            }
            bool there = row < p.rows && col < n;
            i64 to = (i64)row * n + col;
            if (p.squares) {
                x = times(x, scales[r]);
                if (GATED) up = times(up, scales[r]);
            }
            if (GATED) x = make_float4(silu_fast(x.x) * up.x, silu_fast(x.y) * up.y, silu_fast(x.z) * up.z, silu_fast(x.w) * up.w);
            if (there) {
                if (bias) x = add(x, load_4(bias + col));
                if (p.activation == ACT_SILU) x = make_float4(silu_fast(x.x), silu_fast(x.y), silu_fast(x.z), silu_fast(x.w));
                if (p.activation == ACT_GELU_ERF) x = make_float4(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
                if (p.residual) x = add(x, old[k]);
                if (p.out_bf16) store_4((bf16*)p.out[matrix] + to, x);
                else store_4((float*)p.out[matrix] + to, x);
            }
            if (p.norm) {
                float squares = 0.0f;
                if (there) {
                    float4 w = load_4(p.norm + col);
                    store_4(p.scaled + to, make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w));
                    squares = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
                }
                squares = lanes_sum(squares, ACROSS);
                if (there && c == 0) p.squares_out[(i64)row * gridDim.x + blockIdx.x] = squares;
            }
        }
    }
}

// A thread's own row: all its parts on their way together.
__device__ __forceinline__ float row_scale(const Product& p, int row) {
    const float* parts = p.squares + (i64)row * p.squares_cols;
    float sum = 0.0f;
    if (p.squares_cols % 4 == 0) {
#pragma unroll 8
        for (int c = 0; c < p.squares_cols; c += 4) {
            float4 x = load_4(parts + c);
            sum += x.x + x.y + x.z + x.w;
        }
    } else {
        for (int c = 0; c < p.squares_cols; c++) sum += parts[c];
    }
    return rsqrtf(sum / p.cin + p.eps);
}

__device__ __forceinline__ int in_turn(int i, int count) { return i < count ? i : i % count; }

// AHEAD steps of k are on their way. With one buffer more, a step must have been multiplied before its buffer is filled
// again; with two more, the matrix instructions of wide tiles have no gap.
template <int WG, int BN, bool SWAP, int AHEAD, int STAGES>
__device__ __forceinline__ void product_hopper(const Product& p) {
    constexpr int THREADS = WG * 128, BM = WG * 64;
    constexpr int ROWS = SWAP ? BN : BM, COLS = SWAP ? BM : BN;
    constexpr int STEP = THREADS / 8, AR = (ROWS + STEP - 1) / STEP, WR = (COLS + STEP - 1) / STEP;
    constexpr u32 STAGE_BYTES = (ROWS + COLS) * 128;
    constexpr int STRIDE = COLS + (SWAP ? 4 : 8);
    static_assert(STAGES == AHEAD + 1 || STAGES == AHEAD + 2, "a buffer for each step on its way, and one or two more");
    extern __shared__ u8 shared[];
    __shared__ float scales[ROWS];
    u32 base = ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u;

    int tile = blockIdx.x, matrix = 0;
    if (!p.gated) {
        while (matrix + 1 < p.matrices && tile >= (p.n[matrix] + COLS - 1) / COLS) {
            tile -= (p.n[matrix] + COLS - 1) / COLS;
            matrix++;
        }
    }
    int n = p.n[matrix];
    int n0 = p.gated ? tile * (COLS / 2) : tile * COLS;
    int m0 = blockIdx.y * ROWS;
    int K = p.cin * p.taps, steps = (K + 63) / 64, rank = blockIdx.z;
    int first = (int)((i64)rank * steps / p.splits), last = (int)((i64)(rank + 1) * steps / p.splits);

    int piece = threadIdx.x % 8, line = threadIdx.x / 8, k0 = first * 64 + piece * 8;
    // Rows and columns that are not there repeat those that are, in turn; nobody reads their sums. Were they all one
    // row's, every block would ask the cache for that row again and again, which took longer than a full tile.
    const bf16* a_at[AR];
    const bf16* w_at[WR];
#pragma unroll
    for (int i = 0; i < AR; i++) a_at[i] = (const bf16*)p.a + row_start(p, m0 + in_turn(line + i * STEP, p.rows - m0));
#pragma unroll
    for (int i = 0; i < WR; i++) {
        int r = line + i * STEP, which = p.gated ? r / 8 % 2 : matrix, col = p.gated ? r / 16 * 8 + r % 8 : r;
        w_at[i] = (const bf16*)p.w[which] + (i64)(n0 + in_turn(col, n - n0)) * K + k0;
    }
    // Both factors are fetched step after step, so that a step costs an addition each: a product is as much instructions
    // as it is multiplications.
    int left_a = K - k0, left_w = left_a, within = k0 % p.cin;
    i64 tap_at = (i64)(k0 / p.cin) * p.tap_stride + within, to_next_tap = p.tap_stride - p.cin;
    u32 place = base + line * 128 + ((piece ^ (line & 7)) << 4);
    auto fetch_a = [&](u32 stage) {
#pragma unroll
        for (int i = 0; i < AR; i++) {
            if (ROWS % STEP != 0 && line + i * STEP >= ROWS) break;
            copy_16(place + stage + i * STEP * 128, a_at[i] + tap_at, left_a > 0);
        }
        left_a -= 64;
        within += 64;
        tap_at += 64;
        while (within >= p.cin) {
            within -= p.cin;
            tap_at += to_next_tap;
        }
    };
    auto fetch_w = [&](u32 stage) {
#pragma unroll
        for (int i = 0; i < WR; i++) {
            if (COLS % STEP != 0 && line + i * STEP >= COLS) break;
            copy_16(place + stage + (ROWS + i * STEP) * 128, w_at[i], left_w > 0);
            w_at[i] += 64;
        }
        left_w -= 64;
    };

#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (first + s < last) fetch_w(s * STAGE_BYTES);
    }
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (first + s < last) fetch_a(s * STAGE_BYTES);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    int row0 = rank * ROWS / p.splits, rows = (rank + 1) * ROWS / p.splits - row0;
    if (p.squares) {
        for (int r = threadIdx.x; r < rows; r += THREADS) {
            scales[r] = m0 + row0 + r < p.rows ? row_scale(p, m0 + row0 + r) : 0.0f;
        }
    }
    float acc[BN / 8][4];
    int group = threadIdx.x / 128;
    u32 rows_at = SWAP ? ROWS * 128 + group * 64 * 128 : group * 64 * 128, cols_at = SWAP ? 0 : ROWS * 128;
    auto following = [](u32 stage) { return stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES; };
    u32 stage = 0, free = AHEAD % STAGES * STAGE_BYTES;
    auto fetch_more = [&](int step) {
        if (step + AHEAD < last) {
            fetch_a(free);
            fetch_w(free);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        free = following(free);
    };
#pragma unroll 1
    for (int step = first; step < last; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        publish_to_matrices();
        if constexpr (STAGES == AHEAD + 1) warpgroup_wait<0>();
        __syncthreads();
        u64 a = factor_at(base + stage + rows_at), b = factor_at(base + stage + cols_at);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < 4; k++) warpgroup_mma(acc, a + 2 * k, b + 2 * k, step > first || k > 0);
        warpgroup_commit();
        fetch_more(step);
        if constexpr (STAGES == AHEAD + 2) warpgroup_wait<1>();
        stage = following(stage);
    }
    warpgroup_wait<0>();
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();

    int lane = threadIdx.x % 32, row_of = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, col_of = lane % 4 * 2;
    float* tile_at = (float*)(shared + (base - (u32)__cvta_generic_to_shared(shared)));
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        if constexpr (SWAP) {
            float* to = tile_at + (j * 8 + col_of) * STRIDE + row_of;
            to[0] = acc[j][0];
            to[STRIDE] = acc[j][1];
            to[8] = acc[j][2];
            to[STRIDE + 8] = acc[j][3];
        } else {
            float* to = tile_at + row_of * STRIDE + j * 8 + col_of;
            *(float2*)to = make_float2(acc[j][0], acc[j][1]);
            *(float2*)(to + 8 * STRIDE) = make_float2(acc[j][2], acc[j][3]);
        }
    }
    if (p.splits > 1) cluster_meet();
    else __syncthreads();

    if (p.gated) end_rows<COLS, STRIDE, THREADS, true>(p, matrix, base + row0 * STRIDE * 4, m0 + row0, rows, n0, scales);
    else end_rows<COLS, STRIDE, THREADS, false>(p, matrix, base + row0 * STRIDE * 4, m0 + row0, rows, n0, scales);
    // A block's shared memory must outlive its peers' reading.
    if (p.splits > 1) cluster_meet();
}

#define HOPPER_ENTRY(name, WG, BN, SWAP, AHEAD, STAGES)                                    \
    extern "C" __global__ void __launch_bounds__(WG * 128)                                 \
        product_hopper_##name(const __grid_constant__ Product p) {                         \
        product_hopper<WG, BN, SWAP, AHEAD, STAGES>(p);                                    \
    }

// Rows by columns of a tile.
HOPPER_ENTRY(8x64, 1, 8, true, 6, 8)
HOPPER_ENTRY(16x64, 1, 16, true, 6, 8)
HOPPER_ENTRY(32x64, 1, 32, true, 6, 8)
HOPPER_ENTRY(64x64, 1, 64, false, 5, 6)
HOPPER_ENTRY(128x32, 2, 32, false, 4, 5)
HOPPER_ENTRY(128x64, 2, 64, false, 3, 4)
HOPPER_ENTRY(128x96, 2, 96, false, 2, 3)
HOPPER_ENTRY(128x256, 2, 256, false, 2, 4)
HOPPER_ENTRY(192x64, 3, 64, false, 2, 3)
HOPPER_ENTRY(192x128, 3, 128, false, 3, 5)
HOPPER_ENTRY(256x128, 4, 128, false, 2, 4)
#endif
