/* Answers a question, part by part; Ctrl-C ends the answer.
 *
 *     cc chat.c $(pkg-config --cflags --libs triad) -o chat && ./chat "Why is the sky blue?" [MODEL]
 */
#include <signal.h>
#include <stdio.h>
#include <triad.h>

static TriadCancel *cancel;

static void on_interrupt(int signal) {
    (void)signal;
    triad_cancel_set(cancel);
}

static void on_step(const char *step, void *user) {
    (void)user;
    fprintf(stderr, "%s\n", step);
}

static int32_t on_text(const char *text, void *user) {
    (void)user;
    fputs(text, stdout);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    TriadOpenOptions open_options = triad_open_options_default();
    TriadGenerateOptions options = triad_generate_options_default();
    TriadModel *model = NULL;
    TriadSession *session = NULL;
    TriadGeneration generation;
    TriadMessage message;
    int code = 1;

    cancel = triad_cancel_new();
    signal(SIGINT, on_interrupt);
    open_options.on_step = on_step;
    options.max_tokens = 64;
    message.role = "user";
    message.content = argc > 1 ? argv[1] : "Why is the sky blue?";
    if (triad_model_open(argc > 2 ? argv[2] : "smollm2-135m", &open_options, cancel, &model) == TRIAD_STATUS_OK &&
        triad_session_new(model, &session) == TRIAD_STATUS_OK &&
        triad_session_chat(session, &message, 1, &options, cancel, on_text, NULL, &generation) == TRIAD_STATUS_OK) {
        double seconds = generation.decode_seconds;
        size_t tokens = generation.answer_tokens;
        printf("\n");
        fprintf(stderr, "%zu tokens of the prompt in %.2f s, %zu of the answer", generation.prompt_tokens,
                generation.prefill_seconds, tokens);
        if (tokens > 1 && seconds > 0)
            fprintf(stderr, " at %.0f a second", (double)(tokens - 1) / seconds);
        fprintf(stderr, "\n");
        code = 0;
    } else {
        fprintf(stderr, "%s\n", triad_last_error());
    }
    triad_session_free(session);
    triad_model_free(model);
    triad_cancel_free(cancel);
    return code;
}
