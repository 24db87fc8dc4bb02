// Attention. Heads are normed and turned first (RMS norm per head, half-split rotary embedding), then each
// query head attends on its own: 32 keys at a time, a lane to a key for the scores, a lane to a column for the
// weighted values, with a running maximum.

// One head of `row` into shared memory, normed and turned. All threads of the block take part.
__device__ __forceinline__ void prepare(
    const float* row, const float* norm, const Heads& h, int position, float* out, float* scratch) {
    int dim = h.dim, half = dim / 2;
    float scale = 1.0f;
    if (norm) {
        float squares = 0.0f;
        for (int c = threadIdx.x; c < dim; c += blockDim.x) squares = fmaf(row[c], row[c], squares);
        scale = rsqrtf(block_sum(squares, scratch) / dim + h.eps);
    }
    for (int c = threadIdx.x; c < half; c += blockDim.x) {
        float a = row[c] * scale, b = row[c + half] * scale;
        if (norm) {
            a *= norm[c];
            b *= norm[c + half];
        }
        if (h.frequencies) {
            float s, t;
            sincosf((float)position * h.frequencies[c], &s, &t);
            float x = a;
            a = fmaf(x, t, -(b * s));
            b = fmaf(b, t, x * s);
        }
        out[c] = a;
        out[c + half] = b;
    }
}

// Running softmax of one query over keys, by one warp; lane l holds columns l * PARTS and on.
template <int PARTS>
struct Sum {
    float top = minus_infinity();
    float mass = 0.0f;
    float values[PARTS] = {};
};

// Sixteen bytes at a time where rows allow it.
__device__ __forceinline__ float dot(const float* q, const float* key, int dim) {
    float x = 0.0f;
    if (dim % 4 == 0) {
        for (int c = 0; c < dim; c += 4) {
            float4 k = *(const float4*)(key + c);
            x = fmaf(q[c], k.x, x);
            x = fmaf(q[c + 1], k.y, x);
            x = fmaf(q[c + 2], k.z, x);
            x = fmaf(q[c + 3], k.w, x);
        }
    } else {
        for (int c = 0; c < dim; c++) x = fmaf(q[c], key[c], x);
    }
    return x;
}

__device__ __forceinline__ float dot(const float* q, const bf16* key, int dim) {
    float x = 0.0f;
    if (dim % 8 == 0) {
#pragma unroll 4
        for (int c = 0; c < dim; c += 8) {
            uint4 k = *(const uint4*)(key + c);
            u32 words[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x = fmaf(q[c + 2 * i], __uint_as_float(words[i] << 16), x);
                x = fmaf(q[c + 2 * i + 1], __uint_as_float(words[i] & 0xffff0000u), x);
            }
        }
    } else {
        for (int c = 0; c < dim; c++) x = fmaf(q[c], load(key + c), x);
    }
    return x;
}

template <int PARTS>
__device__ __forceinline__ void weigh(Sum<PARTS>& sum, float w, const float* value, int dim) {
    int c = threadIdx.x % 32 * PARTS;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        if (c + i < dim) sum.values[i] = fmaf(w, value[c + i], sum.values[i]);
    }
}

