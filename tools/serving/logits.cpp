// Prints the logits of llama.cpp: `logits MODEL LENGTH TOKEN...`. LENGTH tokens are the prompt; a
// line has the logits after it, and further lines those after each of the other tokens.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static void fail(const char *message) {
    fprintf(stderr, "logits: %s\n", message);
    exit(1);
}

static void log_errors(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fail("expected the arguments MODEL LENGTH TOKEN...");
    }
    llama_log_set(log_errors, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr) {
        fail("expected a model");
    }
    int length = atoi(argv[2]);
    std::vector<llama_token> tokens;
    for (int i = 3; i < argc; i++) {
        tokens.push_back(atoi(argv[i]));
    }

    // Everything but the weights is in f32, so that results differ by rounding alone.
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr) {
        fail("expected a context");
    }
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int first = 0; first < (int)tokens.size();) {
        int count = first == 0 ? length : 1;
        if (llama_decode(context, llama_batch_get_one(&tokens[first], count)) != 0) {
            fail("expected logits");
        }
        first += count;
        const float *logits = llama_get_logits_ith(context, -1);
        for (int i = 0; i < vocabulary; i++) {
            printf("%.9g%c", logits[i], i + 1 < vocabulary ? ' ' : '\n');
        }
    }
    llama_free(context);
    llama_model_free(model);
}
