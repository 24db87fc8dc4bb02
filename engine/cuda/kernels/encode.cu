// Ops of the encoders of reference audio. They run once a clip, in f32.

// Means, then deviations, of each column over time. A block per column.
extern "C" __global__ void statistics(const float* input, const float* weights, float eps, float* out, int rows, int cols) {
    take_turn();
    __shared__ double scratch[256];
    int column = blockIdx.x;
    double uniform = 1.0 / rows, sum = 0.0;
    auto total = [&](double x) {
        __syncthreads();
        scratch[threadIdx.x] = x;
        __syncthreads();
        for (int d = blockDim.x / 2; d > 0; d /= 2) {
            if ((int)threadIdx.x < d) scratch[threadIdx.x] += scratch[threadIdx.x + d];
            __syncthreads();
        }
        return scratch[0];
    };
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        i64 at = (i64)r * cols + column;
        sum += (weights ? (double)weights[at] : uniform) * input[at];
    }
    double mean = total(sum), squares = 0.0;
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        i64 at = (i64)r * cols + column;
        double d = input[at] - mean;
        squares += (weights ? (double)weights[at] : uniform) * d * d;
    }
    double variance = total(squares);
    if (threadIdx.x == 0) {
        out[column] = (float)mean;
        out[cols + column] = sqrtf(fmaxf((float)variance, eps));
    }
}

extern "C" __global__ void softmax_over_time(const float* input, float* out, int rows, int cols) {
    take_turn();
    __shared__ double scratch[256];
    int column = blockIdx.x;
    double top = -1e300, sum = 0.0;
    for (int r = threadIdx.x; r < rows; r += blockDim.x) top = fmax(top, (double)input[(i64)r * cols + column]);
    scratch[threadIdx.x] = top;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d /= 2) {
        if ((int)threadIdx.x < d) scratch[threadIdx.x] = fmax(scratch[threadIdx.x], scratch[threadIdx.x + d]);
        __syncthreads();
    }
    top = scratch[0];
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += blockDim.x) sum += exp((double)input[(i64)r * cols + column] - top);
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int d = blockDim.x / 2; d > 0; d /= 2) {
        if ((int)threadIdx.x < d) scratch[threadIdx.x] += scratch[threadIdx.x + d];
        __syncthreads();
    }
    sum = scratch[0];
    for (int r = threadIdx.x; r < rows; r += blockDim.x) {
        out[(i64)r * cols + column] = (float)(exp((double)input[(i64)r * cols + column] - top) / sum);
    }
}

// Magnitudes of one windowed frame a block; `magnitudes` is `[frames, n_fft / 2 + 1]`. Shared: 3 n_fft floats.
extern "C" __global__ void spectrum(
    const float* samples, int count, const float* window, int n_fft, int hop, int pad, float eps, float* magnitudes) {
    take_turn();
    extern __shared__ float shared[];
    float *frame = shared, *cosines = shared + n_fft, *sines = shared + 2 * n_fft;
    int last = count - 1;
    for (int i = threadIdx.x; i < n_fft; i += blockDim.x) {
        int at = abs((int)blockIdx.x * hop + i - pad);
        frame[i] = window[i] * samples[at > last ? 2 * last - at : at];
        double s, c;
        sincospi(2.0 * i / n_fft, &s, &c);
        cosines[i] = (float)c;
        sines[i] = (float)s;
    }
    __syncthreads();
    int bins = n_fft / 2 + 1;
    for (int k = threadIdx.x; k < bins; k += blockDim.x) {
        float re = 0.0f, im = 0.0f;
        for (int i = 0, at = 0; i < n_fft; i++) {
            re = fmaf(frame[i], cosines[at], re);
            im = fmaf(frame[i], sines[at], im);
            at += k;
            if (at >= n_fft) at -= n_fft;
        }
        magnitudes[(i64)blockIdx.x * bins + k] = sqrtf(fmaf(re, re, fmaf(im, im, eps)));
    }
}

extern "C" __global__ void log_floor(float* values, float floor, i64 n) {
    take_turn();
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        values[i] = logf(fmaxf(values[i], floor));
    }
}

// Nearest codebook row of each residual row, a block a row of 128 threads; lowest index at ties.
extern "C" __global__ void quantize_residual(
    float* residual, int width, const float* codebook, int entries, int* codes, int groups, int column) {
    take_turn();
    extern __shared__ float row[];
    __shared__ float best_distance[128];
    __shared__ int best_index[128];
    float* values = residual + (i64)blockIdx.x * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) row[c] = values[c];
    __syncthreads();
    float least = __uint_as_float(0x7f800000u);
    int found = 0;
    for (int e = threadIdx.x; e < entries; e += blockDim.x) {
        float sum = 0.0f;
        for (int c = 0; c < width; c++) {
            float d = row[c] - codebook[(i64)e * width + c];
            sum = fmaf(d, d, sum);
        }
        if (sum < least) {
            least = sum;
            found = e;
        }
    }
    best_distance[threadIdx.x] = least;
    best_index[threadIdx.x] = found;
    __syncthreads();
    for (int d = 64; d > 0; d /= 2) {
        if ((int)threadIdx.x < d) {
            float other = best_distance[threadIdx.x + d];
            int index = best_index[threadIdx.x + d];
            bool nearer = other < best_distance[threadIdx.x];
            bool tie = other == best_distance[threadIdx.x] && index < best_index[threadIdx.x];
            if (nearer || tie) {
                best_distance[threadIdx.x] = other;
                best_index[threadIdx.x] = index;
            }
        }
        __syncthreads();
    }
    int code = best_index[0];
    for (int c = threadIdx.x; c < width; c += blockDim.x) values[c] = row[c] - codebook[(i64)code * width + c];
    if (threadIdx.x == 0) codes[(i64)blockIdx.x * groups + column] = code;
}