template <int PARTS>
__device__ __forceinline__ void weigh(Sum<PARTS>& sum, float w, const bf16* value, int dim) {
    int c = threadIdx.x % 32 * PARTS;
    if constexpr (PARTS % 2 == 0) {
        if (dim == 32 * PARTS) {
#pragma unroll
            for (int i = 0; i < PARTS; i += 2) {
                u32 two = *(const u32*)(value + c + i);
                sum.values[i] = fmaf(w, __uint_as_float(two << 16), sum.values[i]);
                sum.values[i + 1] = fmaf(w, __uint_as_float(two & 0xffff0000u), sum.values[i + 1]);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        if (c + i < dim) sum.values[i] = fmaf(w, load(value + c + i), sum.values[i]);
    }
}

// Up to 32 keys, a lane to a key: `key` and `value` are the lane's own.
template <int PARTS, class K, class V>
__device__ __forceinline__ void attend_tile(
    Sum<PARTS>& sum, const float* q, float scale, int dim, int count, const K* key, const V* value) {
    int lane = threadIdx.x % 32;
    // Opaque, so that no trip count is derived from how the caller bounds its keys: assembled by CUDA 13.0, a chain of
    // minima and maxima over them ended the loop below after one key.
    asm volatile("" : "+r"(count));
    float score = lane < count ? dot(q, key, dim) * scale : minus_infinity();
    float top = fmaxf(sum.top, warp_max(score));
    float weight = lane < count ? expf(score - top) : 0.0f;
    float old = expf(sum.top - top);
    sum.mass = sum.mass * old + warp_sum(weight);
    sum.top = top;
#pragma unroll
    for (int i = 0; i < PARTS; i++) sum.values[i] *= old;
#pragma unroll 4
    for (int j = 0; j < count; j++) {
        float w = __shfl_sync(0xffffffffu, weight, j);
        const V* at = (const V*)__shfl_sync(0xffffffffu, (u64)value, j);
        weigh(sum, w, at, dim);
    }
}

template <class T>
__device__ __forceinline__ T* key_at(const Keys& keys, const Heads& h, int row, int position, int kv_head) {
    int page, at;
    if (keys.table) {
        page = keys.table[(i64)keys.owner[row] * keys.table_cols + position / keys.page_len];
        at = position % keys.page_len;
    } else {
        page = row / h.steps;
        at = position;
    }
    return (T*)keys.pages + page * keys.page_stride + (i64)at * h.kv_heads * h.dim + (i64)kv_head * h.dim;
}

// Norms and turns the keys of all rows and stores them with their values. Grid: kv heads, rows.
template <class T>
__device__ __forceinline__ void append(const Heads& h, const Keys& keys) {
    __shared__ float ready[DIM_MAX], scratch[32];
    int row = blockIdx.y, kv_head = blockIdx.x;
    int position = position_of(h, row);
    if (position < 0) return;
    i64 from = (i64)row * h.kv_stride + kv_head * h.dim;
    prepare(h.k + from, h.k_norm, h, position, ready, scratch);
    __syncthreads();
    T* to = key_at<T>(keys, h, row, position, kv_head);
    for (int c = threadIdx.x; c < h.dim; c += blockDim.x) {
        store(to + c, ready[c]);
        store(to + keys.values + c, h.v[from + c]);
    }
}

// Grid: heads, rows. With `fused` the row's own key is made here (and stored by the first of its query heads);
// else all keys have been appended. Attends to the last `window` positions.
template <int PARTS, class T, class O>
__device__ __forceinline__ void attend(const Heads& h, const Keys& keys, int window, int fused, O* out) {
    __shared__ __align__(16) float q[DIM_MAX], own_key[DIM_MAX], scratch[32];
    __shared__ float tops[WARPS], masses[WARPS], parts[WARPS][DIM_MAX];
    int row = blockIdx.y, head = blockIdx.x, sharing = h.heads / h.kv_heads, kv_head = head / sharing;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = h.dim;
    O* to = out + ((i64)row * h.heads + head) * dim;
    int position = position_of(h, row);
    if (position < 0) {
        for (int c = threadIdx.x; c < dim; c += blockDim.x) store(to + c, 0.0f);
        return;
    }
    prepare(h.q + (i64)row * h.q_stride + head * dim, h.q_norm, h, position, q, scratch);
    const float* own_value = h.v + (i64)row * h.kv_stride + kv_head * dim;
    if (fused) {
        prepare(h.k + (i64)row * h.kv_stride + kv_head * dim, h.k_norm, h, position, own_key, scratch);
    }
    __syncthreads();
    if (fused && head % sharing == 0) {
        T* stored = key_at<T>(keys, h, row, position, kv_head);
        for (int c = threadIdx.x; c < dim; c += blockDim.x) {
            store(stored + c, own_key[c]);
            store(stored + keys.values + c, own_value[c]);
        }
    }
    int begin = max(0, position + 1 - window), end = fused ? position : position + 1;
    Sum<PARTS> sum;
    for (int first = begin + warp * 32; first < end; first += WARPS * 32) {
        int count = min(32, end - first);
        const T* key = key_at<T>(keys, h, row, first + min(lane, count - 1), kv_head);
        attend_tile(sum, q, h.scale, dim, count, key, key + keys.values);
    }
    if (fused && warp == 0) {
        // As stored: rounded, so that a row reads the same key now and later.
        float x = 0.0f;
        for (int c = lane; c < dim; c += 32) {
            T rounded;
            store(&rounded, own_key[c]);
            x = fmaf(q[c], load(&rounded), x);
        }
        float score = warp_sum(x) * h.scale;
        float top = fmaxf(sum.top, score), old = expf(sum.top - top), weight = expf(score - top);
        sum.mass = sum.mass * old + weight;
        sum.top = top;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int c = lane * PARTS + i;
            if (c < dim) {
                T rounded;
                store(&rounded, own_value[c]);
                sum.values[i] = fmaf(weight, load(&rounded), sum.values[i] * old);
            }
        }
    }
    if (lane == 0) {
        tops[warp] = sum.top;
        masses[warp] = sum.mass;
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int c = lane * PARTS + i;
        if (c < dim) parts[warp][c] = sum.values[i];
    }
    __syncthreads();
    float top = minus_infinity();
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
    float mass = 0.0f;
    for (int w = 0; w < WARPS; w++) mass += masses[w] * expf(tops[w] - top);
    for (int c = threadIdx.x; c < dim; c += blockDim.x) {
        float x = 0.0f;
        for (int w = 0; w < WARPS; w++) x = fmaf(parts[w][c], expf(tops[w] - top), x);
        store(to + c, x / mass);
    }
}

// One head of `row` into shared memory, normed and turned, by one warp.
__device__ __forceinline__ void prepare_by_warp(const float* row, const float* norm, const Heads& h, int position, float* out) {
    int dim = h.dim, half = dim / 2, lane = threadIdx.x % 32;
    float scale = 1.0f;
    if (norm) {
        float squares = 0.0f;
        for (int c = lane; c < dim; c += 32) squares = fmaf(row[c], row[c], squares);
        scale = rsqrtf(warp_sum(squares) / dim + h.eps);
    }
    for (int c = lane; c < half; c += 32) {
        float a = row[c] * scale, b = row[c + half] * scale;
        if (norm) {
            a *= norm[c];
            b *= norm[c + half];
        }
        if (h.frequencies) {
            float s, cosine;
            sincosf((float)position * h.frequencies[c], &s, &cosine);
            float x = a;
            a = fmaf(x, cosine, -(b * s));
            b = fmaf(b, cosine, x * s);
        }
        out[c] = a;
        out[c + half] = b;
    }
    __syncwarp();
}

// A row's one new key and the few before it, in f32: a warp a head, nothing shared between warps. A lane holds a key,
// so at most 32 fit.
template <int PARTS, class O>
__device__ __forceinline__ void attend_short(const Heads& h, const Keys& keys, int rows, O* out) {
    __shared__ __align__(16) float q[WARPS][DIM_MAX], own[WARPS][DIM_MAX];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = h.dim;
    int item = blockIdx.x * WARPS + warp, row = item / h.heads, head = item % h.heads;
    if (row >= rows) return;
    int sharing = h.heads / h.kv_heads, kv_head = head / sharing, position = position_of(h, row);
    i64 from = (i64)row * h.kv_stride + kv_head * dim;
    prepare_by_warp(h.q + (i64)row * h.q_stride + head * dim, h.q_norm, h, position, q[warp]);
    prepare_by_warp(h.k + from, h.k_norm, h, position, own[warp]);
    float* stored = key_at<float>(keys, h, row, position, kv_head);
    if (head % sharing == 0) {
        for (int c = lane; c < dim; c += 32) {
            stored[c] = own[warp][c];
            stored[keys.values + c] = h.v[from + c];
        }
    }
    const float *key = own[warp], *value = h.v + from;
    if (lane < position) {
        key = key_at<float>(keys, h, row, lane, kv_head);
        value = key + keys.values;
    }
    Sum<PARTS> sum;
    attend_tile(sum, q[warp], h.scale, dim, position + 1, key, value);
    O* to = out + ((i64)row * h.heads + head) * dim;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int c = lane * PARTS + i;
        if (c < dim) store(to + c, sum.values[i] / sum.mass);
    }
}

