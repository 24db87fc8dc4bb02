// What convolutions need besides their product: rows with their history or padding laid out one after the other.

struct Carry {
    const void* input;
    // `[batch, history + steps, cols]`; absent when only the history is to be moved on.
    void* out;
    const float* alpha;
    const float* inverse;
    float* state;
    const int* slots;
    const int* start;
    const int* valid;
    int history;
    int steps;
    int cols;
    // Rows of the input a valid frame stands for.
    int per_frame;
    // Blocks that copy history; the others copy input.
    int history_blocks;
    int batch;
};

template <class I, class O>
__device__ __forceinline__ float carried(const Carry& p, i64 at, int c) {
    float x = load((const I*)p.input + at);
    return p.alpha ? snake(x, p.alpha[c], p.inverse[c]) : x;
}

// A thread owns one channel of one context: it lays out the history and moves it on by the valid rows, oldest first, a few
// rows at a time, so that nothing is overwritten before it is read.
template <class I, class O>
__device__ __forceinline__ void move_history(const Carry& p) {
    constexpr int BATCH = 9;
    i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    int context = (int)(item / p.cols), c = (int)(item % p.cols);
    if (context >= p.batch) return;
    bool fresh = p.start[context] <= 0;
    float* state = p.state + (i64)p.slots[context] * p.history * p.cols + c;
    if (p.out) {
        O* out = (O*)p.out + (i64)context * (p.history + p.steps) * p.cols + c;
        for (int i = 0; i < p.history; i++) store(out + (i64)i * p.cols, fresh ? 0.0f : state[(i64)i * p.cols]);
    }
    int count = min(max(p.valid[context], 0) * p.per_frame, p.steps);
    for (int first = 0; first < p.history; first += BATCH) {
        float x[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int from = first + k + count;
            if (first + k >= p.history) break;
            if (from < p.history) x[k] = fresh ? 0.0f : state[(i64)from * p.cols];
            else x[k] = carried<I, O>(p, ((i64)context * p.steps + from - p.history) * p.cols + c, c);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (first + k < p.history) state[(i64)(first + k) * p.cols] = x[k];
        }
    }
}

template <class I, class O>
__device__ __forceinline__ void carry(const Carry& p) {
    if ((int)blockIdx.x < p.history_blocks) return move_history<I, O>(p);
    i64 n = (i64)p.batch * p.steps * p.cols, threads = (i64)(gridDim.x - p.history_blocks) * blockDim.x;
    for (i64 i = (i64)(blockIdx.x - p.history_blocks) * blockDim.x + threadIdx.x; i < n; i += threads) {
        i64 row = i / p.cols;
        int c = (int)(i - row * p.cols), context = (int)(row / p.steps);
        store((O*)p.out + (row + (i64)(context + 1) * p.history) * p.cols + c, carried<I, O>(p, i, c));
    }
}

// The same for rows of 16 bits and a multiple of eight channels, eight at a time: a thread takes the same ones of four rows,
// whose loads are on their way together.
extern "C" __global__ void __launch_bounds__(256) carry_eight(const __grid_constant__ Carry p) {
    take_turn();
    if ((int)blockIdx.x < p.history_blocks) return move_history<bf16, bf16>(p);
    int pieces = p.cols / 8, rows = p.batch * p.steps, quarter = (rows + 3) / 4, n = quarter * pieces;
    int threads = (gridDim.x - p.history_blocks) * blockDim.x;
    for (int i = (blockIdx.x - p.history_blocks) * blockDim.x + threadIdx.x; i < n; i += threads) {
        int row = i / pieces, c = (i - row * pieces) * 8;
        uint4 x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = *(const uint4*)((const bf16*)p.input + (i64)min(row + k * quarter, rows - 1) * p.cols + c);
        }
        if (p.alpha) {
            float8 alpha = load_8(p.alpha, c, 0), inverse = load_8(p.inverse, c, 0);
#pragma unroll
            for (int k = 0; k < 4; k++) x[k] = snake_8(x[k], alpha, inverse);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int at = row + k * quarter, context = at / p.steps;
            if (at < rows) *(uint4*)((bf16*)p.out + (at + (i64)(context + 1) * p.history) * p.cols + c) = x[k];
        }
    }
}

