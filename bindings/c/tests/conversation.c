/* Prints the answers of the conversation that the example `conversation` of Rust's library prints. */
#include <stdio.h>
#include <string.h>
#include <triad.h>

/* An answer, and its pieces with bars between them. */
typedef struct {
    char text[1024];
    char pieces[2048];
} Answer;

static void append(char *to, size_t size, const char *text) {
    strncat(to, text, size - 1 - strlen(to));
}

static int32_t on_text(const char *text, void *user) {
    Answer *answer = user;
    if (answer->pieces[0] != 0)
        append(answer->pieces, sizeof answer->pieces, "|");
    append(answer->pieces, sizeof answer->pieces, text);
    append(answer->text, sizeof answer->text, text);
    return 0;
}

static void print(const char *name, const char *text) {
    printf("%s: ", name);
    for (; *text != 0; text++)
        *text == '\n' ? fputs("\\n", stdout) : putchar(*text);
    putchar('\n');
}

int main(void) {
    static Answer first, second, form;
    TriadMessage messages[] = {
        {"system", "Answer in one sentence."}, {"user", "Name three colours."}, {"assistant", first.text}, {"user", "And a fourth one?"}};
    TriadMessage place = {"user", "Where is the Eiffel Tower?"};
    TriadGenerateOptions options = triad_generate_options_default(), of_form;
    TriadModel *model = NULL;
    TriadSession *session = NULL, *other = NULL;
    float *vector = NULL;
    size_t count = 0, i;
    int failed;

    options.temperature = 0;
    options.max_tokens = 24;
    of_form = options;
    of_form.schema = "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 40}},"
                     " \"required\": [\"city\"], \"additionalProperties\": false}";
    failed = triad_model_open("smollm2-135m", NULL, NULL, &model) != TRIAD_STATUS_OK ||
             triad_session_new(model, &session) != TRIAD_STATUS_OK || triad_session_new(model, &other) != TRIAD_STATUS_OK ||
             triad_session_chat(session, messages, 2, &options, NULL, on_text, &first, NULL) != TRIAD_STATUS_OK ||
             triad_session_chat(session, messages, 4, &options, NULL, on_text, &second, NULL) != TRIAD_STATUS_OK ||
             triad_session_chat(other, &place, 1, &of_form, NULL, on_text, &form, NULL) != TRIAD_STATUS_OK ||
             triad_model_embed(model, "A cat sleeps on the sofa.", NULL, &vector, &count) != TRIAD_STATUS_OK;
    if (failed) {
        fprintf(stderr, "%s\n", triad_last_error());
    } else {
        print("first turn", first.text);
        print("second turn", second.text);
        print("its pieces", second.pieces);
        print("JSON", form.text);
        printf("embedding:");
        for (i = 0; i < count; i++) {
            unsigned int bits;
            memcpy(&bits, &vector[i], sizeof bits);
            printf(" %08x", bits);
        }
        putchar('\n');
    }
    triad_vector_free(vector, count);
    triad_session_free(other);
    triad_session_free(session);
    triad_model_free(model);
    return failed;
}
