/* An attention node for ggml that calls the library: a step of a small layer equals ggml's own
 * attention, and the times of both at 8K and 32K tokens. `just capi` builds and runs it.
 *
 * The node is a `ggml_custom_4d` with the sources of `ggml_flash_attn_ext`, and the same result. It
 * runs on ggml's threads, each of which processes some KV heads, and reads ggml's cache in place. */

#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vattention.h>

enum { QUERY_HEADS = 32, KV_HEADS = 8, GROUP = QUERY_HEADS / KV_HEADS, DIM = 128, EMBED = 256 };

/* One layer's pipelines, and the first error of a step. */
typedef struct {
    va_pipeline *heads[KV_HEADS];
    size_t read[KV_HEADS];
    va_status status;
} attention_node;

static void check(va_status status) {
    if (status != VA_OK) {
        fprintf(stderr, "%s\n", va_last_error());
        exit(1);
    }
}

static void open_node(attention_node *node, const char *toml, size_t index) {
    memset(node, 0, sizeof *node);
    va_layer layer = {.size = sizeof layer, .query_heads = QUERY_HEADS, .kv_heads = KV_HEADS,
                      .head_dim = DIM, .index = index};
    for (size_t i = 0; i < KV_HEADS; i++) {
        check(va_pipeline_new(toml, &layer, i, NULL, &node->heads[i]));
    }
}

static void close_node(attention_node *node) {
    for (size_t i = 0; i < KV_HEADS; i++) check(va_pipeline_free(node->heads[i]));
}

/* Rows [tokens, DIM] of a KV head of a tensor [DIM, tokens, KV_HEADS]: one page. */
static va_rows rows_of(const struct ggml_tensor *tensor, size_t kv_head) {
    size_t size = ggml_type_size(tensor->type);
    size_t row_stride = tensor->nb[1] / size, page = row_stride * (size_t)tensor->ne[1];
    va_rows rows = {.size = sizeof rows, .dtype = tensor->type == GGML_TYPE_F16 ? VA_F16 : VA_F32,
                    .pool = tensor->data, .elements = page,
                    .offset = kv_head * (tensor->nb[2] / size), .page_stride = page,
                    .row_stride = row_stride};
    return rows;
}

/* Indexes new tokens of a KV head, and attends. */
static va_status attend_head(attention_node *node, struct ggml_tensor *out, size_t kv_head) {
    const struct ggml_tensor *q = out->src[0], *k = out->src[1], *v = out->src[2];
    static const uint32_t table = 0;
    size_t tokens = (size_t)k->ne[1];
    va_rows keys = rows_of(k, kv_head), values = rows_of(v, kv_head);
    va_pages pages = {.size = sizeof pages, .keys = &keys, .values = &values, .table = &table,
                      .table_len = 1, .page_tokens = tokens, .tokens = tokens};
    va_array queries = {.size = sizeof queries, .dtype = VA_F32,
                        .data = (const char *)q->data + kv_head * GROUP * q->nb[2],
                        .shape = {GROUP, 1, DIM}, .strides = {q->nb[2] / sizeof(float), DIM, 1}};
    va_report reports[GROUP];
    va_output output = {.size = sizeof output, .out = (float *)out->data + kv_head * GROUP * DIM,
                        .out_len = GROUP * DIM, .reports = reports,
                        .report_size = sizeof *reports, .reports_len = GROUP};
    va_status status = va_pipeline_append(node->heads[kv_head], &pages, NULL);
    if (status == VA_OK) {
        status = va_attend_pages(node->heads[kv_head], &pages, &queries, NULL, &output);
    }
    if (status != VA_OK) fprintf(stderr, "%s\n", va_last_error());
    node->read[kv_head] = reports[0].read_by_group;
    return status;
}

static void run_node(struct ggml_tensor *out, int thread, int threads, void *data) {
    attention_node *node = data;
    for (int kv_head = thread; kv_head < KV_HEADS; kv_head += threads) {
        va_status status = attend_head(node, out, (size_t)kv_head);
        if (status != VA_OK) node->status = status;
    }
}

/* The node in the place of `ggml_flash_attn_ext`: queries [DIM, 1, QUERY_HEADS], keys and values
 * [DIM, tokens, KV_HEADS], result [DIM, QUERY_HEADS]. */
