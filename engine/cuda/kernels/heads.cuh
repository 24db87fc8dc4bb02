// What attention is told of its heads and of where keys lie.

struct Heads {
    const float* q;
    const float* k;
    const float* v;
    const float* q_norm;
    const float* k_norm;
    // theta^(-2i/dim), or absent for attention without rotary embedding.
    const float* frequencies;
    float eps;
    float scale;
    int heads;
    int kv_heads;
    int dim;
    // Position of a row: `positions[row]`, else `position + row % steps`.
    const int* positions;
    int position;
    int steps;
    // Values from a row to the next.
    int q_stride;
    int kv_stride;
};

// Where keys lie: pages named by a table, or one page a batch row.
struct Keys {
    void* pages;
    const int* owner;
    const int* table;
    int table_cols;
    int page_len;
    // Values from a page to the next, and from keys to values inside one.
    i64 page_stride;
    i64 values;
};

constexpr int DIM_MAX = 256;
constexpr int WARPS = 4;

__device__ __forceinline__ int position_of(const Heads& h, int row) {
    return h.positions ? h.positions[row] : h.position + row % h.steps;
}