// Attention over a carried window. Grid: kv heads, batch. `state` holds, per slot, `window - 1` keys, then as
// many values, oldest first. Moves the window on by the row's valid steps.
template <int PARTS, class O>
__device__ __forceinline__ void attend_window(
    const Heads& h, float* state, const int* slots, const int* start, const int* valid, int window, O* out) {
    extern __shared__ __align__(16) float fresh[];
    __shared__ __align__(16) float q[WARPS][DIM_MAX];
    __shared__ float scratch[32];
    int context = blockIdx.y, kv_head = blockIdx.x, sharing = h.heads / h.kv_heads;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = h.dim, steps = h.steps, past = window - 1;
    int kv_width = h.kv_heads * dim, origin = max(start[context], 0);
    float* stored = state + (i64)slots[context] * 2 * past * kv_width + kv_head * dim;
    const float* values = h.v + (i64)context * steps * h.kv_stride + kv_head * dim;
    for (int t = 0; t < steps; t++) {
        prepare(h.k + ((i64)context * steps + t) * h.kv_stride + kv_head * dim, h.k_norm, h, origin + t,
                fresh + t * dim, scratch);
    }
    __syncthreads();
    int half = dim / 2;
    for (int item = warp; item < steps * sharing; item += WARPS) {
        int t = item / sharing, head = kv_head * sharing + item % sharing;
        const float* from = h.q + ((i64)context * steps + t) * h.q_stride + head * dim;
        for (int c = lane; c < half; c += 32) {
            float a = from[c], b = from[c + half];
            if (h.frequencies) {
                float s, cosine;
                sincosf((float)(origin + t) * h.frequencies[c], &s, &cosine);
                float x = a;
                a = fmaf(x, cosine, -(b * s));
                b = fmaf(b, cosine, x * s);
            }
            q[warp][c] = a;
            q[warp][c + half] = b;
        }
        __syncwarp();
        int before = min(past, origin + t), near = min(before, t), far = before - near;
        Sum<PARTS> sum;
        for (int first = 0; first < far; first += 32) {
            int count = min(32, far - first);
            const float* key = stored + (i64)(past - far + first + min(lane, count - 1)) * kv_width;
            attend_tile(sum, q[warp], h.scale, dim, count, key, key + (i64)past * kv_width);
        }
        for (int first = 0; first <= near; first += 32) {
            int count = min(32, near + 1 - first), row = t - near + first + min(lane, count - 1);
            attend_tile(sum, q[warp], h.scale, dim, count, fresh + row * dim, values + (i64)row * h.kv_stride);
        }
        O* to = out + (((i64)context * steps + t) * h.heads + head) * dim;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int c = lane * PARTS + i;
            if (c < dim) store(to + c, sum.values[i] / sum.mass);
        }
        __syncwarp();
    }
    __syncthreads();
    // Each thread moves its own columns on, oldest first, so that nothing is overwritten before it is read.
    int count = min(max(valid[context], 0), steps);
    for (int c = threadIdx.x; c < 2 * dim; c += blockDim.x) {
        bool key = c < dim;
        int column = key ? c : c - dim;
        float* place = stored + (key ? 0 : (i64)past * kv_width) + column;
        for (int i = 0; i < past; i++) {
            int from = i + count;
            float x;
            if (from < past) x = place[(i64)from * kv_width];
            else if (key) x = fresh[(from - past) * dim + column];
            else x = values[(i64)(from - past) * h.kv_stride + column];
            place[(i64)i * kv_width] = x;
        }
    }
}

