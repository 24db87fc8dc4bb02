// Products of few rows with whole matrices on Hopper's matrix instructions: what a decode step does four times a layer.
// `dense_hopper.cu` means the same for any shape; here every instruction between the end of the kernel before and the
// first multiplication, and between the last and the end, was counted, because such a step is hundreds of kernels that
// read a few MB each. Rows lie one after the other, k is a multiple of 64, columns of every matrix are a multiple of a tile's.
//
// A tile is ROWS rows by 64 columns; with SWAP the weights are the factor of which the instruction takes 64 rows. k is
// split over a cluster of blocks (grid z: 1, 2, 4 or 8). Each block owns a share of the tile's rows: its peers send
// their sums of these straight into its shared memory, and the last byte opens its barrier. So nobody reads from a peer,
// and none need wait for another to end.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The address of `shared` in block `rank` of the cluster.
__device__ __forceinline__ u32 peer(u32 shared, int rank) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
    return at;
}

__device__ __forceinline__ void send(u32 to, u32 barrier, float x) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(__float_as_uint(x)),
                 "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void send(u32 to, u32 barrier, float x, float y) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void await_bytes(u32 barrier) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;}" ::"r"(barrier)
        : "memory");
}

__device__ __forceinline__ void copy_16(u32 shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Sum over LANES neighbouring lanes, the same in each. All lanes of the warp take part.
template <int LANES>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// Every LANES-th of `count` values from this lane's on, added up: four loads on their way at once.
template <int LANES>
__device__ __forceinline__ float lane_share(const float* values, int count) {
    float sum = 0.0f;
#pragma unroll 1
    for (int from = threadIdx.x % LANES; from < count; from += 4 * LANES) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = from + i * LANES < count ? values[from + i * LANES] : 0.0f;
        sum += x[0] + x[1] + x[2] + x[3];
    }
    return sum;
}

__device__ __forceinline__ float4 shared_4(u32 at) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at) : "memory");
    return x;
}

