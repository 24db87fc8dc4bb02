// Attention of one new position a row, for heads of 128 columns of which two share a key: what a decode step and a
// frame's own transformer do most. Both heads meet a key once it is read.
//
// A lane holds 16 bytes of a key. Eight loads of keys and eight of values are in flight together; their 16 scores (two
// heads by eight) are summed over the lanes that share a key by halving, which leaves score `head * 8 + load` to the
// lane of that number.

constexpr int PAIR_DIM = 128, PAIR_LOADS = 8;

// Four neighbouring columns a lane of one head, normed and turned. All lanes of the warp take part.
__device__ __forceinline__ float4 prepare_4(const float* row, const float* norm, const Heads& h, int position) {
    int lane = threadIdx.x % 32;
    // All that is loaded is on its way before any of it is waited for.
    float4 x = load_4(row + lane * 4), w = x, f = x;
    if (norm) w = load_4(norm + lane * 4);
    if (h.frequencies) f = load_4(h.frequencies + lane % 16 * 4);
    if (norm) {
        float squares = x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        float scale = rsqrtf(warp_sum(squares) / PAIR_DIM + h.eps);
        x = make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
    }
    if (h.frequencies) {
        float own[4] = {x.x, x.y, x.z, x.w}, angles[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // The other half of the head lies 16 lanes away.
            float other = __shfl_xor_sync(0xffffffffu, own[i], 16);
            float angle = (float)position * angles[i], turns = rintf(angle * 0.15915494309f);
            angle = fmaf(turns, -6.28125f, angle);
            angle = fmaf(turns, -1.9353071795e-3f, angle);
            float s = __sinf(angle), c = __cosf(angle);
            own[i] = fmaf(own[i], c, lane < 16 ? -(other * s) : other * s);
        }
        x = make_float4(own[0], own[1], own[2], own[3]);
    }
    return x;
}

// Columns a lane holds of a key, and lanes that share one.
constexpr int PAIR_COLUMNS = 8, PAIR_LANES = 16;

__device__ __forceinline__ void spread(uint4 raw, float (&x)[PAIR_COLUMNS]) {
    u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// Of `2 D` sums a lane keeps half, and adds what the lane `D` away has of them.
template <int D>
__device__ __forceinline__ void halve(float (&s)[16], int lane) {
    bool upper = lane & D;
#pragma unroll
    for (int i = 0; i < D; i++) {
        float sent = upper ? s[i] : s[i + D], kept = upper ? s[i + D] : s[i];
        s[i] = kept + __shfl_xor_sync(0xffffffffu, sent, D);
    }
}

// Running softmax of two queries over the keys one warp reads. `top` and `mass` belong to the head `lane % 16 / 8`; the
// values of key lanes that lie apart are summed at the end.
struct Pair {
    static constexpr int COUNT = PAIR_COLUMNS, SHARES = 32 / PAIR_LANES;
    float q[2][COUNT];
    float values[2][COUNT] = {};
    float top = minus_infinity(), mass = 0.0f;

    // `count` of the SHARES * 8 keys are there; load i of a lane is key `i * SHARES + lane / PAIR_LANES`.
    __device__ __forceinline__ void add(const uint4 (&keys)[PAIR_LOADS], const uint4 (&rows)[PAIR_LOADS], int count) {
        int lane = threadIdx.x % 32;
        float s[16];
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            float k[COUNT];
            spread(keys[i], k);
            float a = 0.0f, b = 0.0f;
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                a = fmaf(q[0][c], k[c], a);
                b = fmaf(q[1][c], k[c], b);
            }
            s[i] = a;
            s[8 + i] = b;
        }
        halve<8>(s, lane);
        halve<4>(s, lane);
        halve<2>(s, lane);
        halve<1>(s, lane);
        int mine = lane % 8 * SHARES + lane / PAIR_LANES;
        float score = mine < count ? s[0] : minus_infinity();
        float best = score;
#pragma unroll
        for (int d = 1; d < 8; d <<= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, d));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 16));
        best = fmaxf(best, top);
        float old = __expf(top - best), weight = __expf(score - best);
        top = best;
        mass = fmaf(mass, old, weight);
        float olds[2] = {__shfl_sync(0xffffffffu, old, 0), __shfl_sync(0xffffffffu, old, 8)};
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            values[0][c] *= olds[0];
            values[1][c] *= olds[1];
        }
        int from = lane & 16;
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            float v[COUNT];
            spread(rows[i], v);
            float a = __shfl_sync(0xffffffffu, weight, from + i), b = __shfl_sync(0xffffffffu, weight, from + 8 + i);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                values[0][c] = fmaf(a, v[c], values[0][c]);
                values[1][c] = fmaf(b, v[c], values[1][c]);
            }
        }
    }

    // Every lane the whole mass of its head, and the values of its columns.
    __device__ __forceinline__ void gather() {
#pragma unroll
        for (int d = 1; d < 8; d <<= 1) mass += __shfl_xor_sync(0xffffffffu, mass, d);
        mass += __shfl_xor_sync(0xffffffffu, mass, 16);
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            values[0][c] += __shfl_xor_sync(0xffffffffu, values[0][c], 16);
            values[1][c] += __shfl_xor_sync(0xffffffffu, values[1][c], 16);
        }
    }
};

