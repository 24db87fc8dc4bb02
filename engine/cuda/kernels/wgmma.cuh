#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Hopper's matrix instructions: one warpgroup (four warps) multiplies 64 rows by N, both factors in shared memory.
//
// A factor lies as rows of 64 bf16, 128 bytes each, its base at a multiple of 1024; the piece of 16 bytes with number c of
// row r lies at `c ^ (r & 7)`. That is the layout the instruction calls "128-byte swizzle"; it turns addresses by their
// own bits, so a factor may begin at any row and at any multiple of 16 values.

// Address in units of 16 bytes, 1024 bytes between groups of eight rows, the swizzle's kind.
__device__ __forceinline__ u64 factor_at(u32 shared) {
    return (u64)(shared >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}

__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// What this thread wrote to shared memory may now be read by the matrix instructions.
__device__ __forceinline__ void publish_to_matrices() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// `d = a b^T (+ d, with more)`, 64 x N, k 16. Thread t of warp w holds rows `16 w + t / 4 (+ 8)` and columns `8 j + t % 4 * 2 (+ 1)`.

#define ALL4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])

__device__ __forceinline__ void warpgroup_mma(float (&d)[1][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %6, 0;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, p, 1, 1, 0, 0;}"
        : ALL4(d[0])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[2][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %10, 0;"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[4][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0;"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1]), ALL4(d[2]), ALL4(d[3])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[8][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1]), ALL4(d[2]), ALL4(d[3]), ALL4(d[4]), ALL4(d[5]), ALL4(d[6]), ALL4(d[7])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[12][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %50, 0;"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47"
        "}, %48, %49, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1]), ALL4(d[2]), ALL4(d[3]), ALL4(d[4]), ALL4(d[5]), ALL4(d[6]), ALL4(d[7]),
          ALL4(d[8]), ALL4(d[9]), ALL4(d[10]), ALL4(d[11])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[16][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1]), ALL4(d[2]), ALL4(d[3]), ALL4(d[4]), ALL4(d[5]), ALL4(d[6]), ALL4(d[7]),
          ALL4(d[8]), ALL4(d[9]), ALL4(d[10]), ALL4(d[11]), ALL4(d[12]), ALL4(d[13]), ALL4(d[14]),
          ALL4(d[15])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[24][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %98, 0;"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
        "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
        "}, %96, %97, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1]), ALL4(d[2]), ALL4(d[3]), ALL4(d[4]), ALL4(d[5]), ALL4(d[6]), ALL4(d[7]),
          ALL4(d[8]), ALL4(d[9]), ALL4(d[10]), ALL4(d[11]), ALL4(d[12]), ALL4(d[13]), ALL4(d[14]),
          ALL4(d[15]), ALL4(d[16]), ALL4(d[17]), ALL4(d[18]), ALL4(d[19]), ALL4(d[20]), ALL4(d[21]),
          ALL4(d[22]), ALL4(d[23])
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void warpgroup_mma(float (&d)[32][4], u64 a, u64 b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
        "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
        "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "
        "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "
        "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "
        "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, 0, 0;}"
        : ALL4(d[0]), ALL4(d[1]), ALL4(d[2]), ALL4(d[3]), ALL4(d[4]), ALL4(d[5]), ALL4(d[6]), ALL4(d[7]),
          ALL4(d[8]), ALL4(d[9]), ALL4(d[10]), ALL4(d[11]), ALL4(d[12]), ALL4(d[13]), ALL4(d[14]),
          ALL4(d[15]), ALL4(d[16]), ALL4(d[17]), ALL4(d[18]), ALL4(d[19]), ALL4(d[20]), ALL4(d[21]),
          ALL4(d[22]), ALL4(d[23]), ALL4(d[24]), ALL4(d[25]), ALL4(d[26]), ALL4(d[27]), ALL4(d[28]),
          ALL4(d[29]), ALL4(d[30]), ALL4(d[31])
        : "l"(a), "l"(b), "r"(more));
}

#undef ALL4
#endif