static struct ggml_tensor *attention(struct ggml_context *context, struct ggml_tensor *q,
                                     struct ggml_tensor *k, struct ggml_tensor *v,
                                     attention_node *node) {
    if (node == NULL) {
        return ggml_flash_attn_ext(context, q, k, v, NULL, 1.0f / sqrtf(DIM), 0, 0);
    }
    struct ggml_tensor *sources[] = {q, k, v};
    return ggml_custom_4d(context, GGML_TYPE_F32, DIM, QUERY_HEADS, 1, 1, sources, 3, run_node,
                          GGML_N_TASKS_MAX, node);
}

/* Weights of a layer, and its cache [KV_HEADS * DIM, tokens]. */
typedef struct {
    struct ggml_tensor *wq, *wk, *wv, *wo, *keys, *values;
} layer;

static void fill(struct ggml_tensor *tensor, unsigned state, float size, float mean) {
    int64_t count = ggml_nelements(tensor);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        float x = size * ((float)(state >> 8) / (float)(1 << 23) - 1.0f) + mean;
        if (tensor->type == GGML_TYPE_F16) ((ggml_fp16_t *)tensor->data)[i] = ggml_fp32_to_fp16(x);
        else ((float *)tensor->data)[i] = x;
    }
}

static struct ggml_tensor *random_tensor(struct ggml_context *context, enum ggml_type type,
                                         int64_t columns, int64_t rows, unsigned seed, float size,
                                         float mean) {
    struct ggml_tensor *tensor = ggml_new_tensor_2d(context, type, columns, rows);
    fill(tensor, seed, size, mean);
    return tensor;
}

static layer random_layer(struct ggml_context *context, enum ggml_type type, int64_t tokens,
                          unsigned seed) {
    layer l;
    l.wq = random_tensor(context, GGML_TYPE_F32, EMBED, QUERY_HEADS * DIM, seed, 0.15f, 0);
    l.wk = random_tensor(context, GGML_TYPE_F32, EMBED, KV_HEADS * DIM, seed + 1, 0.1f, 0);
    l.wv = random_tensor(context, GGML_TYPE_F32, EMBED, KV_HEADS * DIM, seed + 2, 0.1f, 0);
    l.wo = random_tensor(context, GGML_TYPE_F32, QUERY_HEADS * DIM, EMBED, seed + 3, 0.02f, 0);
    l.keys = random_tensor(context, type, KV_HEADS * DIM, tokens, seed + 4, 1, 0);
    l.values = random_tensor(context, type, KV_HEADS * DIM, tokens, seed + 5, 1, 0.5f);
    return l;
}

/* The first `tokens` rows of a cache, [DIM, tokens, KV_HEADS]. */
static struct ggml_tensor *by_head(struct ggml_context *context, struct ggml_tensor *cache,
                                   int64_t tokens) {
    size_t size = ggml_type_size(cache->type);
    return ggml_view_3d(context, cache, DIM, tokens, KV_HEADS, cache->nb[1], DIM * size, 0);
}

static struct ggml_context *new_context(size_t bytes) {
    struct ggml_init_params params = {.mem_size = bytes, .mem_buffer = NULL, .no_alloc = false};
    struct ggml_context *context = ggml_init(params);
    if (context == NULL) exit(1);
    return context;
}

/* Output of one token at position `place`: projections, its row in the cache, attention. */
static void run_layer(const layer *l, int64_t place, int threads, attention_node *node,
                      float *result) {
    struct ggml_context *context = new_context(64u << 20);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    struct ggml_tensor *x = random_tensor(context, GGML_TYPE_F32, EMBED, 1, (unsigned)place, 1, 0);
    struct ggml_tensor *caches[] = {l->keys, l->values}, *weights[] = {l->wk, l->wv};
    for (int i = 0; i < 2; i++) {
        struct ggml_tensor *row = ggml_view_1d(context, caches[i], KV_HEADS * DIM,
                                               (size_t)place * caches[i]->nb[1]);
        struct ggml_tensor *new = ggml_mul_mat(context, weights[i], x);
        ggml_build_forward_expand(graph, ggml_cpy(context, new, row));
    }
    struct ggml_tensor *q = ggml_mul_mat(context, l->wq, x);
    q = ggml_reshape_3d(context, q, DIM, 1, QUERY_HEADS);
    struct ggml_tensor *k = by_head(context, l->keys, place + 1);
    struct ggml_tensor *v = by_head(context, l->values, place + 1);
    struct ggml_tensor *out = attention(context, q, k, v, node);
    out = ggml_mul_mat(context, l->wo, ggml_reshape_1d(context, out, QUERY_HEADS * DIM));
    ggml_build_forward_expand(graph, out);
    if (ggml_graph_compute_with_ctx(context, graph, threads) != GGML_STATUS_SUCCESS) exit(1);
    memcpy(result, out->data, EMBED * sizeof(float));
    ggml_free(context);
}