template <int WG, int BN, bool SWAP, int STAGES, bool GATED>
__device__ __forceinline__ void product_rows(const Product& p) {
    constexpr int THREADS = WG * 128, BM = WG * 64, AHEAD = STAGES - 1;
    constexpr int ROWS = SWAP ? BN : BM, COLS = SWAP ? BM : BN;
    constexpr int STEP = THREADS / 8, AR = (ROWS + STEP - 1) / STEP, WR = COLS / STEP;
    constexpr u32 STAGE_BYTES = (ROWS + COLS) * 128;
    constexpr int STRIDE = COLS + (SWAP ? 4 : 8);
    // Of the end: lanes across a row, rows of all threads at once, and how often until a whole tile is done.
    constexpr int ACROSS = (GATED ? COLS / 2 : COLS) / 4, DOWN = THREADS / ACROSS, ITEMS = (ROWS + DOWN - 1) / DOWN;
    extern __shared__ u8 shared[];
    __shared__ u64 arrived;
    u32 base = ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u, sums = base + STAGES * STAGE_BYTES;
    u32 barrier = (u32)__cvta_generic_to_shared(&arrived);

    int tile = blockIdx.x, matrix = 0, rank = blockIdx.z, splits = gridDim.z, K = p.cin;
    // As a shift: splits are a power of two.
    int halvings = __ffs(splits) - 1;
    if constexpr (!GATED) {
        while (matrix + 1 < p.matrices && tile >= p.n[matrix] / COLS) tile -= p.n[matrix++] / COLS;
    }
    int n = p.n[matrix], n0 = tile * (GATED ? COLS / 2 : COLS), m0 = blockIdx.y * ROWS;
    int steps = K / 64, first = rank * steps >> halvings, count = ((rank + 1) * steps >> halvings) - first;

    int piece = threadIdx.x % 8, line = threadIdx.x / 8;
    u32 place = base + line * 128 + ((piece ^ (line & 7)) << 4);
    // Rows that are not there are zeros: were they another row's, every block would ask the cache for that one again and
    // again, which took longer than a full tile.
    const bf16* a_at[AR];
    u32 a_bytes[AR];
    const bf16* w_at[WR];
#pragma unroll
    for (int i = 0; i < AR; i++) {
        int row = m0 + line + i * STEP;
        a_at[i] = (const bf16*)p.a + (i64)min(row, p.rows - 1) * p.row_stride + first * 64 + piece * 8;
        a_bytes[i] = row < p.rows ? 16 : 0;
    }
    // Gates and ups take turns by eight columns.
#pragma unroll
    for (int i = 0; i < WR; i++) {
        int r = line + i * STEP, col = GATED ? n0 + r / 16 * 8 + r % 8 : n0 + r;
        w_at[i] = (const bf16*)p.w[GATED ? line / 8 % 2 : matrix] + (i64)col * K + first * 64 + piece * 8;
    }
    auto fetch_a = [&](u32 stage) {
#pragma unroll
        for (int i = 0; i < AR; i++) {
            if (ROWS % STEP == 0 || line + i * STEP < ROWS) copy_some(place + stage + i * STEP * 128, a_at[i], a_bytes[i]);
            a_at[i] += 64;
        }
    };
    auto fetch_w = [&](u32 stage) {
#pragma unroll
        for (int i = 0; i < WR; i++) {
            copy_16(place + stage + (ROWS + i * STEP) * 128, w_at[i]);
            w_at[i] += 64;
        }
    };

#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (s < count) fetch_w(s * STAGE_BYTES);
    }
    int share = ROWS >> halvings, row0 = rank * share;
    float per_k = 1.0f / K;
    if (splits > 1) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(ROWS * COLS * 4) : "memory");
        }
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    int c = threadIdx.x % ACROSS * 4, down = threadIdx.x / ACROSS, col = n0 + c;
    float4 weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f), bias = weight;
    if (p.norm) weight = load_4(p.norm + col);
    if (p.bias[matrix]) bias = load_4(p.bias[matrix] + col);
    let_next_start();
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (s < count) fetch_a(s * STAGE_BYTES);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // What the end needs besides the sums: what they are added to, and a row's squares by the lanes that will share it.
    float squares[ITEMS];
    float4 old[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int r = down + k * DOWN, row = min(m0 + row0 + r, p.rows - 1);
        if (k > 0 && k * DOWN >= share) break;
        if (p.residual) {
            i64 at = (i64)row * n + col;
            old[k] = p.residual_bf16 ? load_4((const bf16*)p.residual + at) : load_4((const float*)p.residual + at);
        }
        if (p.squares) squares[k] = lane_share<ACROSS>(p.squares + (i64)row * p.squares_cols, p.squares_cols);
    }

    float acc[BN / 8][4];
    int group = threadIdx.x / 128;
    u32 rows_at = base + (SWAP ? ROWS * 128 + group * 64 * 128 : group * 64 * 128), cols_at = base + (SWAP ? 0 : ROWS * 128);
    u32 stage = 0, next = AHEAD * STAGE_BYTES;
#pragma unroll 1
    for (int step = 0; step < count; step++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        publish_to_matrices();
        warpgroup_wait<0>();
        __syncthreads();
        u64 a = factor_at(rows_at + stage), b = factor_at(cols_at + stage);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < 4; k++) warpgroup_mma(acc, a + 2 * k, b + 2 * k, step > 0 || k > 0);
        warpgroup_commit();
        if (step + AHEAD < count) {
            fetch_a(next);
            fetch_w(next);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        next = stage;
        stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    }

    warpgroup_wait<0>();

    int lane = threadIdx.x % 32, row_of = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, col_of = lane % 4 * 2;
    if (splits > 1) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        u32 mine = sums + rank * share * STRIDE * 4;
        if constexpr (SWAP) {
#pragma unroll
            for (int j = 0; j < BN / 8; j++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int r = j * 8 + col_of + h, owner = (r << halvings) / ROWS;
                    u32 to = peer(mine, owner) + ((r - owner * share) * STRIDE + row_of) * 4, tell = peer(barrier, owner);
                    send(to, tell, acc[j][h]);
                    send(to + 32, tell, acc[j][2 + h]);
                }
            }
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int r = row_of + h * 8, owner = (r << halvings) / ROWS;
                u32 to = peer(mine, owner) + ((r - owner * share) * STRIDE + col_of) * 4, tell = peer(barrier, owner);
