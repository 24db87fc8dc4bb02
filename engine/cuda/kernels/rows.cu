// Ops that move rows, norms, and elementwise ops. Row-major `[rows, cols]`.

template <class T, class O>
__device__ __forceinline__ void embed(const T* table, const int* ids, O* out, int cols, int accumulate) {
    int row = blockIdx.x;
    int id = ids[row];
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float x = accumulate ? load(out + (i64)row * cols + c) : 0.0f;
        if (id >= 0) x += load(table + (i64)id * cols + c);
        store(out + (i64)row * cols + c, x);
    }
}

template <class T, class O>
__device__ __forceinline__ void embed_sum(
    const T* const* tables, int count, const int* codes, int groups, O* out, int cols, int accumulate) {
    int row = blockIdx.x;
    for (int c = threadIdx.x + blockIdx.y * blockDim.x; c < cols; c += blockDim.x * gridDim.y) {
        float x = accumulate ? load(out + (i64)row * cols + c) : 0.0f;
        for (int g = 0; g < count; g++) {
            int id = codes[(i64)row * groups + g];
            if (id >= 0) x += load(tables[g] + (i64)id * cols + c);
        }
        store(out + (i64)row * cols + c, x);
    }
}

template <class S, class O>
__device__ __forceinline__ void gather_rows(
    const S* source, const int* rows, O* out, int cols, int accumulate) {
    int row = blockIdx.x;
    int from = rows[row];
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float x = accumulate ? load(out + (i64)row * cols + c) : 0.0f;
        if (from >= 0) x += load(source + (i64)from * cols + c);
        store(out + (i64)row * cols + c, x);
    }
}

// Columns of one matrix into columns of another; also rows under another length, when both are whole.
template <class S, class O>
__device__ __forceinline__ void copy_columns(
    const S* source, int source_cols, int source_first, O* out, int out_cols, int out_first, i64 rows, int width) {
    i64 n = rows * width;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / width;
        int c = (int)(i - row * width);
        store(out + row * out_cols + out_first + c, load(source + row * source_cols + source_first + c));
    }
}

extern "C" __global__ void copy_words(
    const u32* source, int source_cols, int source_first, u32* out, int out_cols, int out_first, i64 rows, int width) {
    take_turn();
    i64 n = rows * width;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / width;
        int c = (int)(i - row * width);
        out[row * out_cols + out_first + c] = source[row * source_cols + source_first + c];
    }
}

extern "C" __global__ void load_state(const u32* state, const int* slots, u32* out, int width) {
    take_turn();
    int row = blockIdx.x;
    const u32* from = state + (i64)slots[row] * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) out[(i64)row * width + c] = from[c];
}

extern "C" __global__ void store_state(u32* state, const int* slots, const u32* source, int width, const int* active) {
    take_turn();
    int row = blockIdx.x;
    if (active && active[row] == 0) return;
    u32* to = state + (i64)slots[row] * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) to[c] = source[(i64)row * width + c];
}

// `out[r] = source[r / times]`.
extern "C" __global__ void repeat_rows(const u32* source, u32* out, int cols, int times) {
    take_turn();
    i64 row = blockIdx.x;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[row * cols + c] = source[row / times * cols + c];
}

extern "C" __global__ void equals(const int* ids, int cols, int id, int* flags, int rows) {
    take_turn();
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) flags[row] = ids[(i64)row * cols] == id;
}

extern "C" __global__ void mask_rows(const float* source, const int* valid, float* out, int cols, int steps, int per_frame) {
    take_turn();
    i64 row = blockIdx.x;
    int kept = max(valid[row / steps], 0) * per_frame;
    bool keep = row % steps < kept;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[row * cols + c] = keep ? source[row * cols + c] : 0.0f;
}

template <class I, class O>
__device__ __forceinline__ void rms_norm(const I* input, const float* weight, float eps, O* out, int cols) {
    __shared__ float scratch[32];
    const I* row = input + (i64)blockIdx.x * cols;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float x = load(row + c);
        squares = fmaf(x, x, squares);
    }
    float scale = rsqrtf(block_sum(squares, scratch) / cols + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        store(out + (i64)blockIdx.x * cols + c, load(row + c) * scale * weight[c]);
    }
}

template <class I, class O>
__device__ __forceinline__ void layer_norm(
    const I* input, const float* weight, const float* bias, float eps, O* out, int cols) {
    __shared__ float scratch[32];
    const I* row = input + (i64)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += load(row + c);
    float mean = block_sum(sum, scratch) / cols;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float d = load(row + c) - mean;
        squares = fmaf(d, d, squares);
    }
    float scale = rsqrtf(block_sum(squares, scratch) / cols + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        store(out + (i64)blockIdx.x * cols + c, fmaf((load(row + c) - mean) * scale, weight[c], bias[c]));
    }
}

// `target += input * scale`, `scale` per column or absent.
template <class T, class I>
__device__ __forceinline__ void add_scaled(T* target, const I* input, const float* scale, int cols, i64 n) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        float x = load(input + i);
        store(target + i, fmaf(x, scale ? scale[i % cols] : 1.0f, load(target + i)));
    }
}

// `b` has one row for each `repeat` rows of `a`.
extern "C" __global__ void multiply(const float* a, const float* b, float* out, int cols, int repeat, i64 n) {
    take_turn();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / cols;
        out[i] = a[i] * b[row / repeat * cols + i % cols];
    }
}

template <class I, class O>
__device__ __forceinline__ void activate_all(const I* input, int kind, O* out, i64 n) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        store(out + i, activate(kind, load(input + i)));
    }
}

