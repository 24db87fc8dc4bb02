// One draw a row, the same as the reference in `device::sampling`: penalty, suppression, temperature, top-k,
// top-p, then a draw by Philox4x32-10 keyed by seed and (step, draw).

struct Sample {
    const float* logits;
    // `[B, 4]`: temperature, top_k, top_p, penalty.
    const float* params;
    // `[B, 2]`: low word, high word.
    const int* seeds;
    const int* step;
    const int* allow_keep;
    int* history;
    const int* slots;
    int* out;
    int out_cols;
    int column;
    int vocabulary;
    u32 draw;
    int suppress_from;
    int suppress_to;
    // -1 for none.
    int keep;
};

__device__ __forceinline__ u32 philox(u32 c0, u32 c1, u32 k0, u32 k1) {
    u32 c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        if (round > 0) {
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
        u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b;
        c3 = (u32)a;
        c0 = n0;
        c2 = n2;
    }
    return c0;
}

// Floats in an order of their own: a greater score has a greater key.
__device__ __forceinline__ u32 order(float x) {
    u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float unorder(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

constexpr int THREADS = 256;

// Shared: twice as many 64-bit words as the vocabulary rounded up to a power of two.
extern "C" __global__ void __launch_bounds__(256) sample(const __grid_constant__ Sample p) {
    take_turn();
    extern __shared__ u64 keys[];
    __shared__ u32 bins[256];
    __shared__ u32 chosen, wanted, kept;
    __shared__ u64 bests[THREADS / 32];
    int row = blockIdx.x, V = p.vocabulary, room = 1;
    while (room < V) room *= 2;
    u64* list = keys + room;
    const float* logits = p.logits + (i64)row * V;
    float temperature = p.params[row * 4], top_p = p.params[row * 4 + 2], penalty = p.params[row * 4 + 3];
    int top_k = (int)fmaxf(p.params[row * 4 + 1], 0.0f);
    int step = max(p.step[row], 0);
    bool allow = !p.allow_keep || p.allow_keep[row] != 0;
    int* flags = p.history ? p.history + (i64)p.slots[row] * V : nullptr;
    bool greedy = !(temperature > 0.0f);

    // Scores, as (order, ~id): a greater key is more likely, the lower id first at ties.
    u64 best = 0;
    for (int i = threadIdx.x; i < V; i += THREADS) {
        float x = logits[i];
        if (x != x) x = minus_infinity();
        if (flags) {
            bool drawn = step != 0 && flags[i] != 0;
            if (step == 0) flags[i] = 0;
            if (drawn && penalty != 1.0f) x = x < 0.0f ? x * penalty : x / penalty;
        }
        bool suppressed = i >= p.suppress_from && i < p.suppress_to && i != p.keep;
        if (suppressed || (i == p.keep && !allow)) x = minus_infinity();
        // Adding zero makes -0 a +0: they tie, as they do in the reference.
        if (!greedy) x = x / temperature;
        u64 key = (u64)order(x + 0.0f) << 32 | (u32)~i;
        keys[i] = key;
        best = best > key ? best : key;
    }
    for (int d = 16; d > 0; d >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, d);
        best = best > other ? best : other;
    }
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) best = best > bests[w] ? best : bests[w];
    int drawn = (int)~(u32)best;

    if (!greedy) {
        // The k-th greatest score, eight bits at a time from the top.
        u32 threshold = 0;
        if (top_k > 0 && top_k < V) {
            if (threadIdx.x == 0) wanted = top_k;
            u32 prefix = 0;
            for (int shift = 24; shift >= 0; shift -= 8) {
                bins[threadIdx.x] = 0;
                __syncthreads();
                for (int i = threadIdx.x; i < V; i += THREADS) {
                    u32 key = (u32)(keys[i] >> 32);
                    if (shift == 24 || (key >> (shift + 8)) == prefix) atomicAdd(&bins[(key >> shift) & 255], 1);
                }
                __syncthreads();
                if (threadIdx.x < 32) {
                    // Lane l sums bins from the top: 255 - 8 l downwards.
                    u32 mine = 0;
                    for (int b = 0; b < 8; b++) mine += bins[255 - (threadIdx.x * 8 + b)];
                    u32 before = mine;
                    for (int d = 1; d < 32; d <<= 1) {
                        u32 other = __shfl_up_sync(0xffffffffu, before, d);
                        if ((int)threadIdx.x >= d) before += other;
                    }
                    before -= mine;
                    u32 want = wanted;
                    __syncwarp();
                    if (before < want && want <= before + mine) {
                        u32 left = want - before;
                        for (int b = 0; b < 8; b++) {
                            u32 count = bins[255 - (threadIdx.x * 8 + b)];
                            if (left <= count) {
                                chosen = 255 - (threadIdx.x * 8 + b);
                                wanted = left;
                                break;
                            }
                            left -= count;
                        }
                    }
                }
                __syncthreads();
                prefix = prefix << 8 | chosen;
            }
            threshold = prefix;
        }
        u32 lowest = order(minus_infinity());
        if (threadIdx.x == 0) kept = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < V; i += THREADS) {
            u64 key = keys[i];
            u32 score = (u32)(key >> 32);
            if (score >= threshold && score > lowest) list[atomicAdd(&kept, 1u)] = key;
        }
        __syncthreads();
        int n = (int)kept, padded = 1;
        while (padded < n) padded *= 2;
        for (int i = n + threadIdx.x; i < padded; i += THREADS) list[i] = 0;
        __syncthreads();
        for (int size = 2; size <= padded; size *= 2) {
            for (int stride = size / 2; stride > 0; stride /= 2) {
                for (int i = threadIdx.x; i < padded / 2; i += THREADS) {
                    int low = 2 * i - (i & (stride - 1)), high = low + stride;
                    bool descending = (low & size) == 0;
                    u64 a = list[low], b = list[high];
                    if ((a < b) == descending) {
                        list[low] = b;
                        list[high] = a;
                    }
                }
                __syncthreads();
            }
        }
        if (n > 0) {
            float top = unorder((u32)(list[0] >> 32));
            double* weights = (double*)keys;
            for (int i = threadIdx.x; i < n; i += THREADS) weights[i] = exp((double)(unorder((u32)(list[i] >> 32)) - top));
            __syncthreads();
            if (threadIdx.x == 0) {
                double sum = 0.0;
                for (int i = 0; i < n; i++) sum += weights[i];
                auto probability = [&](int i) { return (float)((double)(float)weights[i] / sum); };
                int last = n;
                double mass = 0.0;
                if (top_p < 1.0f) {
                    last = 0;
                    while (last < n && (last == 0 || mass < (double)top_p)) mass += (double)probability(last++);
                }
                u32 word = philox((u32)step, p.draw, (u32)p.seeds[row * 2], (u32)p.seeds[row * 2 + 1]);
                double target = (double)word / 4294967296.0, reached = 0.0;
                int found = last - 1;
                for (int i = 0; i < last; i++) {
                    float x = probability(i);
                    if (top_p < 1.0f) x = (float)((double)x / mass);
                    reached += (double)x;
                    if (target < reached) {
                        found = i;
                        break;
                    }
                }
                drawn = (int)~(u32)list[found];
            }
        } else {
            drawn = 0;
        }
    }
    if (threadIdx.x == 0) {
        p.out[(i64)row * p.out_cols + p.column] = drawn;
        if (flags) flags[drawn] = 1;
    }
}
