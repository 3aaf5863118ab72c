// Decode attention as llama.cpp computes it on a CPU: one GGML_OP_FLASH_ATTN_EXT per layer, on keys
// and values in the caller's memory.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-cpu.h"
#include "ggml.h"

typedef struct {
    struct ggml_context *context; // the tensors' descriptions, without their numbers
    struct ggml_threadpool *pool;
    struct ggml_cgraph **graphs; // [layers]
    struct ggml_cplan *plans;    // [layers]; they share `work`
    void *work;
    float *queries; // [query_heads, dim]
    float *out;     // [query_heads, dim]
    size_t bytes;   // of queries, and of out
} decoder;

static enum ggml_type type_of(const char *name) {
    if (!strcmp(name, "f32")) return GGML_TYPE_F32;
    return strcmp(name, "f16") ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

void ggml_decode_free(decoder *d) {
    if (!d) return;
    if (d->pool) ggml_threadpool_free(d->pool);
    if (d->context) ggml_free(d->context);
    free(d->graphs);
    free(d->plans);
    free(d->work);
    free(d->queries);
    free(d->out);
    free(d);
}

// Makes a decoder, or returns null if there is no memory. keys and values: [layers] pointers to
// [kv_heads, tokens, dim] numbers of the type (f32, f16, bf16), which must outlive the decoder.
decoder *ggml_decode_new(const char *type, int layers, int tokens, int query_heads, int kv_heads, int dim,
                         int threads, void *const *keys, void *const *values) {
    decoder *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    size_t space = (size_t)layers * (ggml_graph_overhead_custom(8, false) + 8 * ggml_tensor_overhead());
    struct ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
    d->bytes = (size_t)query_heads * dim * sizeof(float);
    d->context = ggml_init((struct ggml_init_params){.mem_size = space, .mem_buffer = NULL, .no_alloc = true});
    d->pool = ggml_threadpool_new(&pool);
    d->graphs = calloc(layers, sizeof *d->graphs);
    d->plans = calloc(layers, sizeof *d->plans);
    d->queries = malloc(d->bytes);
    d->out = malloc(d->bytes);
    if (!d->context || !d->pool || !d->graphs || !d->plans || !d->queries || !d->out) {
        ggml_decode_free(d);
        return NULL;
    }
    size_t work = 0;
    for (int i = 0; i < layers; i++) {
        struct ggml_tensor *q = ggml_new_tensor_3d(d->context, GGML_TYPE_F32, dim, 1, query_heads);
        struct ggml_tensor *k = ggml_new_tensor_3d(d->context, type_of(type), dim, tokens, kv_heads);
        struct ggml_tensor *v = ggml_new_tensor_3d(d->context, type_of(type), dim, tokens, kv_heads);
        q->data = d->queries;
        k->data = keys[i];
        v->data = values[i];
        struct ggml_tensor *out = ggml_flash_attn_ext(d->context, q, k, v, NULL, 1.0f / sqrtf(dim), 0.0f, 0.0f);
        out->data = d->out;
        d->graphs[i] = ggml_new_graph_custom(d->context, 8, false);
        ggml_build_forward_expand(d->graphs[i], out);
        d->plans[i] = ggml_graph_plan(d->graphs[i], threads, d->pool);
        work = d->plans[i].work_size > work ? d->plans[i].work_size : work;
    }
    d->work = aligned_alloc(64, (work + 64) / 64 * 64);
    if (!d->work) {
        ggml_decode_free(d);
        return NULL;
    }
    for (int i = 0; i < layers; i++) d->plans[i].work_data = d->work;
    return d;
}

// Attends to one layer, and returns 0 or ggml's status. queries and out: [query_heads, dim].
int ggml_decode_attend(decoder *d, int layer, const float *queries, float *out) {
    memcpy(d->queries, queries, d->bytes);
    int status = ggml_graph_compute(d->graphs[layer], &d->plans[layer]);
    memcpy(out, d->out, d->bytes);
    return status;
}

const char *ggml_decode_version(void) { return ggml_version(); }
