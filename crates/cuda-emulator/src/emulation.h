// Runs kernels written in CUDA C++ on the host, one block at a time.
//
// Each CUDA thread is a fiber. A fiber runs until it reaches a barrier or returns; then the next
// one runs, in the order that the launch sets. A barrier opens when every thread of the warp, or of
// the block, waits at it; a warp runs as far as possible before the next one starts. Faults that
// are rare on a GPU thus occur always: a warp that runs far ahead where a barrier is missing, or
// reads of shared memory that was never written.

#define EMULATED

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
// The sanitizer intercepts the library's `longjmp`: it assumes that the skipped calls have ended,
// and unpoisons their stack. The compiler's own jumps are not intercepted.
using Jump = void*[5];
#define MARK(jump) __builtin_setjmp(jump)
#define GO(jump) __builtin_longjmp(jump, 1)
#define NOT_SANITIZED __attribute__((no_sanitize_address, noinline))
#else
using Jump = jmp_buf;
#define MARK(jump) _setjmp(jump)
#define GO(jump) _longjmp(jump, 1)
#define NOT_SANITIZED
#endif

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

namespace emulation {

constexpr unsigned WARP = 32;
constexpr unsigned EVERY_LANE = 0xffffffffu;
constexpr size_t STACK = 128 * 1024;

/// Parameters of a launch; laid out as in library.rs.
struct Launch {
    unsigned blocks[2];
    unsigned threads;
    unsigned arguments;
    const void* const* values;
    /// A letter for each argument: a (address), u (u32), U (u64), f (float).
    const char* kinds;
    uint64_t thread_order;
    uint64_t block_order;
};

/// Splitmix64, which suffices for shuffles.
struct Random {
    uint64_t state;
    uint64_t below(uint64_t bound) {
        uint64_t x = state += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return (x ^ (x >> 31)) % bound;
    }
};

/// An order of `0..count`: 0 is ascending, 1 descending, any other number a seed. Each call of
/// `next` draws a new random order.
struct Sequence {
    uint64_t kind;
    Random random;
    std::vector<unsigned> places;

    Sequence(uint64_t kind, unsigned count) : kind(kind), random{kind}, places(count) {
        for (unsigned i = 0; i < count; i++) places[i] = kind == 1 ? count - 1 - i : i;
    }
    const std::vector<unsigned>& next() {
        if (kind > 1) {
            for (size_t i = places.size(); i > 1; i--) std::swap(places[i - 1], places[random.below(i)]);
        }
        return places;
    }
};

enum class State { Ready, AtWarpBarrier, AtBlockBarrier, Done };

/// One CUDA thread.
struct Fiber {
    /// Context at the first start.
    ucontext_t begin;
    bool begun = false;
    /// Context after a wait.
    Jump resume;
    std::vector<char> stack = std::vector<char>(STACK);
    dim3 place;
    State state = State::Ready;
    /// Values published to the other lanes of the warp. Even and odd collectives use different
    /// slots: before a slot is written again, every lane has read it and has reached the barrier of
    /// the next collective.
    uint64_t shown[2];
    unsigned collectives = 0;
    /// The sanitizer's data about the stack.
    void* kept = nullptr;

