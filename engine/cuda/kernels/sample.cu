// One draw a row, the same as the reference in `device::sampling`: penalty, suppression, temperature, top-k,
// top-p, then a draw by Philox4x32-10 keyed by seed and (step, draw). What is done with the id at once is done here, too.

// Pieces of 16 bytes of the id's row of a table that are copied to the row of `to`; 0 for none.
struct Copied {
    int pieces;
    const uint4* table;
    uint4* to;
};

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
    // Where else the id goes, if anywhere: a column of `placed`.
    int* placed;
    int placed_cols;
    int placed_column;
    Copied copied[2];
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
// Logits of a thread that are on their way together, and values of a sum.
constexpr int AT_ONCE = 8;
// Scores a thread keeps in registers while the k-th greatest is sought; the rest of a larger vocabulary stays shared.
constexpr int OWN = 16;
// Keys that are as soon sorted as brought down to fewer.
constexpr int SORTED = 128;

// A score that at least `k` of a block's keys reach and at most `most`, where there is one; else the k-th greatest. Halves
// what lies between `low`, which at least k reach, and `high`, which fewer than k exceed.
__device__ __forceinline__ u32 about_kth(const u64* keys, int count, int k, int most, u32 low, u32 high) {
    __shared__ u32 counts[2][THREADS / 32];
    u32 own[OWN];
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        int i = threadIdx.x + j * THREADS;
        own[j] = i < count ? (u32)(keys[i] >> 32) : 0;
    }
    for (int round = 0; low < high; round ^= 1) {
        u32 middle = low + (high - low) / 2 + 1, reach = 0;
#pragma unroll
        for (int j = 0; j < OWN; j++) reach += own[j] >= middle;
        for (int i = threadIdx.x + OWN * THREADS; i < count; i += THREADS) reach += (u32)(keys[i] >> 32) >= middle;
        reach = __reduce_add_sync(0xffffffffu, reach);
        if (threadIdx.x % 32 == 0) counts[round][threadIdx.x / 32] = reach;
        __syncthreads();
        u32 all = 0;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) all += counts[round][w];
        if (all >= (u32)k) low = middle;
        else high = middle - 1;
        if (all >= (u32)k && all <= (u32)most) break;
    }
    return low;
}

// Keys that all differ, the greatest first; `list` has room for the next power of two.
__device__ __forceinline__ void sort_descending(u64* list, int n) {
    if (n <= THREADS) {
        // A key's place is how many are greater.
        u64 key = 0;
        int place = 0;
        if ((int)threadIdx.x < n) {
            key = list[threadIdx.x];
            for (int i = 0; i < n; i++) place += list[i] > key;
        }
        __syncthreads();
        if ((int)threadIdx.x < n) list[place] = key;
        __syncthreads();
        return;
    }
    int padded = 1;
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
}

// One after the other, as the reference adds; only the loads run ahead.
__device__ __forceinline__ double sum_of(const double* values, int n) {
    double sum = 0.0;
    int i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE) {
        double x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) x[j] = values[i + j];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) sum += x[j];
    }
    for (; i < n; i++) sum += values[i];
    return sum;
}

// The first of `n` values at which their sum, in the same order, passes `target`; the last if none does.
__device__ __forceinline__ int passes_at(const double* values, int n, double target) {
    double sum = 0.0;
    for (int i = 0; i < n; i += AT_ONCE) {
        double x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) x[j] = i + j < n ? values[i + j] : 0.0;
        int below = 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            sum += x[j];
            below += !(target < sum);
        }
        // Sums only grow, so those that stay below come first.
        if (below < AT_ONCE) return min(i + below, n - 1);
    }
    return n - 1;
}

// Shared: twice as many 64-bit words as the vocabulary rounded up to a power of two.
extern "C" __global__ void __launch_bounds__(256) sample(const __grid_constant__ Sample p) {
    take_turn();
    extern __shared__ u64 keys[];
    __shared__ u32 kept;
    __shared__ double sum, target;
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
    for (int first = threadIdx.x; first < V; first += AT_ONCE * THREADS) {
        float scores[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) scores[j] = first + j * THREADS < V ? logits[first + j * THREADS] : 0.0f;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j * THREADS;
            if (i >= V) break;
            float x = scores[j];
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
    }
    for (int d = 16; d > 0; d >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, d);
        best = best > other ? best : other;
    }
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
    // By a thread that has less to do at the end, long before it is asked for.
    if (threadIdx.x == 32 && !greedy) {
        u32 word = philox((u32)step, p.draw, (u32)p.seeds[row * 2], (u32)p.seeds[row * 2 + 1]);
        target = (double)word / 4294967296.0;
    }
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) best = best > bests[w] ? best : bests[w];
    int drawn = (int)~(u32)best;

    if (!greedy) {
        u32 lowest = order(minus_infinity()), threshold = lowest + 1;
        bool cut = top_k > 0 && top_k < V;
        if (cut) threshold = max(threshold, about_kth(keys, V, top_k, max(top_k, SORTED), lowest, (u32)(best >> 32)));
        if (threadIdx.x == 0) kept = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < V; i += THREADS) {
            u64 key = keys[i];
            if ((u32)(key >> 32) >= threshold) list[atomicAdd(&kept, 1u)] = key;
        }
        __syncthreads();
        int n = (int)kept;
        sort_descending(list, n);
        if (cut && top_k < n) {
            // All that tie with the k-th stay.
            u32 kth = (u32)(list[top_k - 1] >> 32);
            for (int i = threadIdx.x; i < n; i += THREADS) {
                if ((u32)(list[i] >> 32) >= kth && (i + 1 == n || (u32)(list[i + 1] >> 32) < kth)) kept = i + 1;
            }
            __syncthreads();
            n = (int)kept;
        }
        drawn = 0;
        if (n > 0) {
            // Sums in the order of the reference, one after the other; all else by all threads.
            float top = unorder((u32)(list[0] >> 32));
            double* weights = (double*)keys;
            for (int i = threadIdx.x; i < n; i += THREADS) weights[i] = exp((double)(unorder((u32)(list[i] >> 32)) - top));
            __syncthreads();
            if (threadIdx.x == 0) sum = sum_of(weights, n);
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += THREADS) weights[i] = (double)(float)((double)(float)weights[i] / sum);
            __syncthreads();
            if (top_p < 1.0f) {
                if (threadIdx.x == 0) {
                    double mass = 0.0;
                    int last = 0;
                    while (last < n && (last == 0 || mass < (double)top_p)) mass += weights[last++];
                    sum = mass;
                    kept = last;
                }
                __syncthreads();
                n = (int)kept;
                for (int i = threadIdx.x; i < n; i += THREADS) weights[i] = (double)(float)(weights[i] / sum);
                __syncthreads();
            }
            if (threadIdx.x == 0) drawn = (int)~(u32)list[passes_at(weights, n, target)];
        }
    }
    __shared__ int chosen;
    if (threadIdx.x == 0) {
        p.out[(i64)row * p.out_cols + p.column] = chosen = drawn;
        if (p.placed) p.placed[(i64)row * p.placed_cols + p.placed_column] = drawn;
        if (flags) flags[drawn] = 1;
    }
    if (p.copied[0].pieces == 0) return;
    __syncthreads();
#pragma unroll
    for (int which = 0; which < 2; which++) {
        const Copied& c = p.copied[which];
        for (int i = threadIdx.x; i < c.pieces; i += THREADS) c.to[(i64)row * c.pieces + i] = c.table[(i64)chosen * c.pieces + i];
    }
}