// The same where the whole window fits a block's shared memory, which then fetches it once, all of it on its way at the
// same time, and moves it on from there. Rows of keys, then of values, oldest first: `window - 1` of the state, then the new
// ones; a row is padded so that lanes reading a key each do not meet in a bank.
constexpr int WINDOW_PAD = 4;

template <int PARTS, class O>
__device__ __forceinline__ void attend_held(
    const Heads& h, float* state, const int* slots, const int* start, const int* valid, int window, O* out) {
    constexpr int DIM = 32 * PARTS, ROW = DIM + WINDOW_PAD, PIECES = DIM / 4, HALF = DIM / 2;
    extern __shared__ __align__(16) float held[];
    __shared__ __align__(16) float q[WARPS][DIM];
    int context = blockIdx.y, kv_head = blockIdx.x, sharing = h.heads / h.kv_heads, steps = h.steps, past = window - 1;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_width = h.kv_heads * DIM, origin = max(start[context], 0);
    int all = past + steps;
    float* stored = state + (i64)slots[context] * 2 * past * kv_width + kv_head * DIM;
    float *keys = held, *values = held + all * ROW;
    u32 held_at = (u32)__cvta_generic_to_shared(held);
    int piece = threadIdx.x % PIECES, row0 = threadIdx.x / PIECES;
    constexpr int DOWN = WARPS * 32 / PIECES;
    for (int i = row0; i < 2 * past; i += DOWN) {
        int to = i < past ? i : i - past + all;
        copy_16(held_at + (to * ROW + piece * 4) * 4, stored + (i64)i * kv_width + piece * 4, true);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    auto turn = [&](const float* from, int c, int position, float* to) {
        float a = from[c], b = from[c + HALF];
        if (h.frequencies) {
            float s, cosine;
            sincosf((float)position * h.frequencies[c], &s, &cosine);
            float x = a;
            a = fmaf(x, cosine, -(b * s));
            b = fmaf(b, cosine, x * s);
        }
        to[c] = a;
        to[c + HALF] = b;
    };
    for (int i = threadIdx.x; i < steps * HALF; i += WARPS * 32) {
        int t = i / HALF;
        i64 from = ((i64)context * steps + t) * h.kv_stride + kv_head * DIM;
        turn(h.k + from, i % HALF, origin + t, keys + (past + t) * ROW);
    }
    for (int i = threadIdx.x; i < steps * PIECES; i += WARPS * 32) {
        int t = i / PIECES, c = i % PIECES * 4;
        store_4(values + (past + t) * ROW + c, load_4(h.v + ((i64)context * steps + t) * h.kv_stride + kv_head * DIM + c));
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    for (int item = warp; item < steps * sharing; item += WARPS) {
        int t = item / sharing, head = kv_head * sharing + item % sharing;
        const float* from = h.q + ((i64)context * steps + t) * h.q_stride + head * DIM;
        for (int c = lane; c < HALF; c += 32) turn(from, c, origin + t, q[warp]);
        __syncwarp();
        int before = min(past, origin + t), begin = past + t - before;
        Sum<PARTS> sum;
        for (int first = 0; first <= before; first += 32) {
            int count = min(32, before + 1 - first);
            // As in `attend_tile`.
            asm volatile("" : "+r"(count));
            const float* key = keys + (begin + first + min(lane, count - 1)) * ROW;
            float score = 0.0f;
#pragma unroll
            for (int c = 0; c < DIM; c += 4) {
                float4 a = load_4(q[warp] + c), b = load_4(key + c);
                score = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, score))));
            }
            score = lane < count ? score * h.scale : minus_infinity();
            float top = fmaxf(sum.top, warp_max(score)), weight = expf(score - top), old = expf(sum.top - top);
            sum.mass = sum.mass * old + warp_sum(weight);
            sum.top = top;
#pragma unroll
            for (int i = 0; i < PARTS; i++) sum.values[i] *= old;
            const float* value = values + (begin + first) * ROW + lane * PARTS;
#pragma unroll 8
            for (int j = 0; j < count; j++, value += ROW) {
                float w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
                for (int i = 0; i < PARTS; i++) sum.values[i] = fmaf(w, value[i], sum.values[i]);
            }
        }
        O* to = out + (((i64)context * steps + t) * h.heads + head) * DIM + lane * PARTS;