// `out[b, t, c] = bias[c] + sum_j weight[j, c] carried[b, t * stride + j * dilation, c]`; a context's rows begin
// `span` rows after the one before.
template <class O>
__device__ __forceinline__ void depthwise(
    const float* carried, int span, int steps, int stride, int dilation, int kernel, int cols, const float* weight,
    const float* bias, O* out, i64 n) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / cols;
        int c = (int)(i - row * cols);
        i64 context = row / steps;
        const float* from = carried + (context * span + (row - context * steps) * stride) * cols + c;
        float x = bias ? bias[c] : 0.0f;
        for (int j = 0; j < kernel; j++) x = fmaf(from[(i64)j * dilation * cols], weight[j * cols + c], x);
        store(out + i, x);
    }
}

// Rows with padding: 0 zeros, 1 mirrored, 2 the border repeated.
extern "C" __global__ void pad_rows(const float* input, int rows, int cols, int left, int mode, float* out, i64 n) {
    take_turn();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 at = i / cols - left, last = rows - 1;
        bool there = true;
        if (mode == 0) there = at >= 0 && at <= last;
        else if (mode == 1) {
            at = at < 0 ? -at : at;
            at = at > last ? 2 * last - at : at;
        } else {
            at = at < 0 ? 0 : at > last ? last : at;
        }
        out[i] = there ? input[at * cols + i % cols] : 0.0f;
    }
}

// Weights laid out for the product: `[out, taps, in]` from `[out, in, taps]`.
extern "C" __global__ void conv_weights(const float* in, float* out, int outputs, int inputs, int kernel) {
    take_turn();
    i64 n = (i64)outputs * inputs * kernel;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 o = i / ((i64)inputs * kernel), rest = i % ((i64)inputs * kernel);
        i64 tap = rest / inputs, c = rest % inputs;
        out[i] = in[(o * inputs + c) * kernel + tap];
    }
}

// `[stride, out, taps, in]` from `[in, out, kernel]`: phase p of the output at input row t takes tap i from row
// `t - (taps - 1) + i`, so the newest row meets kernel place p.
extern "C" __global__ void transposed_weights(const float* in, float* out, int inputs, int outputs, int kernel, int stride) {
    take_turn();
    int taps = kernel / stride;
    i64 n = (i64)inputs * outputs * kernel;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 c = i % inputs, rest = i / inputs;
        i64 tap = rest % taps;
        rest /= taps;
        i64 o = rest % outputs, phase = rest / outputs;
        out[i] = in[(c * outputs + o) * kernel + phase + (taps - 1 - tap) * stride];
    }
}

// `[kernel, channels]` from `[channels, 1, kernel]`.
extern "C" __global__ void depthwise_weights(const float* in, float* out, int channels, int kernel) {
    take_turn();
    int n = channels * kernel;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        out[i] = in[i % channels * kernel + i / channels];
    }
}

extern "C" __global__ void repeat_vector(const float* in, float* out, int n, int times) {
    take_turn();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * times; i += gridDim.x * blockDim.x) out[i] = in[i % n];
}

#define CONV_ENTRY(suffix, I, O)                                                                 \
    extern "C" __global__ void carry_##suffix(const __grid_constant__ Carry p) { take_turn(); carry<I, O>(p); }
CONV_ENTRY(ff, float, float)
CONV_ENTRY(fb, float, bf16)
CONV_ENTRY(bf, bf16, float)
CONV_ENTRY(bb, bf16, bf16)

#define DEPTHWISE_ENTRY(suffix, O)                                                                                \
    extern "C" __global__ void depthwise_##suffix(                                                                \
        const float* carried, int span, int steps, int stride, int dilation, int kernel, int cols,                \
        const float* weight, const float* bias, O* out, i64 n) { take_turn();                                                  \
        depthwise(carried, span, steps, stride, dilation, kernel, cols, weight, bias, out, n);                    \
    }
DEPTHWISE_ENTRY(f, float)
DEPTHWISE_ENTRY(b, bf16)