#pragma unroll
                for (int j = 0; j < BN / 8; j++) send(to + j * 32, tell, acc[j][2 * h], acc[j][2 * h + 1]);
            }
        }
        await_bytes(barrier);
    } else {
        float* to = (float*)(shared + (sums - (u32)__cvta_generic_to_shared(shared)));
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
#pragma unroll
            for (int h = 0; h < 4; h++) {
                int across = SWAP ? row_of + h / 2 * 8 : j * 8 + col_of + h % 2;
                int r = SWAP ? j * 8 + col_of + h % 2 : row_of + h / 2 * 8;
                to[r * STRIDE + across] = acc[j][h];
            }
        }
        __syncthreads();
    }

    // Parts are added in the order of k, once all have been read.
    auto gathered = [&](int r, int at) {
        u32 from = sums + (r * STRIDE + at) * 4;
        float4 x[8];
#pragma unroll
        for (int s = 0; s < 8; s++) {
            if (s == 0 || s < splits) x[s] = shared_4(from + s * share * STRIDE * 4);
        }
#pragma unroll
        for (int s = 1; s < 8; s++) {
            if (s < splits) x[0] = add(x[0], x[s]);
        }
        return x[0];
    };
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int r = down + k * DOWN, row = m0 + row0 + r;
        if (k > 0 && k * DOWN >= share) break;
        bool there = r < share && row < p.rows;
        float scale = 1.0f, own = 0.0f;
        if (p.squares) scale = rsqrtf(fmaf(lanes_sum<ACROSS>(squares[k]), per_k, p.eps));
        if (there) {
            float4 x;
            if constexpr (GATED) {
                float4 gate = times(gathered(r, c / 8 * 16 + c % 8), scale), up = times(gathered(r, c / 8 * 16 + c % 8 + 8), scale);
                x = make_float4(silu_fast(gate.x) * up.x, silu_fast(gate.y) * up.y, silu_fast(gate.z) * up.z,
                                silu_fast(gate.w) * up.w);
            } else {
                x = add(times(gathered(r, c), scale), bias);
                if (p.activation == ACT_SILU) x = make_float4(silu_fast(x.x), silu_fast(x.y), silu_fast(x.z), silu_fast(x.w));
                if (p.residual) x = add(x, old[k]);
            }
            i64 to = (i64)row * n + col;
            if (p.out_bf16) store_4((bf16*)p.out[matrix] + to, x);
            else store_4((float*)p.out[matrix] + to, x);
            if (p.norm) {
                store_4(p.scaled + to, make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w));
                own = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
            }
        }
        if (p.norm) {
            own = lanes_sum<ACROSS>(own);
            if (there && c == 0) p.squares_out[(i64)row * gridDim.x + blockIdx.x] = own;
        }
    }
}

#define ROWS_HOPPER_ENTRY(name, WG, BN, SWAP, STAGES)                                                                \
    extern "C" __global__ void __launch_bounds__(WG * 128) product_rows_##name(const __grid_constant__ Product p) {  \
        product_rows<WG, BN, SWAP, STAGES, false>(p);                                                                \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(WG * 128) product_rows_gated_##name(const __grid_constant__ Product p) { \
        product_rows<WG, BN, SWAP, STAGES, true>(p);                                                                 \
    }

ROWS_HOPPER_ENTRY(8, 1, 8, true, 8)
ROWS_HOPPER_ENTRY(16, 1, 16, true, 8)
ROWS_HOPPER_ENTRY(32, 1, 32, true, 7)
ROWS_HOPPER_ENTRY(64, 1, 64, false, 5)
ROWS_HOPPER_ENTRY(128, 2, 64, false, 3)
#endif