#pragma unroll
        for (int i = 0; i < PARTS; i++) store(to + i, sum.values[i] / sum.mass);
        __syncwarp();
    }
    int count = min(max(valid[context], 0), steps);
    for (int i = row0; i < 2 * past; i += DOWN) {
        int from = (i < past ? i : i - past + all) + count;
        store_4(stored + (i64)i * kv_width + piece * 4, load_4(held + from * ROW + piece * 4));
    }
}

// Suffix: type of stored keys.
#define APPEND_ENTRY(suffix, T)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) append_##suffix(                                             \
        const __grid_constant__ Heads h, const __grid_constant__ Keys k) { take_turn(); append<T>(h, k); }
APPEND_ENTRY(f, float)
APPEND_ENTRY(b, bf16)

// Suffix: type of stored keys, type of the result, columns a lane holds.
#define ATTEND_ENTRY(suffix, T, O, PARTS)                                                                          \
    extern "C" __global__ void __launch_bounds__(128) attend_##suffix##_##PARTS(                                   \
        const __grid_constant__ Heads h, const __grid_constant__ Keys k, int window, int fused, O* out) {          \
        take_turn();                                                                                               \
        attend<PARTS, T, O>(h, k, window, fused, out);                                                             \
    }
#define SHORT_ENTRY(suffix, O, PARTS)                                                                              \
    extern "C" __global__ void __launch_bounds__(128) attend_short_##suffix##_##PARTS(                             \
        const __grid_constant__ Heads h, const __grid_constant__ Keys k, int rows, O* out) {                       \
        take_turn();                                                                                               \
        attend_short<PARTS, O>(h, k, rows, out);                                                                   \
    }
