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
};

// For arguments within some thousand turns, to the accuracy of bf16 many times over.
__device__ __forceinline__ float snake_fast(float x, float alpha, float inverse) {
    float y = x * alpha;
    float turns = rintf(y * 0.15915494309f);
    y = fmaf(turns, -6.28125f, y);
    y = fmaf(turns, -1.9353071795e-3f, y);
    float s = __sinf(y);
    return fmaf(inverse, s * s, x);
}

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
            uint4 raw = *(const uint4*)(input + (i64)t * C + c);
            u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float a = snake_fast(__uint_as_float(words[k] << 16), alpha[c + 2 * k], inverse[c + 2 * k]);
                float b = snake_fast(__uint_as_float(words[k] & 0xffff0000u), alpha[c + 2 * k + 1], inverse[c + 2 * k + 1]);
                words[k] = pack_bf16(a, b);
            }
            packed = make_uint4(words[0], words[1], words[2], words[3]);
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
