// Definitions for every kernel. `Program::text` puts them before the constants of a program and its
// source. Inline assembly is in this file alone, and each piece has a portable equivalent for
// the emulation.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

/// Half-precision and bfloat16 numbers, as their bits.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
/// A kernel with at most `most` threads in a block.
#define KERNEL(name, most, ...) \
    extern "C" __global__ void __launch_bounds__(most) name(__VA_ARGS__)
#endif

const u32 WARP = 32;
const u32 EVERY_LANE = 0xffffffffu;

/// Numbers of a row that a thread reads in one load: 16 or 32 bytes.
const u32 CHUNK = 8;

#ifdef EMULATED
const f32 MINUS_INFINITY = -INFINITY;

DEVICE uint4 load_once(const uint4* from) { return *from; }

/// Converts both halves of a word, the lower half first.
DEVICE void widen(f16, u32 word, f32& low, f32& high) {
    // Moving the exponent to its place leaves it too small by 2^112, even where it is denormal.
    const f32 rebias = 5.192296858534828e33f;
    low = __uint_as_float((word & 0x7fffu) << 13 | (word & 0x8000u) << 16) * rebias;
    high = __uint_as_float((word & 0x7fff0000u) >> 3 | (word & 0x80000000u)) * rebias;
}

/// Packs two numbers, which half precision represents exactly, into a word.
DEVICE u32 narrow(f16, f32 low, f32 high) {
    const f32 rebias = 1.925929944387236e-34f;
    const u32 a = __float_as_uint(low * rebias), b = __float_as_uint(high * rebias);
    return (a >> 13 & 0x7fffu) | (a >> 16 & 0x8000u) | (b << 3 & 0x7fff0000u) | (b & 0x80000000u);
}
#else
#define MINUS_INFINITY __int_as_float(0xff800000)

/// Reads data that no other thread will read, without allocating it in the L1 cache. The assembly
/// is volatile so that adjacent loads stay adjacent: the number of loads in flight hides the
/// latency.
DEVICE uint4 load_once(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
        : "l"(from));
    return x;
}

/// Converts both halves of a word, the lower half first.
DEVICE void widen(f16, u32 word, f32& low, f32& high) {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
        : "=f"(low), "=f"(high)
        : "r"(word));
}

/// Packs two numbers, which half precision represents exactly, into a word.
DEVICE u32 narrow(f16, f32 low, f32 high) {
    u32 word;
    asm("{.reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b};}"
        : "=r"(word)
        : "f"(low), "f"(high));
    return word;
}
#endif

DEVICE void widen(bf16, u32 word, f32& low, f32& high) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}

/// A chunk of a row in its storage type.
template <typename T> struct Chunk {
    uint4 words[CHUNK * sizeof(T) / sizeof(uint4)];
};

/// Reads a chunk, at a multiple of 16 bytes.
template <typename T> DEVICE Chunk<T> load_chunk(const T* from) {
    Chunk<T> chunk;
#pragma unroll
    for (u32 i = 0; i < CHUNK * sizeof(T) / sizeof(uint4); i++) {
        chunk.words[i] = load_once(reinterpret_cast<const uint4*>(from) + i);
    }
    return chunk;
}

DEVICE void widen(const Chunk<f32>& chunk, f32 (&x)[CHUNK]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        x[4 * half] = __uint_as_float(chunk.words[half].x);
        x[4 * half + 1] = __uint_as_float(chunk.words[half].y);
        x[4 * half + 2] = __uint_as_float(chunk.words[half].z);
        x[4 * half + 3] = __uint_as_float(chunk.words[half].w);
    }
}

template <typename T> DEVICE void widen(const Chunk<T>& chunk, f32 (&x)[CHUNK]) {
    widen(T(), chunk.words[0].x, x[0], x[1]);
    widen(T(), chunk.words[0].y, x[2], x[3]);
    widen(T(), chunk.words[0].z, x[4], x[5]);
    widen(T(), chunk.words[0].w, x[6], x[7]);
}

DEVICE u32 narrow(bf16, f32 low, f32 high) {
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/// Writes a chunk in its storage type, at a multiple of 16 bytes.
DEVICE void store_chunk(const f32 (&x)[CHUNK], f32* to) {
#pragma unroll
    for (u32 i = 0; i < CHUNK; i++) to[i] = x[i];
}

template <typename T> DEVICE void store_chunk(const f32 (&x)[CHUNK], T* to) {
    const uint4 words = {narrow(T(), x[0], x[1]), narrow(T(), x[2], x[3]), narrow(T(), x[4], x[5]),
                         narrow(T(), x[6], x[7])};
    *reinterpret_cast<uint4*>(to) = words;
}

/// Maximum and sum over a warp, in every lane. The order of additions is fixed.
DEVICE f32 warp_max(f32 x) {
#pragma unroll
    for (u32 apart = WARP / 2; apart > 0; apart /= 2) {
        x = fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, apart));
    }
    return x;
}

template <typename T> DEVICE T warp_sum(T x) {
#pragma unroll
    for (u32 apart = WARP / 2; apart > 0; apart /= 2) {
        x += __shfl_xor_sync(EVERY_LANE, x, apart);
    }
    return x;
}

/// Exclusive prefix sum of x over the warps of a block, and the total. x is the same in all lanes
/// of a warp. `held` has room for a number of each warp.
DEVICE u32 sum_of_warps_before(u32 x, u32* held, u32& total) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();  // previous readers of `held` are done
    if (lane == 0) held[warp] = x;
    __syncthreads();
    u32 before = 0;
    total = 0;
    for (u32 i = 0; i < blockDim.x / WARP; i++) {
        if (i < warp) before += held[i];
        total += held[i];
    }
    return before;
}

/// Exclusive prefix sum of x over the threads of a block, and the total.
DEVICE u32 sum_before(u32 x, u32* held, u32& total) {
    const u32 lane = threadIdx.x % WARP;
    u32 sum = x;
#pragma unroll
    for (u32 apart = 1; apart < WARP; apart *= 2) {
        const u32 other = __shfl_up_sync(EVERY_LANE, sum, apart);
        if (lane >= apart) sum += other;
    }
    const u32 of_warp = __shfl_sync(EVERY_LANE, sum, WARP - 1);
    return sum - x + sum_of_warps_before(of_warp, held, total);
}

/// Sum of the first `count` numbers, by a whole block.
DEVICE u32 sum_of_first(const u32* numbers, u32 count, u32* held) {
    u32 sum = 0, total;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) sum += numbers[i];
    sum_before(sum, held, total);
    return total;
}