    unsigned lane() const { return place.x % WARP; }
    unsigned warp() const { return place.x / WARP; }
};

static std::vector<Fiber> fibers;
static Fiber* running;
static Jump scheduler;
static dim3 block_place, block_size, grid_size;
/// Runs the kernel with the arguments of this launch.
static void (*body)(const void* kernel, const void* const* values);
static const void* body_kernel;
static const void* const* body_values;
/// Error message.
static char message[256];

// Stacks are switched by jumps: `swapcontext` would set the signal mask by a system call each time,
// which takes ten times as long as everything else. The address sanitizer must be informed of
// switches.
#ifdef __SANITIZE_ADDRESS__
static const void* scheduler_stack;
static size_t scheduler_stack_size;
static void* scheduler_kept;
static void leave_scheduler(Fiber& fiber) {
    __sanitizer_start_switch_fiber(&scheduler_kept, fiber.stack.data(), fiber.stack.size());
}
static void enter_scheduler() { __sanitizer_finish_switch_fiber(scheduler_kept, nullptr, nullptr); }
static void leave_fiber(Fiber& fiber) {
    __sanitizer_start_switch_fiber(&fiber.kept, scheduler_stack, scheduler_stack_size);
}
static void enter_fiber(Fiber& fiber) {
    __sanitizer_finish_switch_fiber(fiber.kept, &scheduler_stack, &scheduler_stack_size);
}
#else
static void leave_scheduler(Fiber&) {}
static void enter_scheduler() {}
static void leave_fiber(Fiber&) {}
static void enter_fiber(Fiber&) {}
#endif

NOT_SANITIZED static void go_to_scheduler() { GO(scheduler); }

NOT_SANITIZED static void go_to(Fiber& fiber) {
    if (fiber.begun) GO(fiber.resume);
    fiber.begun = true;
    setcontext(&fiber.begin);
}

/// Lets a fiber run until it waits.
NOT_SANITIZED static void switch_to(Fiber& fiber) {
    leave_scheduler(fiber);
    if (MARK(scheduler) == 0) go_to(fiber);
    enter_scheduler();
}

NOT_SANITIZED static void wait_as(State state) {
    Fiber& self = *running;
    self.state = state;
    leave_fiber(self);
    if (MARK(self.resume) == 0) go_to_scheduler();
    // `self` may have moved.
    enter_fiber(*running);
}

/// Body of a fiber, which runs one thread after another.
static void run_threads() {
    enter_fiber(*running);
    for (;;) {
        body(body_kernel, body_values);
        wait_as(State::Done);
    }
}

static void start(Fiber& fiber, unsigned place) {
    fiber.place = {place, 0, 0};
    fiber.collectives = 0;
    if (fiber.state != State::Done) {
        // The fiber is new, or was left in the middle of a kernel.
        fiber.begun = false;
        fiber.kept = nullptr;
        getcontext(&fiber.begin);
        fiber.begin.uc_stack.ss_sp = fiber.stack.data();
        fiber.begin.uc_stack.ss_size = fiber.stack.size();
        fiber.begin.uc_link = nullptr;
        makecontext(&fiber.begin, run_threads, 0);
    }
    fiber.state = State::Ready;
}

static unsigned count(unsigned first, unsigned end, State state) {
    unsigned found = 0;
    for (unsigned i = first; i < end; i++) found += fibers[i].state == state;
    return found;
}

/// Opens the barrier of some threads if all of them have reached it.
static bool open(unsigned first, unsigned end, State barrier) {
    if (count(first, end, barrier) < end - first) return false;
    for (unsigned i = first; i < end; i++) fibers[i].state = State::Ready;
    return true;
}

/// All `__shared__` variables; the linker defines these symbols.
extern "C" unsigned char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

/// Fills shared memory, which is undefined when a block starts, with NaN and indices out of range.
__attribute__((no_sanitize_address, noinline)) static void poison_shared_memory() {
    for (volatile unsigned char* p = __start_cuda_shared; p < __stop_cuda_shared; p++) *p = 0xff;
}

/// Orders of warps, and of the lanes of a warp.
struct Turns {
    Sequence warps, lanes;
};

/// Runs a warp as far as possible without the other warps of its block.
static void run_warp(unsigned warp, Sequence& lanes) {
    const unsigned first = warp * WARP;
    do {
        for (unsigned lane : lanes.next()) {
            if (fibers[first + lane].state != State::Ready) continue;
            running = &fibers[first + lane];
            switch_to(*running);
        }
    } while (open(first, first + WARP, State::AtWarpBarrier));
}

/// Runs one block; false if its threads wait for each other forever.
static bool run_block(unsigned threads, Turns& turns) {
    poison_shared_memory();
    for (unsigned i = 0; i < threads; i++) start(fibers[i], i);
    do {
        for (unsigned warp : turns.warps.next()) run_warp(warp, turns.lanes);
    } while (open(0, threads, State::AtBlockBarrier));
    return count(0, threads, State::Done) == threads;
}

static const char* run_grid(const Launch& launch) {
    Turns turns{Sequence(launch.thread_order, launch.threads / WARP),
                Sequence(launch.thread_order, WARP)};
    Sequence blocks(launch.block_order, launch.blocks[0] * launch.blocks[1]);
    grid_size = {launch.blocks[0], launch.blocks[1], 1};
    block_size = {launch.threads, 1, 1};
    if (fibers.size() < launch.threads) fibers.resize(launch.threads);
    for (unsigned block : blocks.next()) {
        block_place = {block % grid_size.x, block / grid_size.x, 0};
        if (run_block(launch.threads, turns)) continue;
        snprintf(message, sizeof message,
                 "divergent barrier in block (%u, %u): of %u threads, %u wait for their block, %u "
                 "for their warp, and %u have returned",
                 block_place.x, block_place.y, launch.threads,
                 count(0, launch.threads, State::AtBlockBarrier),
                 count(0, launch.threads, State::AtWarpBarrier),
                 count(0, launch.threads, State::Done));
        return message;
    }
    return nullptr;
}

template <typename T> struct Kind;
template <typename T> struct Kind<T*> { static constexpr char LETTER = 'a'; };
template <> struct Kind<unsigned> { static constexpr char LETTER = 'u'; };
template <> struct Kind<unsigned long long> { static constexpr char LETTER = 'U'; };
template <> struct Kind<float> { static constexpr char LETTER = 'f'; };

template <typename... A, size_t... I>
static void call(void (*kernel)(A...), const void* const* values, std::index_sequence<I...>) {
    kernel(*static_cast<const A*>(values[I])...);
}

/// Runs a kernel, and returns an error message or null.
template <typename... A> const char* run(void (*kernel)(A...), const Launch& launch, unsigned most) {
    static constexpr char KINDS[] = {Kind<A>::LETTER..., 0};
    if (strlen(KINDS) != launch.arguments || strncmp(KINDS, launch.kinds, launch.arguments)) {
        snprintf(message, sizeof message, "expected the arguments %s, got %.*s", KINDS,
                 int(launch.arguments), launch.kinds);
        return message;
    }
    if (launch.threads % WARP || launch.threads > most) {
        snprintf(message, sizeof message, "expected at most %u threads in whole warps, got %u", most,
                 launch.threads);
        return message;
    }
    body = [](const void* kernel, const void* const* values) {
        call(*static_cast<void (*const*)(A...)>(kernel), values, std::index_sequence_for<A...>());
    };
    body_kernel = &kernel;
    body_values = launch.values;
    return run_grid(launch);
}

/// Publishes a value to the warp, and returns the slot from which all lanes' values can be read.
static unsigned show(uint64_t value) {
    Fiber& self = *running;
    unsigned slot = self.collectives++ % 2;
    self.shown[slot] = value;
    wait_as(State::AtWarpBarrier);
    return slot;
}

static uint64_t shown_by(unsigned lane, unsigned slot) {
    return fibers[running->warp() * WARP + lane % WARP].shown[slot];
}

template <typename T> T exchange(T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "shuffles move at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    unsigned slot = show(bits);
    bits = shown_by(lane, slot);
    memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace emulation

/// A kernel with at most `most` threads in a block, and the entry point for the emulator.
#define KERNEL(name, most, ...)                                                     \
    static void name(__VA_ARGS__);                                                  \
    extern "C" const char* emulated_##name(const emulation::Launch* launch) {       \
        return emulation::run(name, *launch, most);                                 \
    }                                                                               \
    static void name(__VA_ARGS__)

#define DEVICE inline
#define __shared__ static __attribute__((section("cuda_shared")))
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (emulation::running->place)
#define blockIdx (emulation::block_place)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)

static inline void __syncthreads() { emulation::wait_as(emulation::State::AtBlockBarrier); }
static inline void __syncwarp() { emulation::wait_as(emulation::State::AtWarpBarrier); }

// Collectives of whole warps; masks that leave out lanes are not emulated.
template <typename T> T __shfl_sync(unsigned, T value, unsigned lane) {
    return emulation::exchange(value, lane);
}
template <typename T> T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    return emulation::exchange(value, emulation::running->lane() ^ mask);
}
template <typename T> T __shfl_up_sync(unsigned, T value, unsigned by) {
    unsigned lane = emulation::running->lane();
    return emulation::exchange(value, lane < by ? lane : lane - by);
}
static inline unsigned __ballot_sync(unsigned, bool vote) {
    unsigned slot = emulation::show(vote), votes = 0;
    for (unsigned lane = 0; lane < emulation::WARP; lane++) {
        votes |= unsigned(emulation::shown_by(lane, slot)) << lane;
    }
    return votes;
}

template <typename T> T atomicAdd(T* to, T value) {
    T old = *to;
    *to = old + value;
    return old;
}
template <typename T> T atomicOr(T* to, T value) {
    T old = *to;
    *to = old | value;
    return old;
}
template <typename T> T atomicMax(T* to, T value) {
    T old = *to;
    if (value > old) *to = value;
    return old;
}

// Rounds each operation, because contraction is off.
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
