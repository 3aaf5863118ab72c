// The library keeps keys and values, and runs on the engine's threads: a batch of forks in C++.
//
//     c++ -std=c++17 -pthread engine.cpp $(pkg-config --cflags --libs vattention)

#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <vattention.h>

namespace {

constexpr size_t query_heads = 8, kv_heads = 2, dim = 64, prompt = 16384, sequences = 3;

void check(va_status status) {
    if (status != VA_OK) throw std::runtime_error(va_last_error());
}

struct free_attention {
    void operator()(va_attention *attention) const { va_attention_free(attention); }
};
using attention_ptr = std::unique_ptr<va_attention, free_attention>;

// Threads of the engine. A real engine has a pool of them.
struct engine_threads {
    std::atomic<size_t> tasks{0};

    static void run(void *context, size_t count, va_task task, void *data) {
        static_cast<engine_threads *>(context)->tasks += count;
        std::vector<std::thread> threads;
        for (size_t i = 0; i < count; i++) threads.emplace_back(task, data, i);
        for (std::thread &thread : threads) thread.join();
    }

    va_workers workers() {
        va_workers workers{};
        workers.size = sizeof workers;
        workers.parallel_for = run;
        workers.context = this;
        return workers;
    }
};

// Contiguous array [heads, tokens, dim] of pseudo-random numbers around a mean.
struct random_array {
    std::vector<float> numbers;
    va_array array{};

    random_array(size_t heads, size_t tokens, float mean, unsigned seed)
        : numbers(heads * tokens * dim) {
        for (float &number : numbers) {
            seed = seed * 1664525u + 1013904223u;
            number = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f + mean;
        }
        array.size = sizeof array;
        array.dtype = VA_F32;
        array.data = numbers.data();
        array.shape[0] = heads;
        array.shape[1] = tokens;
        array.shape[2] = dim;
    }
};

struct buffers {
    std::vector<float> out = std::vector<float>(query_heads * dim);
    std::vector<va_report> reports = std::vector<va_report>(query_heads);
    va_output output{};

    buffers() {
        output.size = sizeof output;
        output.out = out.data();
        output.out_len = out.size();
        output.reports = reports.data();
        output.report_size = sizeof(va_report);
        output.reports_len = reports.size();
    }
};

void run() {
    engine_threads threads;
    const va_workers workers = threads.workers();
    va_layer layer{};
    layer.size = sizeof layer;
    layer.query_heads = query_heads;
    layer.kv_heads = kv_heads;
    layer.head_dim = dim;
    va_options options{};
    options.size = sizeof options;
    options.workers = &workers;

    va_attention *handle = nullptr;
    check(va_attention_new("extends = 'priority'", &layer, &options, &handle));
    std::vector<attention_ptr> all;
    all.emplace_back(handle);
    const random_array keys(kv_heads, prompt, 0, 1), values(kv_heads, prompt, 0.5f, 2);
    check(va_attention_append(handle, &keys.array, &values.array, nullptr));
    for (uint32_t number = 1; number < sequences; number++) {
        va_attention *fork = nullptr;
        check(va_attention_fork(handle, &number, &fork));
        all.emplace_back(fork);
    }

    const random_array query(query_heads, 1, 0, 3);
    std::vector<buffers> together(sequences), single(sequences);
    std::vector<va_attention *> attentions;
    std::vector<attention_ptr> copies;
    std::vector<const va_array *> queries(sequences, &query.array);
    std::vector<const va_output *> outputs;
    for (size_t i = 0; i < sequences; i++) {
        va_attention *copy = nullptr;
        check(va_attention_fork(all[i].get(), nullptr, &copy));
        copies.emplace_back(copy);
        attentions.push_back(all[i].get());
        outputs.push_back(&together[i].output);
    }
    check(va_attend_batch(sequences, attentions.data(), queries.data(), nullptr, outputs.data(),
                          nullptr, &workers));
    for (size_t i = 0; i < sequences; i++) {
        check(va_attention_attend(copies[i].get(), &query.array, nullptr, &single[i].output));
        if (single[i].out != together[i].out) throw std::runtime_error("a batch has other results");
        const va_report &report = together[i].reports[0];
        std::printf("sequence %zu: read %zu of %zu tokens\n", i, report.read, report.visible);
    }

    // Results do not depend on the threads.
    check(va_attention_new("extends = 'priority'", &layer, nullptr, &handle));
    const attention_ptr other(handle);
    check(va_attention_append(handle, &keys.array, &values.array, nullptr));
    check(va_attention_attend(handle, &query.array, nullptr, &single[0].output));
    if (single[0].out != together[0].out) throw std::runtime_error("threads change results");
    if (threads.tasks < sequences) throw std::runtime_error("the engine's threads did not run");
}

}  // namespace

int main() {
    try {
        run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
