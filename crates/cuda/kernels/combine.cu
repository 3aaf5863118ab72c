// Merges the items of each problem, in order, in f64.

/// One column for each element of a value, and one for Σ e / p.
const u32 MOST_COLUMNS = 288;

/// Items whose factors fit in shared memory.
const u32 HELD = 128;

/// Merges records of `attend`, [problems][gridDim.x items][group][value_padded + 4], of lists of
/// `lengths` tokens with `item` tokens in an item. sums [problems][group][2 + value_dim]: shift,
/// Σ e / p, Σ e v / p; with `add`, the previous sums are added. There is one block for each query
/// head and problem.
KERNEL(combine, MOST_COLUMNS, const f32* records, const u32* lengths, f64* sums, u32 item, u32 items,
       u32 value_dim, u32 value_padded, u32 add) {
    __shared__ f32 highest[MOST_COLUMNS / WARP];
    __shared__ f64 factors[HELD];

    const u32 head = blockIdx.x, group = gridDim.x, problem = blockIdx.y;
    const u32 record = value_padded + 4;
    const u32 used = (lengths[problem] + item - 1) / item;
    const f32* const first = records + (u64(problem) * items * group + head) * record;
    const u64 next = u64(group) * record;

    f64* const out = sums + u64(problem * group + head) * (2 + value_dim);
    if (add && !used) return;
    const f32 before = add ? f32(out[0]) : MINUS_INFINITY;
    f32 shift = before;
    for (u32 i = threadIdx.x; i < used; i += blockDim.x) {
        shift = fmaxf(shift, first[i * next + value_padded + 1]);
    }
    shift = warp_max(shift);
    if (threadIdx.x % WARP == 0) highest[threadIdx.x / WARP] = shift;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / WARP; warp++) shift = fmaxf(shift, highest[warp]);

    const u32 column = threadIdx.x;
    const u32 place = column < value_dim ? column : value_padded;
    const u32 at = column < value_dim ? 2 + column : 1;
    f64 sum = 0;
    if (column <= value_dim && before > MINUS_INFINITY) sum = out[at] * exp(f64(before) - f64(shift));
    for (u32 begin = 0; begin < used; begin += HELD) {
        const u32 held = min(HELD, used - begin);
        __syncthreads();
        for (u32 i = threadIdx.x; i < held; i += blockDim.x) {
            factors[i] = exp(f64(first[(begin + i) * next + value_padded + 1]) - f64(shift));
        }
        __syncthreads();
        if (column > value_dim) continue;
        for (u32 i = 0; i < held; i++) sum += factors[i] * f64(first[(begin + i) * next + place]);
    }
    __syncthreads();  // all threads have read the previous shift
    if (column == 0) out[0] = f64(shift);
    if (column <= value_dim) out[at] = sum;
}
