// A causal convolution of C channels into C, `out = conv(snake(input)) + bias (+ residual)`, without its input
// being laid out first: a block takes its rows and the history before them into shared memory once, snake applied,
// and all taps read them there.
struct Window {
    const bf16* input;
    const bf16* weight;
    void* out;
    const float* bias;
    const void* residual;
    const float* alpha;
    const float* inverse;
    // The last `(taps - 1) * dilation` rows of each slot, after the snake.
    const float* state;
    const int* slots;
    const int* start;
    int steps;
    int taps;
    int dilation;
    int out_bf16;
    int residual_bf16;
    // A residual unit: a convolution of one tap follows, with its own snake; the residual is added after it.
    const bf16* weight2;
    const float* bias2;
    const float* alpha2;
    const float* inverse2;
};

// Rows of 96 channels lie in shared memory as twelve pieces of 16 bytes, the lower two bits of a piece's place turned
// by its row, so that eight rows of one piece fall into different banks.
constexpr int SLICE = 96, SLICE_BYTES = 2 * SLICE;

__device__ __forceinline__ u32 place_96(int row, int piece) {
    return row * SLICE_BYTES + ((piece & ~3 | (piece ^ row >> 1) & 3) << 4);
}

template <int C>
__device__ __forceinline__ void conv_window(const Window& p) {
    constexpr int BM = 128, THREADS = 256, STAGES = 3, SLICES = C / SLICE, MT = 2, NT = C / 16;
    constexpr u32 STAGE_BYTES = C * SLICE_BYTES;
    constexpr int PIECES = C * 12;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ float alpha[C], inverse[C];
    int context = blockIdx.y, t0 = blockIdx.x * BM;
    int history = (p.taps - 1) * p.dilation, rows = BM + history;
    u32 ring = (u32)__cvta_generic_to_shared(shared), window = ring + STAGES * STAGE_BYTES;
    u8* window_at = shared + STAGES * STAGE_BYTES;
    int pieces = p.taps * SLICES;

    auto fetch = [&](int q, int stage) {
        int slice = q / p.taps, tap = q - slice * p.taps;
        const bf16* from = p.weight + tap * C + slice * SLICE;
#pragma unroll
        for (int i = threadIdx.x; i < PIECES; i += THREADS) {
            int r = i / 12, c = i % 12;
            copy_16(ring + stage * STAGE_BYTES + place_96(r, c), from + (i64)r * p.taps * C + c * 8, true);
        }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < pieces) fetch(s, s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int c = threadIdx.x; c < C; c += THREADS) {
        alpha[c] = p.alpha[c];
        inverse[c] = p.inverse[c];
    }
    let_next_start();
    wait_for_previous();
    __syncthreads();

    bool fresh = p.start[context] <= 0;
    const float* past = p.state + (i64)p.slots[context] * history * C;
    const bf16* input = p.input + (i64)context * p.steps * C;
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * (C / 8); i += THREADS) {
        int r = i / (C / 8), c = i % (C / 8) * 8, t = t0 - history + r;
        uint4 packed = make_uint4(0, 0, 0, 0);
        if (t >= 0 && t < p.steps) {
            packed = snake_8(*(const uint4*)(input + (i64)t * C + c), alpha + c, inverse + c);
        } else if (t < 0 && !fresh) {
            const float* from = past + (i64)(t + history) * C + c;
            packed = make_uint4(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]), pack_bf16(from[4], from[5]),
                                pack_bf16(from[6], from[7]));
        }
        *(uint4*)(window_at + c / SLICE * rows * SLICE_BYTES + place_96(r, c % SLICE / 8)) = packed;
    }

    float acc[MT][NT][4] = {};
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int wm = warp % 4 * 32, wn = warp / 4 * (C / 2);
    for (int q = 0; q < pieces; q++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        int next = q + STAGES - 1;
        if (next < pieces) fetch(next, next % STAGES);
        asm volatile("cp.async.commit_group;" ::: "memory");
        int slice = q / p.taps, tap = q - slice * p.taps;
        u32 a_base = window + slice * rows * SLICE_BYTES, w_base = ring + q % STAGES * STAGE_BYTES;
#pragma unroll
        for (int k = 0; k < SLICE / 16; k++) {
            u32 a[MT][4];
#pragma unroll
            for (int i = 0; i < MT; i++) {
                load_matrix_4(a[i], a_base + place_96(wm + i * 16 + lane % 16 + tap * p.dilation, k * 2 + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < NT; j += 2) {
                u32 b[4];
                load_matrix_4(b, w_base + place_96(wn + j * 8 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma(acc[i][j], a[i], b[0], b[1]);
                    mma(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    Ending ending = {p.out, p.bias, p.residual, C, ACT_NONE, p.out_bf16, p.residual_bf16};
    int first = context * p.steps;
    end_tile<MT, NT>(acc, ending, first + t0 + wm + lane / 4, first + p.steps, wn + lane % 4 * 2, NT);
}

extern "C" __global__ void __launch_bounds__(256, 2) conv_window_96(const __grid_constant__ Window p) {
    conv_window<96>(p);
}
extern "C" __global__ void __launch_bounds__(256, 1) conv_window_192(const __grid_constant__ Window p) {
    conv_window<192>(p);
}

// The same on Hopper's matrix instructions: the window lies as slices of 64 channels, in the layout those take a factor
// in, and a tap is the window begun some rows later. Of a residual unit the second convolution follows at once, over the
// first one's rows in the window's place. A thread keeps to eight channels, of the window as of the result: what belongs
// to channels alone is in its registers before the kernel ahead has ended.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int C, int WG, int STAGES, bool UNIT>
__device__ __forceinline__ void conv_hopper(const Window& p) {
    constexpr int BM = WG * 64, THREADS = WG * 128, SLICES = (C + 63) / 64, REST = C - 64 * (SLICES - 1);
    constexpr int AHEAD = STAGES - 2, STRIDE = C + 8;
    // Threads across a row, rows of all threads at once; the few threads left over rest.
    constexpr int ACROSS = C / 8, DOWN = THREADS / ACROSS;
    constexpr int STEP = THREADS / 8, WR = C / STEP;
    constexpr u32 STAGE_BYTES = C * 128;
    static_assert(C % STEP == 0, "every thread fetches as many weights");
    extern __shared__ u8 shared[];
    __shared__ __align__(16) float bias1[C], alpha2[C], inverse2[C];
    int context = blockIdx.y, t0 = blockIdx.x * BM;
    int history = (p.taps - 1) * p.dilation, rows = BM + history;
    u32 slice_bytes = (rows + 7) / 8 * 1024;
    u32 raw = (u32)__cvta_generic_to_shared(shared), ring = (raw + 1023) & ~1023u, window = ring + STAGES * STAGE_BYTES;
    u8 *aligned = shared + (ring - raw), *window_at = aligned + STAGES * STAGE_BYTES;

    // Weights are fetched one after the other: slice by slice, in a slice tap by tap; then the second convolution's.
    int piece = threadIdx.x % 8, line = threadIdx.x / 8;
    u32 place = ring + line * 128 + ((piece ^ (line & 7)) << 4), filling = 0;
    const bf16* w_at[WR];
#pragma unroll
    for (int i = 0; i < WR; i++) w_at[i] = p.weight + (i64)(line + i * STEP) * p.taps * C + piece * 8;
    int pieces = p.taps * SLICES, to_fetch = UNIT ? pieces + SLICES : pieces;
    int tap_of = 0, slice_of = 0, taps_of = p.taps;
    auto fetch = [&]() {
        if (to_fetch > 0) {
            int from = tap_of * C + slice_of * 64;
            if (REST == 64 || piece < REST / 8 || slice_of + 1 < SLICES) {
#pragma unroll
                for (int i = 0; i < WR; i++) copy_16(place + filling + i * STEP * 128, w_at[i] + from, true);
            }
            to_fetch--;
            if (++tap_of == taps_of) {
                tap_of = 0;
                slice_of++;
                if (UNIT && to_fetch == SLICES) {
                    slice_of = 0;
                    taps_of = 1;
#pragma unroll
                    for (int i = 0; i < WR; i++) w_at[i] = p.weight2 + (i64)(line + i * STEP) * C + piece * 8;
                }
            }
        }
        filling = filling == (STAGES - 1) * STAGE_BYTES ? 0 : filling + STAGE_BYTES;
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int s = 0; s < AHEAD; s++) fetch();

    int c = threadIdx.x % ACROSS * 8, down = threadIdx.x / ACROSS;
    bool works = ACROSS * DOWN == THREADS || down < DOWN;
    float8 alpha = load_8(p.alpha, c, 0), inverse = load_8(p.inverse, c, 0);
    if (UNIT) {
        for (int i = threadIdx.x; i < C; i += THREADS) {
            bias1[i] = p.bias ? p.bias[i] : 0.0f;
            alpha2[i] = p.alpha2[i];
            inverse2[i] = p.inverse2[i];
        }
    }
    let_next_start();
    wait_for_previous();

    auto place_of = [&](int r) { return c / 64 * slice_bytes + r * 128 + ((c % 64 / 8 ^ (r & 7)) << 4); };
    // Only the first rows of a stream's chunk have their history elsewhere.
    int begin = t0 == 0 ? history : 0;
    if (t0 == 0 && works) {
        bool fresh = p.start[context] <= 0;
        const float* past = p.state + (i64)p.slots[context] * history * C + c;
#pragma unroll 4
        for (int r = down; r < history; r += DOWN) {
            float8 x = {};
            if (!fresh) x = load_8(past, (i64)r * C, 0);
            *(uint4*)(window_at + place_of(r)) = make_uint4(pack_bf16(x.low.x, x.low.y), pack_bf16(x.low.z, x.low.w),
                                                            pack_bf16(x.high.x, x.high.y), pack_bf16(x.high.z, x.high.w));
        }
    }
    // Rows past the last repeat it; only results that nobody reads are made of them. Several loads are on their way at once.
    const bf16* input = p.input + (i64)context * p.steps * C + c;
    constexpr int BATCH = 5;
    for (int first = begin + down; first < rows && works; first += BATCH * DOWN) {
        uint4 x[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int t = min(t0 - history + first + k * DOWN, p.steps - 1);
            x[k] = *(const uint4*)(input + (i64)t * C);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int r = first + k * DOWN;
            if (r < rows) *(uint4*)(window_at + place_of(r)) = snake_8(x[k], alpha, inverse);
        }
    }

    float acc[C / 8][4];
    int group = threadIdx.x / 128;
    u32 stage = 0;
    // Where a chunk ends within a block, warpgroups past its end have nothing to multiply; they fetch with the others.
    bool multiplies = t0 + group * 64 < p.steps;
    // One piece of the weights, of WIDE channels, times the rows at `rows_at`.
    auto multiply = [&](auto wide, u32 rows_at, bool begun) {
        constexpr int WIDE = decltype(wide)::COUNT;
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        publish_to_matrices();
        __syncthreads();
        u64 a = factor_at(rows_at), b = factor_at(ring + stage);
        if (multiplies) {
            warpgroup_arrive();
#pragma unroll
            for (int k = 0; k < WIDE / 16; k++) warpgroup_mma(acc, a + 2 * k, b + 2 * k, begun || k > 0);
            warpgroup_commit();
        }
        fetch();
        warpgroup_wait<1>();
        stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    };
    u32 rows_at = window + group * 64 * 128;
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
#pragma unroll 1
        for (int tap = 0; tap < p.taps; tap++) {
            u32 at = rows_at + slice * slice_bytes + tap * p.dilation * 128;
            if (slice + 1 < SLICES) multiply(Count<64>(), at, slice > 0 || tap > 0);
            else multiply(Count<REST>(), at, slice > 0 || tap > 0);
        }
    }
    warpgroup_wait<0>();
    int lane = threadIdx.x % 32, row_of = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4, col_of = lane % 4 * 2;
    if constexpr (UNIT) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < C / 8 && multiplies; j++) {
            int col = j * 8 + col_of;
            float2 bias = *(const float2*)(bias1 + col), a = *(const float2*)(alpha2 + col);
            float2 i = *(const float2*)(inverse2 + col);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = row_of + half * 8;
                float x = snake_fast(acc[j][2 * half] + bias.x, a.x, i.x), y = snake_fast(acc[j][2 * half + 1] + bias.y, a.y, i.y);
                *(u32*)(window_at + j / 8 * BM * 128 + r * 128 + ((j % 8 ^ (r & 7)) << 4) + col_of * 2) = pack_bf16(x, y);
            }
        }
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            u32 at = rows_at + slice * BM * 128;
            if (slice + 1 < SLICES) multiply(Count<64>(), at, slice > 0);
            else multiply(Count<REST>(), at, slice > 0);
        }
        warpgroup_wait<0>();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();

    float* tile = (float*)aligned;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        float* to = tile + row_of * STRIDE + j * 8 + col_of;
        *(float2*)to = make_float2(acc[j][0], acc[j][1]);
        *(float2*)(to + 8 * STRIDE) = make_float2(acc[j][2], acc[j][3]);
    }
    const float* bias_at = UNIT ? p.bias2 : p.bias;
    float8 bias = {};
    if (bias_at) bias = load_8(bias_at, c, 0);
    i64 row0 = (i64)context * p.steps + t0;
    int last = min(BM, p.steps - t0) - 1;
    __syncthreads();
    for (int first = down; first <= last && works; first += BATCH * DOWN) {
        float8 old[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (p.residual) old[k] = load_8(p.residual, (row0 + min(first + k * DOWN, last)) * C + c, p.residual_bf16);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int r = first + k * DOWN;
            if (r > last) break;
            const float* at = tile + r * STRIDE + c;
            float8 x = add({*(const float4*)at, *(const float4*)(at + 4)}, bias);
            if (p.residual) x = add(x, old[k]);
            store_8(p.out, (row0 + r) * C + c, p.out_bf16, x);
        }
    }
}

#define CONV_HOPPER_ENTRY(C, WG, STAGES)                                                                             \
    extern "C" __global__ void __launch_bounds__(WG * 128) conv_hopper_##C(const __grid_constant__ Window p) {       \
        conv_hopper<C, WG, STAGES, false>(p);                                                                        \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(WG * 128) unit_hopper_##C(const __grid_constant__ Window p) {       \
        conv_hopper<C, WG, STAGES, true>(p);                                                                         \
    }
CONV_HOPPER_ENTRY(96, 2, 4)
CONV_HOPPER_ENTRY(192, 3, 4)
#endif

// One output channel: a row's products with all taps' weights are made once, four lanes to a row, and outputs add up the
// rows they reach over. Grid: rows, batch.
constexpr int ONE_ROWS = 256, ONE_TAPS_MAX = 8, ONE_CHANNELS_MAX = 256;

extern "C" __global__ void __launch_bounds__(256) conv_one(const __grid_constant__ Window p, int channels) {
    __shared__ float sums[ONE_ROWS + ONE_TAPS_MAX][ONE_TAPS_MAX + 1];
    __shared__ __align__(16) float weights[ONE_TAPS_MAX][ONE_CHANNELS_MAX], alpha[ONE_CHANNELS_MAX], inverse[ONE_CHANNELS_MAX];
    int context = blockIdx.y, t0 = blockIdx.x * ONE_ROWS, history = p.taps - 1, rows = ONE_ROWS + history;
    for (int i = threadIdx.x; i < p.taps * channels; i += 256) weights[i / channels][i % channels] = load(p.weight + i);
    for (int c = threadIdx.x; c < channels; c += 256) {
        alpha[c] = p.alpha[c];
        inverse[c] = p.inverse[c];
    }
    take_turn();
    __syncthreads();
    bool fresh = p.start[context] <= 0;
    const float* past = p.state + (i64)p.slots[context] * history * channels;
    const bf16* input = p.input + (i64)context * p.steps * channels;
    for (int r = threadIdx.x / 4; r < (rows + 63) / 64 * 64; r += 64) {
        int t = t0 - history + r;
        float sum[ONE_TAPS_MAX] = {};
        bool inside = r < rows && t < p.steps && (t >= 0 || !fresh);
        for (int c = threadIdx.x % 4 * 8; c < channels && inside; c += 32) {
            float8 x;
            if (t >= 0) {
                uint4 raw = snake_8(*(const uint4*)(input + (i64)t * channels + c), alpha + c, inverse + c);
                x = load_8(&raw, 0, 1);
            } else {
                x = load_8(past, (i64)(t + history) * channels + c, 0);
            }
#pragma unroll
            for (int tap = 0; tap < ONE_TAPS_MAX; tap++) {
                if (tap >= p.taps) break;
                float8 w = load_8(weights[tap], c, 0);
                float s = x.low.x * w.low.x + x.low.y * w.low.y + x.low.z * w.low.z + x.low.w * w.low.w;
                sum[tap] += s + x.high.x * w.high.x + x.high.y * w.high.y + x.high.z * w.high.z + x.high.w * w.high.w;
            }
        }
#pragma unroll
        for (int tap = 0; tap < ONE_TAPS_MAX; tap++) {
            sum[tap] += __shfl_xor_sync(0xffffffffu, sum[tap], 1);
            sum[tap] += __shfl_xor_sync(0xffffffffu, sum[tap], 2);
        }
        if (r < rows && threadIdx.x % 4 == 0) {
#pragma unroll
            for (int tap = 0; tap < ONE_TAPS_MAX; tap++) sums[r][tap] = sum[tap];
        }
    }
    __syncthreads();
    int t = t0 + threadIdx.x;
    if (t >= p.steps) return;
    float x = p.bias ? p.bias[0] : 0.0f;
    for (int tap = 0; tap < p.taps; tap++) x += sums[threadIdx.x + tap][tap];
    i64 at = (i64)context * p.steps + t;
    if (p.out_bf16) store((bf16*)p.out + at, x);
    else store((float*)p.out + at, x);
}