// Where a row's key lies; its value is `keys.values` further on.
__device__ __forceinline__ bf16* pair_page(const Heads& h, const Keys& keys, int row, int kv_head, int position) {
    const int* table = keys.table + (i64)keys.owner[row] * keys.table_cols;
    return (bf16*)keys.pages + table[position / keys.page_len] * keys.page_stride +
           ((i64)(position % keys.page_len) * h.kv_heads + kv_head) * PAIR_DIM;
}

// Keys and values of rows that attend to each other, before they do: a warp to a key or a value of one head.
extern "C" __global__ void __launch_bounds__(128) append_pair_pages(
    const __grid_constant__ Heads h, const __grid_constant__ Keys keys, int rows) {
    take_turn();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, item = blockIdx.x * (WARPS / 2) + warp / 2;
    int row = item / h.kv_heads, kv_head = item % h.kv_heads;
    if (row >= rows) return;
    int position = position_of(h, row);
    if (position < 0) return;
    i64 from = (i64)row * h.kv_stride + kv_head * PAIR_DIM;
    float4 x = warp % 2 == 0 ? prepare_4(h.k + from, h.k_norm, h, position) : load_4(h.v + from + lane * 4);
    store_4(pair_page(h, keys, row, kv_head, position) + (warp % 2 == 0 ? 0 : keys.values) + lane * 4, x);
}

// Keys of a warp's chunk.
constexpr int CHUNK = 16;

