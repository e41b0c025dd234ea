/* Prints the answers of the conversation that bindings/conversation prints with Rust. */
#include <stdio.h>
#include <string.h>
#include <triad.h>

static char answers[2][1024];

static int32_t on_text(const char *text, void *answer) {
    strncat(answer, text, sizeof answers[0] - 1 - strlen(answer));
    return 0;
}

int main(void) {
    TriadMessage messages[] = {
        {"system", "Answer in one sentence."}, {"user", "Name three colours."}, {"assistant", answers[0]}, {"user", "And a fourth one?"}};
    TriadGenerateOptions options = triad_generate_options_default();
    TriadModel *model = NULL;
    TriadSession *session = NULL;
    int turn, code = 0;

    options.temperature = 0;
    options.max_tokens = 24;
    if (triad_model_open("smollm2-135m", NULL, NULL, &model) != TRIAD_STATUS_OK || triad_session_new(model, &session) != TRIAD_STATUS_OK)
        code = 1;
    for (turn = 0; turn < 2 && code == 0; turn++) {
        size_t count = turn == 0 ? 2 : 4;
        code = triad_session_chat(session, messages, count, &options, NULL, on_text, answers[turn], NULL) != TRIAD_STATUS_OK;
        puts(answers[turn]);
    }
    if (code != 0)
        fprintf(stderr, "%s\n", triad_last_error());
    triad_session_free(session);
    triad_model_free(model);
    return code;
}
