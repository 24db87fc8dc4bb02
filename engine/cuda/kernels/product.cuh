// A matrix product as its kernels are told of it.

struct Product {
    const void* a;
    i64 group_stride;
    i64 row_stride;
    i64 tap_stride;
    int rows;
    int group;
    int cin;
    int taps;
    const void* w[3];
    void* out[3];
    const float* bias[3];
    int n[3];
    int matrices;
    int gated;
    int activation;
    int out_bf16;
    int residual_bf16;
    int splits;
    const void* residual;
    float* partial;
    u32* counters;
    // The input is a stream before its norm, times the norm's weight: row r's result is scaled by
    // `rsqrt(sum of row r of squares / cin + eps)`. Absent for an input that is what it says.
    const float* squares;
    int squares_cols;
    float eps;
    // One matrix's result is a stream that a norm follows: times the norm's weight in 16 bits, and one sum of squares a
    // row and tile.
    const float* norm;
    bf16* scaled;
    float* squares_out;
};

__device__ __forceinline__ i64 row_start(const Product& p, int row) {
    return (i64)(row / p.group) * p.group_stride + (i64)(row % p.group) * p.row_stride;
}