// Grid: kv heads, rows. The row's own key is made and attended to here, and stored when it is `fresh`: where rows attend
// to each other all have been before. Pages hold a multiple of 16 positions. The keys before a fresh one were stored in
// earlier launches, so they are fetched while the product that makes the query still runs; each lane keeps what it
// fetches to itself. `chunks` of a warp, one or two, are on their way together: two where blocks are few, so that a short
// context's keys all are; one where that would leave too few blocks on an SM.
extern "C" __global__ void __launch_bounds__(128) attend_pair_pages(
    const __grid_constant__ Heads h, const __grid_constant__ Keys keys, int fresh, int early, int chunks, bf16* out) {
    let_next_start();
    if (!early) wait_for_previous();
    // By warp, chunk, and whether a key or a value, then load by load: 16 bytes a lane.
    extern __shared__ uint4 held[];
    __shared__ __align__(16) float q[2][PAIR_DIM], parts[WARPS][2][PAIR_DIM], tops[WARPS][2], masses[WARPS][2];
    __shared__ __align__(16) bf16 own[2][PAIR_DIM];
    int row = blockIdx.y, kv_head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int position = position_of(h, row);
    const int* table = keys.table + (i64)keys.owner[row] * keys.table_cols;
    i64 stride = (i64)h.kv_heads * PAIR_DIM;
    const bf16* pages = (const bf16*)keys.pages + (i64)kv_head * PAIR_DIM + lane % 16 * 8 + lane / 16 * stride;
    uint4* mine = held + warp * chunks * 2 * PAIR_LOADS * 32 + lane;
    u32 mine_at = (u32)__cvta_generic_to_shared(mine);
    auto fetch = [&](int first, int place) {
        if (first < position) {
            const bf16* at = pages + table[first / keys.page_len] * keys.page_stride + first % keys.page_len * stride;
            u32 to = mine_at + place * 2 * PAIR_LOADS * 512;
#pragma unroll
            for (int i = 0; i < PAIR_LOADS; i++) {
                if (first + i * 2 + lane / 16 < position) {
                    copy_16(to + i * 512, at + i * 2 * stride, true);
                    copy_16(to + (PAIR_LOADS + i) * 512, at + i * 2 * stride + keys.values, true);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    int first = warp * CHUNK;
    for (int c = 0; c < chunks; c++) fetch(first + c * WARPS * CHUNK, c);
    if (early) wait_for_previous();

    bf16* to = out + ((i64)row * h.heads + kv_head * 2) * PAIR_DIM;
    if (position < 0) {
        store(to + threadIdx.x, 0.0f);
        store(to + PAIR_DIM + threadIdx.x, 0.0f);
        return;
    }
    if (warp < 2) {
        float4 x = prepare_4(h.q + (i64)row * h.q_stride + (kv_head * 2 + warp) * PAIR_DIM, h.q_norm, h, position);
        store_4(&q[warp][lane * 4], make_float4(x.x * h.scale, x.y * h.scale, x.z * h.scale, x.w * h.scale));
    } else {
        i64 from = (i64)row * h.kv_stride + kv_head * PAIR_DIM;
        float4 x = warp == 2 ? prepare_4(h.k + from, h.k_norm, h, position) : load_4(h.v + from + lane * 4);
        bf16* page = pair_page(h, keys, row, kv_head, position);
        if (fresh) store_4(page + (warp == 2 ? 0 : keys.values) + lane * 4, x);
        store_4(&own[warp - 2][lane * 4], x);
    }
    __syncthreads();
    Pair pair;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        pair.q[0][c] = q[0][lane % 16 * 8 + c];
        pair.q[1][c] = q[1][lane % 16 * 8 + c];
    }
    for (int place = 0; first <= position; first += WARPS * CHUNK, place = chunks - 1 - place) {
        if (chunks == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
        else asm volatile("cp.async.wait_group 0;" ::: "memory");
        const uint4* chunk = mine + place * 2 * PAIR_LOADS * 32;
        // What is past the row's own key counts for nothing, but must be a number.
        uint4 k[PAIR_LOADS], v[PAIR_LOADS];
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            int key = first + i * 2 + lane / 16;
            k[i] = v[i] = make_uint4(0, 0, 0, 0);
            if (key < position) {
                k[i] = chunk[i * 32];
                v[i] = chunk[(PAIR_LOADS + i) * 32];
            } else if (key == position) {
                k[i] = *(const uint4*)&own[0][lane % 16 * 8];
                v[i] = *(const uint4*)&own[1][lane % 16 * 8];
            }
        }
        pair.add(k, v, position + 1 - first);
        fetch(first + chunks * WARPS * CHUNK, place);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    pair.gather();
    if (lane % 8 == 0 && lane < 16) {
        tops[warp][lane / 8] = pair.top;
        masses[warp][lane / 8] = pair.mass;
    }
    if (lane < 16) {
#pragma unroll
        for (int head = 0; head < 2; head++) {
            float* part = &parts[warp][head][lane * 8];
            store_4(part, make_float4(pair.values[head][0], pair.values[head][1], pair.values[head][2], pair.values[head][3]));
            store_4(part + 4, make_float4(pair.values[head][4], pair.values[head][5], pair.values[head][6], pair.values[head][7]));
        }
    }
    __syncthreads();
#pragma unroll
    for (int head = 0; head < 2; head++) {
        float top = fmaxf(fmaxf(tops[0][head], tops[1][head]), fmaxf(tops[2][head], tops[3][head]));
        float mass = 0.0f, x = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float scale = __expf(tops[w][head] - top);
            mass = fmaf(masses[w][head], scale, mass);
            x = fmaf(parts[w][head][threadIdx.x], scale, x);
        }
        store(to + head * PAIR_DIM + threadIdx.x, x / mass);
    }
}

__device__ __forceinline__ uint2 packed_4(float4 x) { return make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)); }
__device__ __forceinline__ float4 spread_4(uint2 raw) {
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                       __uint_as_float(raw.y & 0xffff0000u));
}

