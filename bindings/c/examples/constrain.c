/* Answers as JSON of a schema.
 *
 *     cc constrain.c $(pkg-config --cflags --libs triad) -o constrain && ./constrain
 */
#include <stdio.h>
#include <triad.h>

static int32_t on_text(const char *text, void *user) {
    (void)user;
    fputs(text, stdout);
    return 0;
}

int main(void) {
    TriadGenerateOptions options = triad_generate_options_default();
    TriadMessage message = {"user", "Where is the Eiffel Tower?"};
    TriadModel *model = NULL;
    TriadSession *session = NULL;
    int failed;
    options.schema = "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 40}},"
                     " \"required\": [\"city\"], \"additionalProperties\": false}";
    failed = triad_model_open("smollm2-135m", NULL, NULL, &model) != TRIAD_STATUS_OK ||
             triad_session_new(model, &session) != TRIAD_STATUS_OK ||
             triad_session_chat(session, &message, 1, &options, NULL, on_text, NULL, NULL) != TRIAD_STATUS_OK;
    if (failed) fprintf(stderr, "%s\n", triad_last_error());
    triad_session_free(session);
    triad_model_free(model);
    return failed;
}
