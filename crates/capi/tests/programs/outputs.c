/* Prints the outputs and reports of both ways of the interface, which a test in Rust compares with
 * the library's. */

#include <stdio.h>
#include <stdlib.h>
#include <vattention.h>

enum { QUERY_HEADS = 4, KV_HEADS = 2, GROUP = QUERY_HEADS / KV_HEADS, HEAD_DIM = 32, VALUE_DIM = 64 };
enum { TOKENS = 3000, PROMPT = 2990, QUERIES = 2, LAYER = 3 };

static float keys[TOKENS][KV_HEADS][HEAD_DIM], values[TOKENS][KV_HEADS][VALUE_DIM];
static float queries[QUERY_HEADS][QUERIES][HEAD_DIM];
static float out[QUERY_HEADS * QUERIES * VALUE_DIM], logs[QUERY_HEADS * QUERIES];
static va_report reports[QUERY_HEADS * QUERIES];

static void check(va_status status) {
    if (status != VA_OK) {
        fprintf(stderr, "%s\n", va_last_error());
        exit(1);
    }
}

static void fill(float *numbers, size_t count, unsigned state, float mean) {
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f + mean;
    }
}

/* Array [heads, count, dim] of numbers that lie as [count, heads, dim]. */
static va_array by_head(const float *numbers, size_t heads, size_t count, size_t dim) {
    va_array array = {.size = sizeof array, .dtype = VA_F32, .data = numbers,
                      .shape = {heads, count, dim}, .strides = {dim, heads * dim, 1}};
    return array;
}

static va_output output_of(size_t heads, size_t count) {
    va_output output = {.size = sizeof output, .out = out, .out_len = heads * count * VALUE_DIM,
                        .log_denominator = logs, .log_denominator_len = heads * count,
                        .reports = reports, .report_size = sizeof *reports,
                        .reports_len = heads * count};
    return output;
}

static void print(const char *name, size_t heads, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < heads * count * VALUE_DIM; i++) printf(" %.9g", (double)out[i]);
    for (size_t i = 0; i < heads * count; i++) printf(" %.9g", (double)logs[i]);
    for (size_t i = 0; i < heads * count; i++) {
        printf(" %zu %u %u %u", reports[i].read, reports[i].kind, reports[i].assumes,
               reports[i].flags);
    }
    printf("\n");
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    const char *toml = arguments[1];
    static const float sinks[QUERY_HEADS] = {0.5f, -1, 2, 0};
    va_layer layer = {.size = sizeof layer, .query_heads = QUERY_HEADS, .kv_heads = KV_HEADS,
                      .head_dim = HEAD_DIM, .value_dim = VALUE_DIM, .index = LAYER,
                      .scale = 0.5f, .soft_cap = 30, .sink_logits = sinks};
    va_options options = {.size = sizeof options, .sequence = 5};
    fill(&keys[0][0][0], TOKENS * KV_HEADS * HEAD_DIM, 1, 0);
    fill(&values[0][0][0], TOKENS * KV_HEADS * VALUE_DIM, 2, 0.5f);
    fill(&queries[0][0][0], QUERY_HEADS * QUERIES * HEAD_DIM, 3, 0);

    va_array all_queries = {.size = sizeof all_queries, .dtype = VA_F32, .data = queries,
                            .shape = {QUERY_HEADS, QUERIES, HEAD_DIM}};
    va_attention *attention = NULL, *fork = NULL;
    check(va_attention_new(toml, &layer, &options, &attention));
    va_array k = by_head(&keys[0][0][0], KV_HEADS, PROMPT, HEAD_DIM);
    va_array v = by_head(&values[0][0][0], KV_HEADS, PROMPT, VALUE_DIM);
    check(va_attention_append(attention, &k, &v, NULL));
    check(va_attention_observe(attention, &all_queries));
    k = by_head(&keys[PROMPT][0][0], KV_HEADS, TOKENS - PROMPT, HEAD_DIM);
    v = by_head(&values[PROMPT][0][0], KV_HEADS, TOKENS - PROMPT, VALUE_DIM);
    check(va_attention_append(attention, &k, &v, NULL));
    size_t visible[QUERIES] = {TOKENS - 1, TOKENS};
    va_output output = output_of(QUERY_HEADS, QUERIES);
    check(va_attention_attend(attention, &all_queries, visible, &output));
    print("cache", QUERY_HEADS, QUERIES);
    uint32_t sequence = 6;
    check(va_attention_fork(attention, &sequence, &fork));
    check(va_attention_attend(fork, &all_queries, NULL, &output));
    print("fork", QUERY_HEADS, QUERIES);
    check(va_attention_free(fork));
    check(va_attention_free(attention));

    /* All tokens are in one page. */
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        va_pipeline *pipeline = NULL;
        check(va_pipeline_new(toml, &layer, kv_head, &options, &pipeline));
        va_rows key_rows = {.size = sizeof key_rows, .dtype = VA_F32, .pool = keys,
                            .elements = sizeof keys / sizeof(float), .offset = kv_head * HEAD_DIM,
                            .page_stride = TOKENS * KV_HEADS * HEAD_DIM,
                            .row_stride = KV_HEADS * HEAD_DIM};
        va_rows value_rows = {.size = sizeof value_rows, .dtype = VA_F32, .pool = values,
                              .elements = sizeof values / sizeof(float),
                              .offset = kv_head * VALUE_DIM,
                              .page_stride = TOKENS * KV_HEADS * VALUE_DIM,
                              .row_stride = KV_HEADS * VALUE_DIM};
        uint32_t table = 0;
        va_pages pages = {.size = sizeof pages, .keys = &key_rows, .values = &value_rows,
                          .table = &table, .table_len = 1, .page_tokens = TOKENS,
                          .tokens = PROMPT};
        va_array group = all_queries;
        group.data = queries[kv_head * GROUP];
        group.shape[0] = GROUP;
        check(va_pipeline_append(pipeline, &pages, NULL));
        check(va_pipeline_observe(pipeline, &pages, &group));
        pages.tokens = TOKENS;
        check(va_pipeline_append(pipeline, &pages, NULL));
        output = output_of(GROUP, QUERIES);
        check(va_attend_pages(pipeline, &pages, &group, visible, &output));
        print(kv_head == 0 ? "pages0" : "pages1", GROUP, QUERIES);
        check(va_pipeline_free(pipeline));
    }
    return 0;
}
