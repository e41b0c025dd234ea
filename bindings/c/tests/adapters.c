/* Prints the logits after tokens, with two adapters and without. Arguments: a model, an adapter and its scale, another one
 * and its scale, tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <triad.h>

#define CHECK(holds)                                                                                                   \
    if (!(holds)) {                                                                                                    \
        fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #holds, triad_last_error());                        \
        exit(1);                                                                                                       \
    }

static void print(const TriadSession *session, const uint32_t *tokens, size_t count) {
    const float *logits = NULL;
    size_t vocab = 0, index;
    CHECK(triad_session_truncate(session, 0) == TRIAD_STATUS_OK);
    CHECK(triad_session_prefill(session, tokens, count, NULL) == TRIAD_STATUS_OK);
    CHECK(triad_session_logits(session, &logits, &vocab) == TRIAD_STATUS_OK);
    for (index = 0; index < vocab; index++)
        printf("%.9g ", logits[index]);
    printf("\n");
}

int main(int count, char **arguments) {
    TriadModel *model = NULL;
    TriadSession *session = NULL;
    TriadOpenOptions options = triad_open_options_default();
    TriadAdapter adapters[2], missing = {"no-adapter.gguf", 1};
    uint32_t tokens[64];
    int index;
    if (count < 7 || count > 70)
        return 2;
    options.run_float = true;
    options.threads = 1;
    options.kv_format = TRIAD_KV_FORMAT_F32;
    for (index = 0; index < 2; index++) {
        adapters[index].path = arguments[2 + 2 * index];
        adapters[index].scale = (float)atof(arguments[3 + 2 * index]);
    }
    for (index = 6; index < count; index++)
        tokens[index - 6] = (uint32_t)atoi(arguments[index]);
    CHECK(triad_model_open(arguments[1], &options, NULL, &model) == TRIAD_STATUS_OK);
    CHECK(triad_session_new(model, &session) == TRIAD_STATUS_OK);
    print(session, tokens, (size_t)count - 6);
    CHECK(triad_session_set_adapters(session, adapters, 2) == TRIAD_STATUS_OK);
    print(session, tokens, (size_t)count - 6);
    CHECK(triad_session_set_adapters(session, &missing, 1) == TRIAD_STATUS_MODEL);
    CHECK(strstr(triad_last_error(), "no-adapter.gguf") != NULL);
    CHECK(triad_session_set_adapters(session, NULL, 1) == TRIAD_STATUS_INVALID_ARGUMENT);
    print(session, tokens, (size_t)count - 6);
    CHECK(triad_session_set_adapters(session, NULL, 0) == TRIAD_STATUS_OK);
    print(session, tokens, (size_t)count - 6);
    triad_session_free(session);
    triad_model_free(model);
    return 0;
}