// A frame's own keys, one page a batch row: a warp a query head, nothing shared between warps. A lane holds four columns;
// eight keys and their values are on their way together, and their scores are summed over the lanes by halving, which
// leaves one key to each four. A frame may begin with two positions at once: whoever has the second makes the first's key
// too, so that no warp waits for another.
extern "C" __global__ void __launch_bounds__(128, 6) attend_frame(
    const __grid_constant__ Heads h, const __grid_constant__ Keys keys, int rows, bf16* out) {
    take_turn();
    int lane = threadIdx.x % 32, item = blockIdx.x * WARPS + threadIdx.x / 32;
    int row = item / h.heads, head = item % h.heads, kv_head = head / 2;
    if (row >= rows) return;
    int context = h.steps == 1 ? row : row / 2, second = h.steps == 1 ? 0 : row % 2;
    int position = h.position + second, stored = position - second, column = lane * 4;
    int mine = lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
    i64 stride = (i64)h.kv_heads * PAIR_DIM, from = (i64)row * h.kv_stride + kv_head * PAIR_DIM;
    bf16* page = (bf16*)keys.pages + context * keys.page_stride + (i64)kv_head * PAIR_DIM + column;
    uint2 k[PAIR_LOADS], v[PAIR_LOADS];
    auto fetch = [&](int first) {
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            k[i] = v[i] = make_uint2(0, 0);
            if (first + i < stored) {
                k[i] = *(const uint2*)(page + (first + i) * stride);
                v[i] = *(const uint2*)(page + (first + i) * stride + keys.values);
            }
        }
    };
    fetch(0);
    uint2 own_value = packed_4(load_4(h.v + from + column)), earlier_value = own_value;
    float4 q = times(prepare_4(h.q + (i64)row * h.q_stride + head * PAIR_DIM, h.q_norm, h, position), h.scale);
    uint2 own_key = packed_4(prepare_4(h.k + from, h.k_norm, h, position)), earlier_key = own_key;
    if (second) {
        earlier_value = packed_4(load_4(h.v + from - h.kv_stride + column));
        earlier_key = packed_4(prepare_4(h.k + from - h.kv_stride, h.k_norm, h, position - 1));
    }
    if (head % 2 == 0) {
        *(uint2*)(page + position * stride) = own_key;
        *(uint2*)(page + position * stride + keys.values) = own_value;
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float top = minus_infinity(), mass = 0.0f;
    for (int first = 0; first <= position; first += PAIR_LOADS) {
        if (first > 0) fetch(first);
        float s[PAIR_LOADS];
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            if (first + i == stored && second) {
                k[i] = earlier_key;
                v[i] = earlier_value;
            } else if (first + i == position) {
                k[i] = own_key;
                v[i] = own_value;
            }
            float4 key = spread_4(k[i]);
            s[i] = fmaf(q.x, key.x, fmaf(q.y, key.y, fmaf(q.z, key.z, q.w * key.w)));
        }
#pragma unroll
        for (int d = 16, half = 4; half > 0; d >>= 1, half >>= 1) {
            bool upper = lane & d;
#pragma unroll
            for (int i = 0; i < half; i++) {
                float sent = upper ? s[i] : s[i + half], kept = upper ? s[i + half] : s[i];
                s[i] = kept + __shfl_xor_sync(0xffffffffu, sent, d);
            }
        }
        s[0] += __shfl_xor_sync(0xffffffffu, s[0], 2);
        s[0] += __shfl_xor_sync(0xffffffffu, s[0], 1);
        float score = first + mine <= position ? s[0] : minus_infinity(), best = fmaxf(top, score);
#pragma unroll
        for (int d = 4; d < 32; d <<= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, d));
        float old = __expf(top - best), weight = __expf(score - best);
        top = best;
        mass = fmaf(mass, old, weight);
        sum = times(sum, old);
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            float w = __shfl_sync(0xffffffffu, weight, i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 4);
            float4 value = spread_4(v[i]);
            sum = make_float4(fmaf(w, value.x, sum.x), fmaf(w, value.y, sum.y), fmaf(w, value.z, sum.z), fmaf(w, value.w, sum.w));
        }
    }
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) mass += __shfl_xor_sync(0xffffffffu, mass, d);
    store_4(out + ((i64)row * h.heads + head) * PAIR_DIM + column, times(sum, 1.0f / mass));
}
