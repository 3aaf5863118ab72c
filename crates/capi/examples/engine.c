/* A toy engine that keeps keys and values in pages of one pool, and two sequences that share pages
 * and their index. Each output is compared with dense attention.
 *
 *     cc engine.c $(pkg-config --cflags --libs vattention) -lm */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vattention.h>

enum { QUERY_HEADS = 4, KV_HEADS = 2, GROUP = QUERY_HEADS / KV_HEADS, DIM = 64 };
enum { PAGE_TOKENS = 16, PAGES = 512, PROMPT = 3000, STEPS = 8 };
/* A page is [2 (key, value), PAGE_TOKENS, KV_HEADS, DIM]. */
enum { ROW = KV_HEADS * DIM, PAGE = 2 * PAGE_TOKENS * ROW };

static const char *const PIPELINE =
    "[[selectors]]\n"
    "type = 'sink'\n"
    "size = 16\n"
    "[[selectors]]\n"
    "type = 'window'\n"
    "size = 64\n"
    "[[selectors]]\n"
    "type = 'oracle-top-k'\n"
    "size = 0.02\n"
    "[estimator]\n"
    "type = 'ratio'\n"
    "epsilon = 0.2\n"
    "delta = 0.01\n";

static float pool[PAGES * PAGE];
static uint32_t next_page;

typedef struct {
    uint32_t table[PAGES];
    size_t tokens;
    va_pipeline *heads[KV_HEADS];
} sequence;

static void check(va_status status) {
    if (status != VA_OK) {
        fprintf(stderr, "%s\n", va_last_error());
        exit(1);
    }
}

/* Next pseudo-random number from -1 to 1. */
static float next_number(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (float)(1 << 23) - 1.0f;
}

/* Key (0) or value (1) of a token of a KV head. */
static float *row(const sequence *s, size_t token, int part, size_t kv_head) {
    float *page = pool + (size_t)s->table[token / PAGE_TOKENS] * PAGE;
    return page + ((size_t)part * PAGE_TOKENS + token % PAGE_TOKENS) * ROW + kv_head * DIM;
}

/* Stores a token of all KV heads, in a new page if the last one is full. */
static void store_token(sequence *s) {
    if (s->tokens % PAGE_TOKENS == 0) {
        s->table[s->tokens / PAGE_TOKENS] = next_page++;
    }
    for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        for (size_t i = 0; i < DIM; i++) {
            row(s, s->tokens, 0, kv_head)[i] = next_number();
            row(s, s->tokens, 1, kv_head)[i] = next_number() + 0.3f;
        }
    }
    s->tokens++;
}

typedef void with_rows(va_pipeline *head, const va_pages *pages, void *argument);

/* Calls `call` with the rows of a KV head. */
static void with_pages(const sequence *s, size_t kv_head, with_rows *call, void *argument) {
    va_rows keys = {.size = sizeof keys, .dtype = VA_F32, .pool = pool, .elements = PAGES * PAGE,
                    .offset = kv_head * DIM, .page_stride = PAGE, .row_stride = ROW};
    va_rows values = keys;
    values.offset += (size_t)PAGE_TOKENS * ROW;
    va_pages pages = {.size = sizeof pages, .keys = &keys, .values = &values, .table = s->table,
                      .table_len = (s->tokens + PAGE_TOKENS - 1) / PAGE_TOKENS,
                      .page_tokens = PAGE_TOKENS, .tokens = s->tokens};
    call(s->heads[kv_head], &pages, argument);
}

static void append(va_pipeline *head, const va_pages *pages, void *unused) {
    (void)unused;
    check(va_pipeline_append(head, pages, NULL));
}

/* Takes over the index of the tokens in common with another sequence, in blocks of 64. */
static void share_index(va_pipeline *head, const va_pages *pages, void *donor) {
    size_t tokens = 0;
    check(va_pipeline_share(head, donor, pages, &tokens));
    if (tokens != pages->tokens / 64 * 64) {
        fprintf(stderr, "%zu tokens of %zu are shared\n", tokens, pages->tokens);
        exit(1);
    }
}

typedef struct {
    float queries[GROUP * DIM], out[GROUP * DIM];
    va_report reports[GROUP];
} step;