/* Compares steps of a layer with the node and with ggml's attention. */
static void compare(int threads, const char *toml, enum ggml_type type, double bound) {
    enum { TOKENS = 4096, STEPS = 4 };
    struct ggml_context *context = new_context(64u << 20);
    layer l = random_layer(context, type, TOKENS, 1);
    attention_node node;
    open_node(&node, toml, 0);
    double largest = 0;
    for (int64_t place = TOKENS - STEPS; place < TOKENS; place++) {
        float want[EMBED], got[EMBED];
        run_layer(&l, place, threads, NULL, want);
        run_layer(&l, place, threads, &node, got);
        double difference = 0, norm = 0;
        for (int i = 0; i < EMBED; i++) {
            difference += pow((double)got[i] - want[i], 2);
            norm += pow(want[i], 2);
        }
        largest = fmax(largest, sqrt(difference / norm));
    }
    printf("%s, %s: relative difference of a layer's output %.1e\n", *toml ? toml : "dense",
           ggml_type_name(type), largest);
    if (largest > bound || node.status != VA_OK) exit(1);
    close_node(&node);
    ggml_free(context);
}

/* Times attention over caches of several layers, so that rows come from memory, in milliseconds. */
static double time_attention(const layer *layers, int count, int64_t tokens, int threads,
                             attention_node *nodes) {
    double best = INFINITY;
    for (int round = 0; round < 5; round++) {
        int64_t elapsed = 0;
        for (int i = 0; i < count; i++) {
            struct ggml_context *context = new_context(1u << 20);
            struct ggml_tensor *q =
                ggml_new_tensor_3d(context, GGML_TYPE_F32, DIM, 1, QUERY_HEADS);
            fill(q, (unsigned)(round * count + i), 1, 0);
            struct ggml_tensor *k = by_head(context, layers[i].keys, tokens);
            struct ggml_tensor *v = by_head(context, layers[i].values, tokens);
            struct ggml_cgraph *graph = ggml_new_graph(context);
            struct ggml_tensor *out = attention(context, q, k, v, nodes ? &nodes[i] : NULL);
            ggml_build_forward_expand(graph, out);
            struct ggml_cplan plan = ggml_graph_plan(graph, threads, NULL);
            plan.work_data = malloc(plan.work_size + 1);
            int64_t begin = ggml_time_us();
            if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) exit(1);
            elapsed += ggml_time_us() - begin;
            free(plan.work_data);
            ggml_free(context);
        }
        best = fmin(best, 1e-3 * (double)elapsed / count);
    }
    return best;
}

/* Prints the times of ggml's attention and of the node. */
static void measure(int64_t tokens, int threads) {
    static const char *const PIPELINES[] = {"", "extends = 'priority'"};
    enum { COUNT = 4 };
    struct ggml_context *context =
        new_context((size_t)(COUNT + 1) * ((size_t)tokens * KV_HEADS * DIM * 4 + (16u << 20)));
    layer layers[COUNT];
    for (unsigned i = 0; i < COUNT; i++) layers[i] = random_layer(context, GGML_TYPE_F16, tokens, 10 * i);
    printf("%6d tokens: flash_attn_ext %.2f ms", (int)tokens,
           time_attention(layers, COUNT, tokens, threads, NULL));
    for (int i = 0; i < 2; i++) {
        attention_node nodes[COUNT];
        for (size_t j = 0; j < COUNT; j++) open_node(&nodes[j], PIPELINES[i], j);
        double time = time_attention(layers, COUNT, tokens, threads, nodes);
        printf(", %s %.2f ms (%.1f %% read)", i ? "priority" : "dense", time,
               100.0 * (double)nodes[0].read[0] / (double)tokens);
        for (int j = 0; j < COUNT; j++) close_node(&nodes[j]);
    }
    printf("\n");
    ggml_free(context);
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 1;
    printf("ggml %s, %d threads\n", ggml_version(), threads);
    ggml_cpu_init();
    /* ggml sums values of f16 in f16, the library in f32. */
    compare(threads, "", GGML_TYPE_F32, 1e-4);
    compare(threads, "", GGML_TYPE_F16, 0.02);
    compare(threads, "extends = 'priority'", GGML_TYPE_F32, 0.1);
    measure(8192, threads);
    measure(32768, threads);
    return 0;
}
