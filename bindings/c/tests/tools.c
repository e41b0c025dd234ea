/* Answers with a function call and then with its result; argument: a model that says the script of programs.rs. Prints what
 * the callbacks receive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <triad.h>

#define ADD                                                                                                            \
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds.\","                            \
    " \"parameters\": {\"type\": \"object\"}}}]"
#define QUESTION "{\"role\": \"user\", \"content\": \"2 + 3?\"}"
#define CALL                                                                                                           \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\","                              \
    " \"function\": {\"name\": \"add\", \"arguments\": {\"a\": 2}}}]}"
#define RESULT "{\"role\": \"tool\", \"name\": \"add\", \"content\": \"5\"}"

#define CHECK(holds)                                                                                                   \
    if (!(holds)) {                                                                                                    \
        fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #holds, triad_last_error());                        \
        exit(1);                                                                                                       \
    }
#define FAILS(messages, tools, options, call, reason)                                                                  \
    CHECK(triad_session_chat_tools(session, messages, tools, options, NULL, on_text, call, NULL, NULL) ==              \
              TRIAD_STATUS_INVALID_ARGUMENT &&                                                                         \
          strstr(triad_last_error(), reason) != NULL)

static int32_t on_text(const char *text, void *user) {
    (void)user;
    printf("text %s\n", text);
    return 0;
}

/* Ends the answer if `user` is not NULL. */
static int32_t on_call(const char *name, const char *arguments, void *user) {
    printf("call %s %s\n", name, arguments);
    return user != NULL;
}

int main(int count, char **arguments) {
    TriadModel *model = NULL;
    TriadSession *session = NULL;
    TriadOpenOptions opening = triad_open_options_default();
    TriadGenerateOptions options = triad_generate_options_default();
    TriadGeneration generation;
    if (count != 2)
        return 2;
    opening.run_float = true;
    opening.threads = 1;
    options.temperature = 0;
    options.max_tokens = 8;
    CHECK(triad_model_open(arguments[1], &opening, NULL, &model) == TRIAD_STATUS_OK);
    CHECK(triad_session_new(model, &session) == TRIAD_STATUS_OK);
    CHECK(triad_session_chat_tools(session, "[" QUESTION "]", ADD, &options, NULL, on_text, on_call, NULL, &generation) ==
          TRIAD_STATUS_OK);
    CHECK(generation.finish == TRIAD_FINISH_END_TOKEN);
    CHECK(triad_session_chat_tools(session, "[" QUESTION ", " CALL ", " RESULT "]", "[]", &options, NULL, on_text, NULL,
                                   NULL, NULL) == TRIAD_STATUS_OK);
    CHECK(triad_session_chat_tools(session, "[" QUESTION "]", ADD, &options, NULL, on_text, on_call, &options,
                                   &generation) == TRIAD_STATUS_OK);
    CHECK(generation.finish == TRIAD_FINISH_CANCELLED);
    FAILS("[" QUESTION "]", ADD, &options, NULL, "on_call");
    FAILS("[]", ADD, &options, on_call, "messages: expected at least one");
    FAILS("{}", ADD, &options, on_call, "messages: expected a JSON array");
    FAILS("[" QUESTION "]", "[", &options, on_call, "tools: expected a JSON array");
    FAILS("[" QUESTION "]", "[{\"name\": \"\"}]", &options, on_call, "tools[0]");
    options.regex = "[a-z]*";
    FAILS("[" QUESTION "]", ADD, &options, on_call, "schema, regex and grammar");
    triad_session_free(session);
    triad_model_free(model);
    return 0;
}