static void attend(va_pipeline *head, const va_pages *pages, void *argument) {
    step *s = argument;
    va_array queries = {.size = sizeof queries, .dtype = VA_F32, .data = s->queries,
                        .shape = {GROUP, 1, DIM}};
    va_output output = {.size = sizeof output, .out = s->out, .out_len = GROUP * DIM,
                        .reports = s->reports, .report_size = sizeof *s->reports,
                        .reports_len = GROUP};
    check(va_attend_pages(head, pages, &queries, NULL, &output));
}

/* Relative error of an output from dense attention. */
static double error_of(const sequence *s, size_t kv_head, const float *query, const float *out) {
    double sum = 0, exact[DIM] = {0}, difference = 0, norm = 0;
    for (size_t token = 0; token < s->tokens; token++) {
        double logit = 0;
        for (size_t i = 0; i < DIM; i++) logit += (double)query[i] * row(s, token, 0, kv_head)[i];
        double weight = exp(logit / sqrt(DIM));
        sum += weight;
        for (size_t i = 0; i < DIM; i++) exact[i] += weight * row(s, token, 1, kv_head)[i];
    }
    for (size_t i = 0; i < DIM; i++) {
        double x = exact[i] / sum;
        difference += (x - out[i]) * (x - out[i]);
        norm += x * x;
    }
    return sqrt(difference / norm);
}

/* Decodes tokens, and prints the largest error. */
static void decode(sequence *s, const char *name) {
    for (int i = 0; i < STEPS; i++) {
        store_token(s);
        size_t read = 0;
        double largest = 0;
        for (size_t kv_head = 0; kv_head < KV_HEADS; kv_head++) {
            step now;
            for (size_t j = 0; j < GROUP * DIM; j++) now.queries[j] = next_number();
            with_pages(s, kv_head, append, NULL);
            with_pages(s, kv_head, attend, &now);
            for (size_t member = 0; member < GROUP; member++) {
                const va_report *report = &now.reports[member];
                const float *query = now.queries + member * DIM, *out = now.out + member * DIM;
                double error = error_of(s, kv_head, query, out);
                /* A row that read everything is dense attention up to rounding. */
                double bound = report->kind == VA_KIND_EXACT ? 1e-5 : report->epsilon;
                if (error > bound || !(report->flags & VA_HELD)) {
                    fprintf(stderr, "%s: error %g exceeds %g\n", name, error, bound);
                    exit(1);
                }
                read += report->read;
                largest = error > largest ? error : largest;
            }
        }
        printf("%s, step %d: %4.1f %% read, error %.4f\n", name, i,
               100.0 * (double)read / (double)(QUERY_HEADS * s->tokens), largest);
    }
}

/* Creates the pipelines of a sequence without tokens. */
static void create(sequence *s, const char *pipeline, uint32_t number) {
    va_layer layer = {.size = sizeof layer, .query_heads = QUERY_HEADS, .kv_heads = KV_HEADS,
                      .head_dim = DIM};
    va_options options = {.size = sizeof options, .sequence = number};
    for (size_t i = 0; i < KV_HEADS; i++) {
        check(va_pipeline_new(pipeline, &layer, i, &options, &s->heads[i]));
    }
}

/* Starts a sequence with a prompt. Its tokens are indexed when they are needed. */
static void start(sequence *s, const char *pipeline, uint32_t number) {
    create(s, pipeline, number);
    for (size_t i = 0; i < PROMPT; i++) store_token(s);
}

/* Starts a sequence that shares the full pages of another one's prompt. */
static void share(sequence *s, const sequence *other, uint32_t number) {
    create(s, PIPELINE, number);
    memcpy(s->table, other->table, sizeof s->table);
    s->tokens = PROMPT / PAGE_TOKENS * PAGE_TOKENS;
    for (size_t i = 0; i < KV_HEADS; i++) with_pages(s, i, share_index, other->heads[i]);
}

static void finish(sequence *s) {
    for (size_t i = 0; i < KV_HEADS; i++) check(va_pipeline_free(s->heads[i]));
}

int main(void) {
    static sequence first, second, dense;
    start(&first, PIPELINE, 1);
    decode(&first, "first");
    share(&second, &first, 2);
    decode(&second, "second");
    start(&dense, "", 3); /* A pipeline without selectors reads everything. */
    decode(&dense, "dense");
    finish(&first);
    finish(&second);
    finish(&dense);
    return 0;
}
