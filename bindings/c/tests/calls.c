/* Every function of triad.h, its errors, and what it frees: calls MODEL FILE. FILE is written. Exits with 0 if all is as it
 * should be. Compiled by tests/programs.rs, and with sanitizers by bindings/c/check. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <triad.h>

#define CHECK(holds)                                                                              \
    do {                                                                                          \
        if (!(holds)) {                                                                           \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #holds, triad_last_error()); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)
#define OK(call) CHECK((call) == TRIAD_STATUS_OK)
#define FAILS(call, status, text) CHECK((call) == (status) && strstr(triad_last_error(), text))

static const uint32_t PROMPT[] = {504, 3575, 282, 4649, 314, 7042};
static const size_t COUNT = sizeof PROMPT / sizeof *PROMPT;

struct Part {
    char text[4096];
    int parts, most;
};

static int32_t on_text(const char *text, void *user) {
    struct Part *part = user;
    strncat(part->text, text, sizeof part->text - strlen(part->text) - 1);
    return ++part->parts >= part->most;
}

static void on_step(const char *step, void *user) {
    strncpy(user, step, 99);
}

static size_t likeliest(const float *logits, size_t count) {
    size_t best = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(isfinite(logits[i]));
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

static void tokens_and_templates(const TriadModel *model) {
    const char *text = "\xc3\xbc" "nd, more";
    const TriadMessage messages[] = {{"system", "Be brief."}, {"user", "Hello"}};
    uint32_t *tokens = NULL;
    size_t count = 0;
    char *back = NULL;
    OK(triad_model_tokenize(model, text, false, &tokens, &count));
    OK(triad_model_detokenize(model, tokens, count, &back));
    CHECK(count > 2 && strcmp(back, text) == 0);
    triad_text_free(back);
    triad_tokens_free(tokens, count);
    OK(triad_model_apply_template(model, messages, 2, &back));
    CHECK(strstr(back, "Be brief.") && strstr(back, "assistant\n"));
    triad_text_free(back);
    FAILS(triad_model_tokenize(model, "\xff", false, &tokens, &count), TRIAD_STATUS_INVALID_ARGUMENT, "text: expected a text in UTF-8");
    FAILS(triad_model_tokenize(model, NULL, false, &tokens, &count), TRIAD_STATUS_INVALID_ARGUMENT, "text: expected");
    FAILS(triad_model_tokenize(NULL, text, false, &tokens, &count), TRIAD_STATUS_INVALID_ARGUMENT, "model: expected");
    FAILS(triad_model_tokenize(model, text, false, NULL, &count), TRIAD_STATUS_INVALID_ARGUMENT, "tokens: expected");
    FAILS(triad_model_tokenize(model, text, false, &tokens, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "count: expected");
    FAILS(triad_model_detokenize(model, &(uint32_t){4000000000u}, 1, &back), TRIAD_STATUS_INVALID_ARGUMENT, "4000000000");
    FAILS(triad_model_detokenize(model, PROMPT, (size_t)-1, &back), TRIAD_STATUS_INVALID_ARGUMENT, "tokens: expected fewer");
    FAILS(triad_model_apply_template(model, messages, 0, &back), TRIAD_STATUS_INVALID_ARGUMENT, "at least one");
    FAILS(triad_model_apply_template(model, &(TriadMessage){"user", NULL}, 1, &back), TRIAD_STATUS_INVALID_ARGUMENT, "messages[0].content");
}

static void logits_and_files(const TriadModel *model, const char *file) {
    TriadSession *session = NULL, *fork = NULL, *restored = NULL;
    const float *logits = NULL, *others = NULL;
    size_t count = 0, seen = 0;
    uint32_t *tokens = NULL;
    OK(triad_session_new(model, &session));
    CHECK(triad_session_context(session) == triad_model_context(model));
    OK(triad_session_prefill(session, PROMPT, COUNT, NULL));
    OK(triad_session_logits(session, &logits, &count));
    CHECK(count == triad_model_vocab_size(model));
    uint32_t next = (uint32_t)likeliest(logits, count);
    OK(triad_session_save(session, file));
    OK(triad_session_fork(session, &fork));
    OK(triad_session_decode(session, next, NULL));
    OK(triad_session_restore(model, file, &restored));
    OK(triad_session_decode(restored, next, NULL));
    OK(triad_session_logits(session, &logits, &count));
    OK(triad_session_logits(restored, &others, &count));
    CHECK(memcmp(logits, others, count * sizeof *logits) == 0);
    OK(triad_session_tokens(session, &tokens, &seen));
    CHECK(seen == COUNT + 1 && tokens[COUNT] == next);
    triad_tokens_free(tokens, seen);
    OK(triad_session_tokens(fork, &tokens, &seen));
    CHECK(seen == COUNT);
    triad_tokens_free(tokens, seen);
    OK(triad_session_truncate(session, 2));
    FAILS(triad_session_prefill(session, PROMPT, 0, NULL), TRIAD_STATUS_MODEL, "empty");
    FAILS(triad_session_prefill(session, NULL, 1, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "tokens: expected");
    FAILS(triad_session_decode(session, 4000000000u, NULL), TRIAD_STATUS_MODEL, "vocabulary");
    FAILS(triad_session_restore(model, "/nowhere/session", &restored), TRIAD_STATUS_MODEL, "/nowhere/session");
    FAILS(triad_session_save(NULL, file), TRIAD_STATUS_INVALID_ARGUMENT, "session: expected");
    size_t many = triad_model_context(model) + 1;
    uint32_t *prompt = calloc(many, sizeof *prompt);
    FAILS(triad_session_prefill(session, prompt, many, NULL), TRIAD_STATUS_PROMPT_TOO_LONG, "context");
    free(prompt);
    triad_session_free(restored);
    triad_session_free(fork);
    triad_session_free(session);
}

static void answers(const TriadModel *model) {
    TriadGenerateOptions options = triad_generate_options_default();
    TriadSession *session = NULL;
    TriadGeneration first, second;
    struct Part whole = {"", 0, 1000}, cut = {"", 0, 2}, again = {"", 0, 1000};
    TriadCancel *cancel = triad_cancel_new();
    const TriadMessage message = {"user", "Name three colours."};
    options.max_tokens = 12;
    options.temperature = 0;
    OK(triad_session_new(model, &session));
    OK(triad_session_chat(session, &message, 1, &options, NULL, on_text, &whole, &first));
    CHECK(first.finish == TRIAD_FINISH_LENGTH && first.answer_tokens == 12 && first.prompt_tokens > 5 && whole.parts > 2);
    CHECK(first.prefill_seconds > 0 && first.decode_seconds > 0 && first.time_to_first_token_seconds > 0);
    OK(triad_session_chat(session, &message, 1, &options, cancel, on_text, &cut, &second));
    CHECK(second.finish == TRIAD_FINISH_CANCELLED && second.reused_tokens > 0 && cut.parts == 2);
    CHECK(strncmp(whole.text, cut.text, strlen(cut.text)) == 0);
    OK(triad_session_chat(session, &message, 1, &options, cancel, on_text, &again, NULL));
    CHECK(strcmp(again.text, whole.text) == 0);
    /* A part of the answer as the stop text. */
    const char *stop[] = {"\x01", NULL};
    char middle[8] = {0};
    memcpy(middle, whole.text + strlen(whole.text) / 2, 3);
    stop[1] = middle;
    options.stop = stop;
    options.stop_count = 2;
    OK(triad_session_chat(session, &message, 1, &options, NULL, NULL, NULL, &second));
    CHECK(second.finish == TRIAD_FINISH_STOP_TEXT);
    options.stop_count = 0;
    triad_cancel_set(cancel);
    OK(triad_session_generate(session, PROMPT, COUNT, &options, cancel, NULL, NULL, &second));
    CHECK(second.finish == TRIAD_FINISH_CANCELLED);
    OK(triad_session_truncate(session, 0));
    FAILS(triad_session_prefill(session, PROMPT, COUNT, cancel), TRIAD_STATUS_CANCELLED, "cancelled");
    triad_cancel_reset(cancel);
    OK(triad_session_generate(session, PROMPT, COUNT, &options, cancel, NULL, NULL, &second));
    options.top_p = 2;
    FAILS(triad_session_generate(session, PROMPT, COUNT, &options, NULL, NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "top-p");
    options.top_p = NAN;
    options.top_k = -2;
    FAILS(triad_session_generate(session, PROMPT, COUNT, &options, NULL, NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "options->top_k");
    options.struct_size = 8;
    FAILS(triad_session_generate(session, PROMPT, COUNT, &options, NULL, NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "struct_size");
    triad_cancel_free(cancel);
    triad_session_free(session);
}

static void constraints(const TriadModel *model) {
    TriadGenerateOptions options = triad_generate_options_default();
    const TriadMessage message = {"user", "Where is the Eiffel Tower?"};
    struct Part part = {"", 0, 1000};
    TriadSession *session = NULL;
    OK(triad_session_new(model, &session));
    options.temperature = 0;
    options.schema = "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 20}}, \"required\": [\"city\"], \"additionalProperties\": false}";
    OK(triad_session_chat(session, &message, 1, &options, NULL, on_text, &part, NULL));
    CHECK(part.text[0] == '{' && strstr(part.text, "\"city\"") && strchr(part.text, '}'));
    options.regex = "(yes|no)";
    FAILS(triad_session_chat(session, &message, 1, &options, NULL, NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "options->regex: expected at most one");
    options.schema = NULL;
    part.text[0] = 0;
    OK(triad_session_chat(session, &message, 1, &options, NULL, on_text, &part, NULL));
    CHECK(strcmp(part.text, "yes") == 0 || strcmp(part.text, "no") == 0);
    options.regex = NULL;
    options.grammar = "start: \"a\" \"b\"";
    part.text[0] = 0;
    OK(triad_session_chat(session, &message, 1, &options, NULL, on_text, &part, NULL));
    CHECK(strcmp(part.text, "ab") == 0);
    options.grammar = "start: nothing";
    FAILS(triad_session_chat(session, &message, 1, &options, NULL, NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "nothing");
    options.grammar = NULL;
    options.schema = "{\"type\": 7}";
    FAILS(triad_session_chat(session, &message, 1, &options, NULL, NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "type");
    triad_session_free(session);
}

static void vectors(const TriadModel *model) {
    float *vector = NULL, sum = 0;
    size_t count = 0;
    OK(triad_model_embed(model, "A cat sleeps on the sofa.", NULL, &vector, &count));
    for (size_t i = 0; i < count; i++) sum += vector[i] * vector[i];
    CHECK(count == 576 && fabsf(sum - 1) < 1e-4f);
    triad_vector_free(vector, count);
    FAILS(triad_model_embed(NULL, "A", NULL, &vector, &count), TRIAD_STATUS_INVALID_ARGUMENT, "model: expected");
    FAILS(triad_model_embed(model, "A", NULL, NULL, &count), TRIAD_STATUS_INVALID_ARGUMENT, "vector: expected");
    CHECK(triad_model_embed(model, "", NULL, &vector, &count) != TRIAD_STATUS_OK);
}

struct Meanwhile {
    TriadSession *session;
    TriadStatus status;
    char text[200];
};

static void *use_meanwhile(void *argument) {
    struct Meanwhile *meanwhile = argument;
    meanwhile->status = triad_session_decode(meanwhile->session, 1, NULL);
    strncpy(meanwhile->text, triad_last_error(), sizeof meanwhile->text - 1);
    return NULL;
}

static int32_t on_text_of_a_busy_session(const char *text, void *user) {
    pthread_t thread;
    (void)text;
    if (pthread_create(&thread, NULL, use_meanwhile, user)) exit(2);
    pthread_join(thread, NULL);
    return 1;
}

static void threads(const TriadModel *model) {
    struct Meanwhile meanwhile = {NULL, TRIAD_STATUS_OK, ""};
    OK(triad_session_new(model, &meanwhile.session));
    OK(triad_session_generate(meanwhile.session, PROMPT, COUNT, NULL, NULL, on_text_of_a_busy_session, &meanwhile, NULL));
    CHECK(meanwhile.status == TRIAD_STATUS_BUSY && strstr(meanwhile.text, "another thread"));
    OK(triad_session_decode(meanwhile.session, 1, NULL));
    triad_session_free(meanwhile.session);
}

int main(int argc, char **argv) {
    TriadOpenOptions options = triad_open_options_default();
    TriadModel *model = NULL;
    TriadSession *last = NULL;
    char step[100] = "";
    CHECK(argc == 3 && strlen(triad_last_error()) == 0 && strlen(triad_version()) > 4);
    FAILS(triad_model_open("/nowhere.gguf", NULL, NULL, &model), TRIAD_STATUS_MODEL, "/nowhere.gguf");
    FAILS(triad_model_open(NULL, NULL, NULL, &model), TRIAD_STATUS_INVALID_ARGUMENT, "name: expected");
    FAILS(triad_model_open(argv[1], NULL, NULL, NULL), TRIAD_STATUS_INVALID_ARGUMENT, "model: expected");
    /* If the options are of another version, only their size may be read. */
    FAILS(triad_model_open(argv[1], (const TriadOpenOptions *)&(size_t){8}, NULL, &model), TRIAD_STATUS_INVALID_ARGUMENT, "struct_size");
    options.kv_format = 7;
    FAILS(triad_model_open(argv[1], &options, NULL, &model), TRIAD_STATUS_INVALID_ARGUMENT, "kv_format");
    options.kv_format = TRIAD_KV_FORMAT_F16;
    options.context = 256;
    options.on_step = on_step;
    options.user = step;
    OK(triad_model_open(argv[1], &options, NULL, &model));
    CHECK(strstr(step, "loading ") && triad_model_context(model) == 256 && triad_model_context(NULL) == 0);
    tokens_and_templates(model);
    logits_and_files(model, argv[2]);
    answers(model);
    constraints(model);
    vectors(model);
    threads(model);
    /* A session outlives its model. */
    OK(triad_session_new(model, &last));
    triad_model_free(model);
    OK(triad_session_prefill(last, PROMPT, COUNT, NULL));
    triad_session_free(last);
    triad_session_free(NULL);
    triad_model_free(NULL);
    triad_cancel_free(NULL);
    triad_cancel_set(NULL);
    triad_text_free(NULL);
    triad_tokens_free(NULL, 0);
    triad_vector_free(NULL, 0);
    puts("all calls are as they should be");
    return 0;
}