#define WINDOW_ENTRY(family, suffix, O, PARTS)                                                                     \
    extern "C" __global__ void __launch_bounds__(128) attend_##family##_##suffix##_##PARTS(                        \
        const __grid_constant__ Heads h, float* state, const int* slots, const int* start, const int* valid,       \
        int window, O* out) {                                                                                      \
        take_turn();                                                                                               \
        attend_##family<PARTS, O>(h, state, slots, start, valid, window, out);                                     \
    }
#define ALL_PARTS(ENTRY, ...) ENTRY(__VA_ARGS__, 1) ENTRY(__VA_ARGS__, 2) ENTRY(__VA_ARGS__, 4) ENTRY(__VA_ARGS__, 8)

ALL_PARTS(ATTEND_ENTRY, ff, float, float)
ALL_PARTS(ATTEND_ENTRY, fb, float, bf16)
ALL_PARTS(ATTEND_ENTRY, bf, bf16, float)
ALL_PARTS(ATTEND_ENTRY, bb, bf16, bf16)
ALL_PARTS(WINDOW_ENTRY, window, f, float)
ALL_PARTS(WINDOW_ENTRY, window, b, bf16)
ALL_PARTS(SHORT_ENTRY, f, float)
ALL_PARTS(SHORT_ENTRY, b, bf16)
WINDOW_ENTRY(held, f, float, 1) WINDOW_ENTRY(held, f, float, 2) WINDOW_ENTRY(held, f, float, 4)
WINDOW_ENTRY(held, b, bf16, 1) WINDOW_ENTRY(held, b, bf16, 2) WINDOW_ENTRY(held, b, bf16, 4)
