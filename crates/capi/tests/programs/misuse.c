/* Misuse of the interface ends in an error code. The program prints each case that does not. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vattention.h>

enum { QUERY_HEADS = 4, KV_HEADS = 2, DIM = 32, TOKENS = 4000 };

static int faults;
static float numbers[KV_HEADS * TOKENS * DIM];
static float out[QUERY_HEADS * DIM];

static void expect_at(int line, va_status found, va_status expected, const char *part) {
    const char *message = va_last_error();
    if (found != expected || (expected != VA_OK && strstr(message, part) == NULL)) {
        printf("line %d: expected status %d and \"%s\", found %d and \"%s\"\n", line, expected,
               part, found, message);
        faults++;
    }
}

#define EXPECT(call, status, part) expect_at(__LINE__, (call), (status), (part))
#define SUCCEED(call) EXPECT(call, VA_OK, "")

static va_layer layer_of_model(void) {
    va_layer layer = {.size = sizeof layer, .query_heads = QUERY_HEADS, .kv_heads = KV_HEADS,
                      .head_dim = DIM};
    return layer;
}

static va_array array_of(size_t heads, size_t tokens) {
    va_array array = {.size = sizeof array, .dtype = VA_F32, .data = numbers,
                      .shape = {heads, tokens, DIM}};
    return array;
}

static va_output output_of(size_t len) {
    va_output output = {.size = sizeof output, .out = out, .out_len = len};
    return output;
}

static va_attention *new_attention(const char *toml) {
    va_layer layer = layer_of_model();
    va_attention *attention = NULL;
    SUCCEED(va_attention_new(toml, &layer, NULL, &attention));
    return attention;
}

static void test_creation(void) {
    va_layer layer = layer_of_model();
    va_options options = {.size = sizeof options};
    va_attention *attention = NULL;
    EXPECT(va_attention_new(NULL, &layer, NULL, &attention), VA_ERROR_POINTER, "toml");
    EXPECT(va_attention_new("", NULL, NULL, &attention), VA_ERROR_POINTER, "layer");
    EXPECT(va_attention_new("", &layer, NULL, NULL), VA_ERROR_POINTER, "attention");
    EXPECT(va_attention_new("\xff", &layer, NULL, &attention), VA_ERROR_ARGUMENT, "UTF-8");
    EXPECT(va_attention_new("a = 1", &layer, NULL, &attention), VA_ERROR_PIPELINE, "a");
    EXPECT(va_attention_new("[[", &layer, NULL, &attention), VA_ERROR_PIPELINE, "pipeline");
    layer.size = 0;
    EXPECT(va_attention_new("", &layer, NULL, &attention), VA_ERROR_SIZE, "sizeof(va_layer)");
    layer = layer_of_model();
    layer.kv_heads = 3;
    EXPECT(va_attention_new("", &layer, NULL, &attention), VA_ERROR_SHAPE, "query_heads");
    layer = layer_of_model();
    layer.index = 5000;
    EXPECT(va_attention_new("", &layer, NULL, &attention), VA_ERROR_SHAPE, "layer");
    layer = layer_of_model();
    options.storage = 9;
    EXPECT(va_attention_new("", &layer, &options, &attention), VA_ERROR_ARGUMENT, "storage");
    options.storage = VA_F32;
    options.flags = 64;
    EXPECT(va_attention_new("", &layer, &options, &attention), VA_ERROR_ARGUMENT, "flags");
    options.flags = 0;
    options.fall_back = 7;
    EXPECT(va_attention_new("", &layer, &options, &attention), VA_ERROR_ARGUMENT, "fall_back");
    if (attention != NULL) {
        printf("a failed call wrote a handle\n");
        faults++;
    }
}

static void test_arrays(void) {
    va_attention *attention = new_attention("extends = 'priority'");
    va_array keys = array_of(KV_HEADS, TOKENS), values = keys, wrong;
    EXPECT(va_attention_append(attention, NULL, &values, NULL), VA_ERROR_POINTER, "keys");
    EXPECT(va_attention_append(attention, &keys, NULL, NULL), VA_ERROR_POINTER, "values");
    wrong = array_of(KV_HEADS + 1, 5);
    EXPECT(va_attention_append(attention, &wrong, &values, NULL), VA_ERROR_SHAPE, "keys");
    wrong = array_of(KV_HEADS, TOKENS - 1);
    EXPECT(va_attention_append(attention, &keys, &wrong, NULL), VA_ERROR_SHAPE, "values");
    wrong = keys;
    wrong.dtype = 17;
    EXPECT(va_attention_append(attention, &wrong, &values, NULL), VA_ERROR_ARGUMENT, "dtype");
    wrong = keys;
    wrong.data = (const char *)numbers + 1;
    EXPECT(va_attention_append(attention, &wrong, &values, NULL), VA_ERROR_POINTER, "aligned");
    wrong = keys;
    wrong.shape[1] = SIZE_MAX / 4;
    EXPECT(va_attention_append(attention, &wrong, &values, NULL), VA_ERROR_SHAPE, "keys");
    uint8_t classes[TOKENS] = {0, 1, 2, 3};
    EXPECT(va_attention_append(attention, &keys, &values, classes), VA_ERROR_ARGUMENT, "classes[3]");
    static float infinite[KV_HEADS * DIM];
    infinite[5] = 1e30f;
    wrong = array_of(KV_HEADS, 1);
    wrong.data = infinite;
    EXPECT(va_attention_append(attention, &wrong, &wrong, NULL), VA_ERROR_NUMBER, "keys[0, 0, 5]");
    SUCCEED(va_attention_append(attention, &keys, &values, NULL));

    va_array queries = array_of(QUERY_HEADS, 1);
    va_output output = output_of(QUERY_HEADS * DIM);
    va_report reports[QUERY_HEADS];
    EXPECT(va_attention_attend(attention, NULL, NULL, &output), VA_ERROR_POINTER, "queries");
    EXPECT(va_attention_attend(attention, &queries, NULL, NULL), VA_ERROR_POINTER, "output");
    size_t visible = TOKENS + 1;
    EXPECT(va_attention_attend(attention, &queries, &visible, &output), VA_ERROR_SHAPE, "visible");
    output.out_len--;
    EXPECT(va_attention_attend(attention, &queries, NULL, &output), VA_ERROR_SHAPE, "out_len");
    output = output_of(QUERY_HEADS * DIM);
    output.out = NULL;
    EXPECT(va_attention_attend(attention, &queries, NULL, &output), VA_ERROR_POINTER, "output.out");
    output = output_of(QUERY_HEADS * DIM);
    output.reports = reports;
    output.reports_len = QUERY_HEADS;
    EXPECT(va_attention_attend(attention, &queries, NULL, &output), VA_ERROR_SIZE, "report_size");
    output.report_size = sizeof *reports;
    output.reports_len = 1;
    EXPECT(va_attention_attend(attention, &queries, NULL, &output), VA_ERROR_SHAPE, "reports_len");
    output.reports_len = QUERY_HEADS;
    SUCCEED(va_attention_attend(attention, &queries, NULL, &output));
    EXPECT(va_attention_truncate(attention, TOKENS + 1), VA_ERROR_SHAPE, "tokens");
    SUCCEED(va_attention_free(attention));
}

static void test_handles(void) {
    va_attention *attention = new_attention("");
    va_array queries = array_of(QUERY_HEADS, 1);
    va_output output = output_of(QUERY_HEADS * DIM);
    size_t tokens = 0;
    EXPECT(va_attention_len(NULL, &tokens), VA_ERROR_POINTER, "attention");
    EXPECT(va_attention_len((va_attention *)&tokens, &tokens), VA_ERROR_HANDLE, "never created");
    EXPECT(va_pipeline_len((va_pipeline *)attention, &tokens), VA_ERROR_HANDLE, "pipeline");
    EXPECT(va_attention_len(attention, NULL), VA_ERROR_POINTER, "tokens");
    EXPECT(va_attention_fork(attention, NULL, NULL), VA_ERROR_POINTER, "fork");
    EXPECT(va_attention_attend(attention, &queries, NULL, &output), VA_ERROR_SHAPE, "tokens");
    va_attention *twice[2] = {attention, attention};
    const va_array *both[2] = {&queries, &queries};
    const va_output *outputs[2] = {&output, &output};
    va_status statuses[2] = {VA_OK, VA_OK};
    EXPECT(va_attend_batch(2, twice, both, NULL, outputs, statuses, NULL), VA_ERROR_BUSY,
           "sequence 1 of the batch");
    EXPECT(statuses[1], VA_ERROR_BUSY, "");
    EXPECT(va_attend_batch(1, twice, NULL, NULL, outputs, NULL, NULL), VA_ERROR_POINTER, "queries");
    EXPECT(va_attend_batch(1, twice, both, NULL, outputs, statuses, NULL), VA_ERROR_SHAPE,
           "sequence 0 of the batch");
    SUCCEED(va_attend_batch(0, NULL, NULL, NULL, NULL, NULL, NULL));
    SUCCEED(va_attention_free(attention));
    EXPECT(va_attention_free(attention), VA_ERROR_HANDLE, "freed");
    EXPECT(va_attention_len(attention, &tokens), VA_ERROR_HANDLE, "freed");
    SUCCEED(va_attention_free(NULL));
    SUCCEED(va_pipeline_free(NULL));
}

static va_pages pages_of(const va_rows *keys, const va_rows *values, const uint32_t *table) {
    va_pages pages = {.size = sizeof pages, .keys = keys, .values = values, .table = table,
                      .table_len = 2, .page_tokens = 16, .tokens = 20};
    return pages;
}

static void test_pages(void) {
    va_layer layer = layer_of_model();
    va_pipeline *pipeline = NULL;
    const char *quest = "[[selectors]]\ntype = 'quest'\nsize = 4\n";
    EXPECT(va_pipeline_new(quest, &layer, KV_HEADS, NULL, &pipeline), VA_ERROR_SHAPE, "kv_head");
    SUCCEED(va_pipeline_new(quest, &layer, 1, NULL, &pipeline));
    va_rows rows = {.size = sizeof rows, .dtype = VA_F32, .pool = numbers, .elements = 4 * 16 * DIM,
                    .page_stride = 16 * DIM, .row_stride = DIM};
    uint32_t table[2] = {3, 1}, outside[2] = {3, 4};
    va_pages pages = pages_of(&rows, &rows, table);
    va_rows wrong = rows;
    EXPECT(va_pipeline_append(pipeline, NULL, NULL), VA_ERROR_POINTER, "pages");
    pages.keys = NULL;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_POINTER, "pages.keys");
    pages = pages_of(&rows, &rows, outside);
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "block table[1]");
    pages = pages_of(&rows, &rows, NULL);
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_POINTER, "pages.table");
    pages = pages_of(&rows, &rows, table);
    pages.table_len = 1;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "block table");
    pages = pages_of(&rows, &rows, table);
    pages.page_tokens = 0;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "rows of a page");
    pages = pages_of(&wrong, &rows, table);
    wrong.row_stride = DIM - 1;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "row_stride");
    wrong = rows;
    wrong.page_stride = DIM;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "stride of pages");
    wrong = rows;
    wrong.offset = SIZE_MAX;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "block table[0]");
    wrong = rows;
    wrong.dtype = VA_Q8;
    wrong.scale_offset = SIZE_MAX;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "scale_offset");
    pages = pages_of(&rows, &rows, table);
    va_array queries = array_of(QUERY_HEADS / KV_HEADS, 1);
    va_output output = output_of(QUERY_HEADS / KV_HEADS * DIM);
    EXPECT(va_attend_pages(pipeline, &pages, &queries, NULL, &output), VA_ERROR_SHAPE, "appended");
    SUCCEED(va_pipeline_append(pipeline, &pages, NULL));
    SUCCEED(va_attend_pages(pipeline, &pages, &queries, NULL, &output));
    pages.tokens = 19;
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_SHAPE, "at least 20");
    SUCCEED(va_pipeline_truncate(pipeline, &pages, 19));
    size_t tokens = 99;
    SUCCEED(va_pipeline_len(pipeline, &tokens));
    if (tokens != 19) faults++;
    SUCCEED(va_pipeline_free(pipeline));
    EXPECT(va_pipeline_free(pipeline), VA_ERROR_HANDLE, "freed");
}

static void test_sharing(void) {
    va_layer layer = layer_of_model();
    va_pipeline *donor = NULL, *pipeline = NULL, *other = NULL;
    const char *quest = "[[selectors]]\ntype = 'quest'\nsize = 4\n";
    va_rows rows = {.size = sizeof rows, .dtype = VA_F32, .pool = numbers, .elements = 4 * 16 * DIM,
                    .page_stride = 16 * DIM, .row_stride = DIM};
    uint32_t table[5] = {3, 1, 0, 2, 3}, others[5] = {3, 1, 0, 1, 3};
    va_pages pages = {.size = sizeof pages, .keys = &rows, .values = &rows, .table = table,
                      .table_len = 5, .page_tokens = 16, .tokens = 70};
    size_t tokens = 99;
    SUCCEED(va_pipeline_new(quest, &layer, 0, NULL, &donor));
    SUCCEED(va_pipeline_new(quest, &layer, 0, NULL, &pipeline));
    SUCCEED(va_pipeline_new(quest, &layer, 1, NULL, &other));
    SUCCEED(va_pipeline_append(donor, &pages, NULL));
    EXPECT(va_pipeline_share(pipeline, donor, &pages, NULL), VA_ERROR_POINTER, "tokens");
    EXPECT(va_pipeline_share(pipeline, NULL, &pages, &tokens), VA_ERROR_POINTER, "pipeline");
    EXPECT(va_pipeline_share(pipeline, pipeline, &pages, &tokens), VA_ERROR_BUSY, "another call");
    EXPECT(va_pipeline_share(other, donor, &pages, &tokens), VA_ERROR_SHAPE, "donor");
    EXPECT(va_pipeline_share(donor, pipeline, &pages, &tokens), VA_ERROR_SHAPE, "expected 0");
    pages.table = others;
    SUCCEED(va_pipeline_share(pipeline, donor, &pages, &tokens));
    if (tokens != 0) faults++;
    pages.table = table;
    SUCCEED(va_pipeline_share(pipeline, donor, &pages, &tokens));
    if (tokens != 64) faults++;
    SUCCEED(va_pipeline_append(pipeline, &pages, NULL));
    SUCCEED(va_pipeline_len(pipeline, &tokens));
    if (tokens != 70) faults++;
    SUCCEED(va_pipeline_free(donor));
    SUCCEED(va_pipeline_free(pipeline));
    SUCCEED(va_pipeline_free(other));
    SUCCEED(va_pipeline_new("extends = 'pq-cache'", &layer, 0, NULL, &donor));
    SUCCEED(va_pipeline_new("extends = 'pq-cache'", &layer, 0, NULL, &pipeline));
    EXPECT(va_pipeline_share(pipeline, donor, &pages, &tokens), VA_ERROR_UNSUPPORTED, "pq-cache");
    SUCCEED(va_pipeline_free(donor));
    SUCCEED(va_pipeline_free(pipeline));
}

static void test_needs(void) {
    va_layer layer = layer_of_model();
    va_pipeline *pipeline = NULL;
    va_needs needs = {.size = sizeof needs};
    SUCCEED(va_pipeline_new("extends = 'fastgen'", &layer, 0, NULL, &pipeline));
    EXPECT(va_pipeline_needs(pipeline, NULL), VA_ERROR_POINTER, "needs");
    SUCCEED(va_pipeline_needs(pipeline, &needs));
    if (needs.needs_classes != 1 || needs.needs_observe != 1 || needs.can_truncate != 0) faults++;
    va_rows rows = {.size = sizeof rows, .dtype = VA_F32, .pool = numbers, .elements = 4 * 16 * DIM,
                    .page_stride = 16 * DIM, .row_stride = DIM};
    uint32_t table[2] = {0, 1};
    uint8_t classes[20] = {0};
    va_pages pages = pages_of(&rows, &rows, table);
    va_array queries = array_of(QUERY_HEADS / KV_HEADS, 1);
    va_output output = output_of(QUERY_HEADS / KV_HEADS * DIM);
    EXPECT(va_pipeline_append(pipeline, &pages, NULL), VA_ERROR_INPUT, "class");
    SUCCEED(va_pipeline_append(pipeline, &pages, classes));
    EXPECT(va_attend_pages(pipeline, &pages, &queries, NULL, &output), VA_ERROR_INPUT, "observe");
    SUCCEED(va_pipeline_observe(pipeline, &pages, &queries));
    SUCCEED(va_attend_pages(pipeline, &pages, &queries, NULL, &output));
    EXPECT(va_pipeline_truncate(pipeline, &pages, 5), VA_ERROR_UNSUPPORTED, "fastgen");
    SUCCEED(va_pipeline_free(pipeline));
    va_attention *attention = new_attention("extends = 'h2o'");
    SUCCEED(va_attention_needs(attention, &needs));
    if (needs.needs_feedback != 1 || needs.needs_classes != 0) faults++;
    SUCCEED(va_attention_free(attention));
}

static void *attend_often(void *attention) {
    static float outs[2][QUERY_HEADS * DIM];
    static int next;
    va_array queries = array_of(QUERY_HEADS, 1);
    va_output output = output_of(QUERY_HEADS * DIM);
    output.out = outs[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)];
    size_t busy = 0;
    for (int i = 0; i < 400; i++) {
        va_status status = va_attention_attend(attention, &queries, NULL, &output);
        if (status == VA_ERROR_BUSY) busy++;
        else SUCCEED(status);
    }
    return (void *)busy;
}

static void test_threads(void) {
    va_attention *attention = new_attention("");
    va_array rows = array_of(KV_HEADS, TOKENS);
    SUCCEED(va_attention_append(attention, &rows, &rows, NULL));
    pthread_t threads[2];
    void *busy[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, attend_often, attention);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], &busy[i]);
    printf("%zu of 800 calls found the handle busy\n", (size_t)busy[0] + (size_t)busy[1]);
    SUCCEED(va_attention_free(attention));
}

int main(void) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        numbers[i] = (float)(i * 7919 % 1000) / 500.0f - 1.0f;
    }
    test_creation();
    test_arrays();
    test_handles();
    test_pages();
    test_sharing();
    test_needs();
    test_threads();
    printf("%d faults\n", faults);
    return faults != 0;
}
