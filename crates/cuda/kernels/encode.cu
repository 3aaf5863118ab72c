// Hash codes of keys and of queries: small networks whose positive outputs are the set bits of a
// code. The order of additions is that of core's `network.rs`, so that codes differ from core's
// only by the last bits of an activation.
//
// Constants: those of rows.cuh, which comes before this file; LAYERS; WIDTHS, the number of inputs
// of the first layer and of outputs of each layer, {LAYERS + 1 elements}; WIDEST, their maximum;
// TILE, keys that a block maps in parallel; ACTIVATION, one of the functions below. A network is
// its layers in order, each [inputs + 1][outputs] with the bias last.

const u32 THREADS = 128;

DEVICE f32 silu(f32 x) { return x / (1 + expf(-x)); }
DEVICE f32 relu(f32 x) { return fmaxf(x, 0); }
DEVICE f32 gelu(f32 x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }

DEVICE u32 width(u32 layer) {
    const u32 widths[] = WIDTHS;
    return widths[layer];
}

/// One output of a layer, for each of COUNT vectors, [COUNT][WIDEST].
template <u32 COUNT>
DEVICE void map_to(const f32* layer, const f32* vectors, u32 inputs, u32 outputs, u32 output,
                   f32 (&sums)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) sums[i] = 0;
#pragma unroll 4
    for (u32 input = 0; input < inputs; input++) {
        const f32 weight = layer[input * outputs + output];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            sums[i] = __fadd_rn(sums[i], __fmul_rn(vectors[i * WIDEST + input], weight));
        }
    }
    const f32 bias = layer[inputs * outputs + output];
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) sums[i] = __fadd_rn(sums[i], bias);
}

/// Writes the codes of the first `count` of COUNT vectors in `from`, by a whole block; the words of
/// a code are `room` apart. The contents of `from` and `to`, both [COUNT][WIDEST], are overwritten.
template <u32 COUNT>
DEVICE void encode(const f32* layer, f32* from, f32* to, u32 count, u32* codes, u32 room) {
    f32 sums[COUNT];
#pragma unroll
    for (u32 i = 0; i + 1 < LAYERS; i++) {
        const u32 inputs = width(i), outputs = width(i + 1);
        for (u32 output = threadIdx.x; output < outputs; output += THREADS) {
            map_to(layer, from, inputs, outputs, output, sums);
#pragma unroll
            for (u32 v = 0; v < COUNT; v++) to[v * WIDEST + output] = sums[v];
            // One vector at a time, in shared memory: several need too many registers.
#pragma unroll 1
            for (u32 v = 0; v < COUNT; v++) {
                f32& x = to[v * WIDEST + output];
                x = ACTIVATION(x);
            }
        }
        __syncthreads();
        f32* const mapped = to;
        to = from;
        from = mapped;
        layer += (inputs + 1) * outputs;
    }
    const u32 inputs = width(LAYERS - 1), bits = width(LAYERS);
    for (u32 first = 0; first < bits; first += THREADS) {
        const u32 bit = first + threadIdx.x;
        // Threads beyond the last bit compute it too, because a ballot needs the whole warp.
        map_to(layer, from, inputs, bits, min(bit, bits - 1), sums);
#pragma unroll
        for (u32 v = 0; v < COUNT; v++) {
            const u32 word = __ballot_sync(EVERY_LANE, bit < bits && sums[v] > 0);
            if (bit % WARP == 0 && bit < bits && v < count) codes[u64(bit / WARP) * room + v] = word;
        }
    }
}

/// Copies the keys of `count` tokens to shared memory, [count][WIDEST], by a whole block.
DEVICE void hold_keys(const u64* pages, u32 first, u32 count, f32* held) {
    const u32 chunks = HEAD_PADDED / CHUNK;
    for (u32 i = threadIdx.x; i < count * chunks; i += THREADS) {
        const u32 key = i / chunks, begin = i % chunks * CHUNK;
        f32 numbers[CHUNK];
        widen(load_chunk(row_of(pages, first + key) + begin), numbers);
#pragma unroll
        for (u32 x = 0; x < CHUNK; x++) {
            if (begin + x < HEAD_DIM) held[key * WIDEST + begin + x] = numbers[x];
        }
    }
}

/// now: [0] visible tokens. tables, networks, known, codes [maps]: addresses of a page table and of
/// a network, the number of tokens with codes, and the address of the codes, [words][room]. Adds
/// the codes of the other visible tokens.
KERNEL(encode_keys, THREADS, const u32* now, const u64* tables, const u64* networks,
       const u32* known, const u64* codes, u32 capacity, u32 room) {
    __shared__ __align__(16) f32 a[TILE * WIDEST];
    __shared__ __align__(16) f32 b[TILE * WIDEST];
    const u32 map = blockIdx.y, visible = min(now[0], capacity);
    const u64* const pages = reinterpret_cast<const u64*>(tables[map]);
    const f32* const network = reinterpret_cast<const f32*>(networks[map]);
    const u32 begin = known[map] + blockIdx.x * TILE;
    for (u32 first = begin; first < visible; first += gridDim.x * TILE) {
        const u32 count = min(u32(TILE), visible - first);
        u32* const out = reinterpret_cast<u32*>(codes[map]) + first;
        hold_keys(pages, first, count, a);
        __syncthreads();
        // A decoding step has one new token.
        if (count == 1) {
            encode<1>(network, a, b, count, out, room);
        } else {
            encode<TILE>(network, a, b, count, out, room);
        }
        __syncthreads();
    }
}

/// One block for each query. queries [count][HEAD_DIM], networks [count], codes [count][words].
KERNEL(encode_queries, THREADS, const f32* queries, const u64* networks, u32* codes) {
    __shared__ __align__(16) f32 a[WIDEST];
    __shared__ __align__(16) f32 b[WIDEST];
    const u32 query = blockIdx.x, words = (width(LAYERS) + WARP - 1) / WARP;
    for (u32 x = threadIdx.x; x < HEAD_DIM; x += THREADS) a[x] = queries[u64(query) * HEAD_DIM + x];
    __syncthreads();
    encode<1>(reinterpret_cast<const f32*>(networks[query]), a, b, 1, codes + u64(query) * words, 1);
}
