/* Answers a question about a picture, given by its path and then by its bytes, and prints the tokens of both answers.
 * Arguments: a model that reads pictures, a picture, a question. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <triad.h>

#define CHECK(call)                                                                                                    \
    if ((call) != TRIAD_STATUS_OK) {                                                                                   \
        fprintf(stderr, "%s: %s\n", #call, triad_last_error());                                                        \
        exit(1);                                                                                                       \
    }

static void answer(const TriadModel *model, const TriadMessage *message, const TriadImage *image) {
    TriadSession *session = NULL;
    TriadGenerateOptions options = triad_generate_options_default();
    TriadGeneration generation;
    uint32_t *tokens = NULL;
    size_t count = 0, index;
    options.temperature = 0;
    options.max_tokens = 12;
    CHECK(triad_session_new(model, &session));
    CHECK(triad_session_chat_images(session, message, 1, image, 1, &options, NULL, NULL, NULL, &generation));
    CHECK(triad_session_tokens(session, &tokens, &count));
    for (index = generation.prompt_tokens; index < count; index++)
        printf("%s%u", index == generation.prompt_tokens ? "" : " ", (unsigned)tokens[index]);
    printf("\n");
    triad_tokens_free(tokens, count);
    triad_session_free(session);
}

static void refuse(const TriadModel *model, const TriadMessage *message, TriadImage image, const char *reason) {
    TriadSession *session = NULL;
    CHECK(triad_session_new(model, &session));
    if (triad_session_chat_images(session, message, 1, &image, 1, NULL, NULL, NULL, NULL, NULL) == TRIAD_STATUS_OK ||
        strstr(triad_last_error(), reason) == NULL) {
        fprintf(stderr, "expected %s: %s\n", reason, triad_last_error());
        exit(1);
    }
    triad_session_free(session);
}

int main(int count, char **arguments) {
    static unsigned char bytes[1 << 20];
    TriadModel *model = NULL;
    TriadOpenOptions options = triad_open_options_default();
    TriadMessage message = {"user", NULL};
    TriadImage image = {0, NULL, NULL, 0};
    FILE *file;
    if (count != 4)
        return 2;
    options.run_float = true;
    options.threads = 1;
    CHECK(triad_model_open(arguments[1], &options, NULL, &model));
    message.content = arguments[3];
    image.path = arguments[2];
    answer(model, &message, &image);
    file = fopen(arguments[2], "rb");
    if (file == NULL)
        return 2;
    image.path = NULL;
    image.bytes = bytes;
    image.byte_count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    answer(model, &message, &image);
    refuse(model, &message, (TriadImage){1, arguments[2], NULL, 0}, "images[0].message: expected from 0 to 0");
    refuse(model, &message, (TriadImage){0, NULL, NULL, 0}, "images[0].path: expected NULL if there are bytes");
    refuse(model, &message, (TriadImage){0, "nowhere.png", NULL, 0}, "nowhere.png");
    refuse(model, &message, (TriadImage){0, NULL, bytes, 3}, "not a picture");
    triad_model_free(model);
    return 0;
}
