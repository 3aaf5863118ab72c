/* The library keeps keys and values: the C part of docs/embedding.md.
 *
 *     cc cache.c $(pkg-config --cflags --libs vattention) */

#include <stdio.h>
#include <stdlib.h>
#include <vattention.h>

enum { QUERY_HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 16384, STEPS = 4 };

static const char *const PIPELINE =
    "extends = 'priority'\n"
    "estimator.epsilon = 0.05\n";

static void check(va_status status) {
    if (status != VA_OK) {
        fprintf(stderr, "%s\n", va_last_error());
        exit(1);
    }
}

/* Contiguous array [heads, tokens, DIM] of pseudo-random numbers around a mean. */
static va_array random_array(size_t heads, size_t tokens, float mean, unsigned seed) {
    size_t count = heads * tokens * DIM;
    float *numbers = malloc(count * sizeof *numbers);
    if (numbers == NULL) exit(1);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        numbers[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f + mean;
    }
    va_array array = {.size = sizeof array, .dtype = VA_F32, .data = numbers,
                      .shape = {heads, tokens, DIM}};
    return array;
}

static void free_array(va_array array) { free((void *)array.data); }

int main(void) {
    va_layer layer = {.size = sizeof layer, .query_heads = QUERY_HEADS, .kv_heads = KV_HEADS,
                      .head_dim = DIM};
    va_options options = {.size = sizeof options, .sequence = 7, .storage = VA_BF16};
    va_attention *attention = NULL;
    check(va_attention_new(PIPELINE, &layer, &options, &attention));

    va_array keys = random_array(KV_HEADS, PROMPT, 0, 1);
    va_array values = random_array(KV_HEADS, PROMPT, 0.5f, 2);
    check(va_attention_append(attention, &keys, &values, NULL));
    free_array(keys);
    free_array(values);

    static float out[QUERY_HEADS * DIM];
    va_report reports[QUERY_HEADS];
    va_output output = {.size = sizeof output, .out = out, .out_len = QUERY_HEADS * DIM,
                        .reports = reports, .report_size = sizeof *reports,
                        .reports_len = QUERY_HEADS};
    for (unsigned step = 0; step < STEPS; step++) {
        va_array key = random_array(KV_HEADS, 1, 0, 10 + step);
        va_array value = random_array(KV_HEADS, 1, 0.5f, 20 + step);
        va_array query = random_array(QUERY_HEADS, 1, 0, 30 + step);
        check(va_attention_append(attention, &key, &value, NULL));
        check(va_attention_attend(attention, &query, NULL, &output));
        printf("step %u: head 0 read %zu of %zu tokens; error at most %.3f with probability %.2f\n",
               step, reports[0].read, reports[0].visible, reports[0].bar, 1 - reports[0].delta);
        free_array(key);
        free_array(value);
        free_array(query);
    }
    size_t rows = 0, indexes = 0;
    check(va_attention_bytes(attention, &rows, &indexes));
    printf("%zu bytes of keys and values, %zu bytes of indexes\n", rows, indexes);
    check(va_attention_free(attention));
    return 0;
}