// A value that is not a number stays one, so that the host sees it.
template <class I, class O>
__device__ __forceinline__ void clamp_all(const I* input, float low, float high, O* out, i64 n) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        float x = load(input + i);
        store(out + i, x < low ? low : x > high ? high : x);
    }
}

template <class I, class O>
__device__ __forceinline__ void snake_all(const I* input, const float* alpha, const float* inverse, O* out, int cols, i64 n) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        int c = (int)(i % cols);
        store(out + i, snake(load(input + i), alpha[c], inverse[c]));
    }
}

extern "C" __global__ void to_bf16(const float* input, bf16* out, i64 n) {
    take_turn();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) store(out + i, input[i]);
}

// `exp(alpha)` and `1 / (exp(beta) + 1e-9)`.
extern "C" __global__ void snake_tables(const float* alpha, const float* beta, float* exp_alpha, float* inverse, int n) {
    take_turn();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        exp_alpha[i] = expf(alpha[i]);
        inverse[i] = 1.0f / (expf(beta[i]) + 1e-9f);
    }
}

extern "C" __global__ void poison(u32* words, i64 n) {
    take_turn();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) words[i] = 0x7fc07fc0u;
}

// One entry point for each pair of element types: `f` is f32, `b` is bf16; input (or weight) first.
#define ROWS_ENTRY(suffix, A, B)                                                                                      \
    extern "C" __global__ void embed_##suffix(const A* t, const int* ids, B* out, int cols, int acc) { take_turn();                \
        embed(t, ids, out, cols, acc);                                                                                \
    }                                                                                                                 \
    extern "C" __global__ void embed_sum_##suffix(                                                                    \
        const A* const* t, int count, const int* codes, int groups, B* out, int cols, int acc) { take_turn();                      \
        embed_sum(t, count, codes, groups, out, cols, acc);                                                           \
    }                                                                                                                 \
    extern "C" __global__ void gather_rows_##suffix(const A* s, const int* rows, B* out, int cols, int acc) { take_turn();         \
        gather_rows(s, rows, out, cols, acc);                                                                         \
    }                                                                                                                 \
    extern "C" __global__ void copy_##suffix(const A* s, int sc, int sf, B* out, int oc, int of, i64 rows, int w) { take_turn();   \
        copy_columns(s, sc, sf, out, oc, of, rows, w);                                                                \
    }                                                                                                                 \
    extern "C" __global__ void rms_norm_##suffix(const A* in, const float* w, float eps, B* out, int cols) { take_turn();          \
        rms_norm(in, w, eps, out, cols);                                                                              \
    }                                                                                                                 \
    extern "C" __global__ void layer_norm_##suffix(                                                                   \
        const A* in, const float* w, const float* b, float eps, B* out, int cols) { take_turn();                                   \
        layer_norm(in, w, b, eps, out, cols);                                                                         \
    }                                                                                                                 \
    extern "C" __global__ void add_scaled_##suffix(B* target, const A* in, const float* scale, int cols, i64 n) { take_turn();     \
        add_scaled(target, in, scale, cols, n);                                                                       \
    }                                                                                                                 \
    extern "C" __global__ void activate_##suffix(const A* in, int kind, B* out, i64 n) { take_turn();                              \
        activate_all(in, kind, out, n);                                                                               \
    }                                                                                                                 \
    extern "C" __global__ void clamp_##suffix(const A* in, float low, float high, B* out, i64 n) { take_turn();                    \
        clamp_all(in, low, high, out, n);                                                                             \
    }                                                                                                                 \
    extern "C" __global__ void snake_##suffix(                                                                        \
        const A* in, const float* alpha, const float* inverse, B* out, int cols, i64 n) { take_turn();                             \
        snake_all(in, alpha, inverse, out, cols, n);                                                                  \
    }

ROWS_ENTRY(ff, float, float)
ROWS_ENTRY(fb, float, bf16)
ROWS_ENTRY(bf, bf16, float)
ROWS_ENTRY(bb, bf16, bf16)

// As rms_norm, a thread to four columns: all of a row is on its way at once, and read once.
extern "C" __global__ void rms_norm_wide(const float* in, const float* w, float eps, bf16* out, int cols) {
    take_turn();
    __shared__ float scratch[32];
    i64 at = (i64)blockIdx.x * cols + threadIdx.x * 4;
    float4 x = load_4(in + at), weight = load_4(w + threadIdx.x * 4);
    float squares = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    float scale = rsqrtf(block_sum(squares, scratch) / cols + eps);
    store_4(out + at, make_float4(x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z, x.w * scale * weight.w));
}

// silu(gate) * up, eight columns a thread; a row of `in` holds the gates, then as many ups.
extern "C" __global__ void gated_silu(const bf16* in, bf16* out, int inner, i64 n) {
    take_turn();
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= n) return;
    const bf16* gates = in + at / inner * 2 * inner + at % inner;
    uint4 g = *(const uint4*)gates, u = *(const uint4*)(gates + inner);
    u32 gate[4] = {g.x, g.y, g.z, g.w}, up[4] = {u.x, u.y, u.z, u.w}, made[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = __uint_as_float(gate[i] << 16), b = __uint_as_float(gate[i] & 0xffff0000u);
        made[i] = pack_bf16(a / (1.0f + __expf(-a)) * __uint_as_float(up[i] << 16),
                            b / (1.0f + __expf(-b)) * __uint_as_float(up[i] & 0xffff0000u));
    }
    *(uint4*)(out + at) = make_uint4(made[0], made[1], made[2], made[3]);
}
