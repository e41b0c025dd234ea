/* Triad runs language models on the device in your hand. docs/guide/c.md has a first program.
 *
 * Written by cbindgen from bindings/c/src; a test compares both.
 *
 * Threads: several threads may use a TriadModel and a TriadCancel concurrently. Only one thread at a time may use a
 * TriadSession: another one gets TRIAD_STATUS_BUSY, and a session must not be freed while it is used. Sessions of one
 * model may compute concurrently.
 *
 * Errors: a function that can fail returns a TriadStatus; triad_last_error returns the sentence. A function only
 * writes to its output pointers if it returns TRIAD_STATUS_OK, unless its comment says otherwise.
 *
 * Texts are UTF-8. A function that returns memory to the caller names the function that frees it; freeing NULL does
 * nothing.
 */

#ifndef TRIAD_H
#define TRIAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 The result of a call.
 */
typedef enum {
  /*
   Success.
   */
  TRIAD_STATUS_OK = 0,
  /*
   An argument is NULL, not UTF-8, or out of range.
   */
  TRIAD_STATUS_INVALID_ARGUMENT = 1,
  /*
   The model or a file is invalid, or a run failed.
   */
  TRIAD_STATUS_MODEL = 2,
  /*
   There is not enough memory for the request.
   */
  TRIAD_STATUS_MEMORY = 3,
  /*
   A prompt has more tokens than the context.
   */
  TRIAD_STATUS_PROMPT_TOO_LONG = 4,
  /*
   The call was cancelled.
   */
  TRIAD_STATUS_CANCELLED = 5,
  /*
   Another thread uses the session.
   */
  TRIAD_STATUS_BUSY = 6,
  /*
   A bug in Triad: a panic, with its message on standard error.
   */
  TRIAD_STATUS_INTERNAL = 7,
} TriadStatus;

/*
 The reason why an answer ended.
 */
typedef enum {
  /*
   The model ended it.
   */
  TRIAD_FINISH_END_TOKEN = 0,
  /*
   A stop text occurred.
   */
  TRIAD_FINISH_STOP_TEXT = 1,
  /*
   The answer has `max_tokens` tokens.
   */
  TRIAD_FINISH_LENGTH = 2,
  /*
   The context has no room for another token.
   */
  TRIAD_FINISH_CONTEXT_FULL = 3,
  /*
   It was cancelled, or `on_text` ended it.
   */
  TRIAD_FINISH_CANCELLED = 4,
} TriadFinish;

/*
 The number format of keys and values.
 */
typedef enum {
  /*
   16-bit floats.
   */
  TRIAD_KV_FORMAT_F16 = 0,
  /*
   8-bit integers with scales, in half the memory.
   */
  TRIAD_KV_FORMAT_INT8 = 1,
  /*
   32-bit floats.
   */
  TRIAD_KV_FORMAT_F32 = 2,
} TriadKvFormat;

/*
 A flag that cancels calls from another thread.
 */
typedef struct TriadCancel TriadCancel;

/*
 A model, ready to run.
 */
typedef struct TriadModel TriadModel;

/*
 A conversation: the tokens that a model has processed, with their keys and values.
 */
typedef struct TriadSession TriadSession;

/*
 A LoRA adapter.
 */
typedef struct {
  /*
   The path of a GGUF or safetensors file, or of a folder of PEFT.
   */
  const char *path;
  /*
   The factor of its change; 1 applies the adapter as it was trained.
   */
  float scale;
} TriadAdapter;

/*
 The options of an answer; triad_generate_options_default fills them in. NaN or -1 in an option that permits it means
 the value that the model's authors recommend, or else temperature 0.7, top_p 0.95 and repetition penalty 1.05.
 */
typedef struct {
  /*
   `sizeof(TriadGenerateOptions)` of the header that the caller was compiled with.
   */
  size_t struct_size;
  /*
   Maximum number of tokens of the answer.
   */
  size_t max_tokens;
  /*
   Divisor of the logits, or NaN; 0 always selects the likeliest token.
   */
  float temperature;
  /*
   Number of likeliest tokens to keep, or -1; 0 keeps all.
   */
  int64_t top_k;
  /*
   Keeps the fewest likeliest tokens whose probabilities add up to this, or NaN.
   */
  float top_p;
  /*
   Drops tokens less likely than this fraction of the likeliest one, or NaN.
   */
  float min_p;
  /*
   Makes tokens that have occurred less likely, or NaN; 1 has no effect.
   */
  float repetition_penalty;
  /*
   Subtracted from the logit of a token for each occurrence in the answer so far.
   */
  float frequency_penalty;
  /*
   Subtracted from the logits of tokens that occur in the answer so far.
   */
  float presence_penalty;
  /*
   Seed of the random numbers: the same seed gives the same answer.
   */
  uint64_t seed;
  /*
   Texts that end the answer and are not part of it.
   */
  const char *const *stop;
  /*
   Number of these texts.
   */
  size_t stop_count;
  /*
   A JSON schema that the answer follows, or NULL. At most one of `schema`, `regex` and `grammar` may be given.
   */
  const char *schema;
  /*
   A regular expression that the whole answer matches, or NULL.
   */
  const char *regex;
  /*
   A grammar of the answer in Lark's notation, or NULL.
   */
  const char *grammar;
} TriadGenerateOptions;

/*
 A callback for each part of an answer's text, which is valid during the call; a return value other than 0 ends the
 answer. It must not return by longjmp or an exception, nor call functions with the session that is computing.
 */
typedef int32_t (*TriadOnText)(const char *text, void *user);

/*
 The result of an answer.
 */
typedef struct {
  /*
   The reason why it ended.
   */
  TriadFinish finish;
  /*
   Tokens of the prompt.
   */
  size_t prompt_tokens;
  /*
   Tokens of the prompt that were reused from the session instead of computed.
   */
  size_t reused_tokens;
  /*
   Tokens of the answer.
   */
  size_t answer_tokens;
  /*
   Seconds for the prompt.
   */
  double prefill_seconds;
  /*
   Seconds for the answer, after its first token.
   */
  double decode_seconds;
  /*
   Seconds to the first token of the answer.
   */
  double time_to_first_token_seconds;
} TriadGeneration;

/*
 One message of a conversation.
 */
typedef struct {
  /*
   `system`, `user` or `assistant`.
   */
  const char *role;
  /*
   Its text.
   */
  const char *content;
} TriadMessage;

/*
 A picture of a message: a PNG, JPEG, WebP, GIF (the first frame) or BMP file.
 */
typedef struct {
  /*
   The index of its message.
   */
  size_t message;
  /*
   The path of the file, or NULL if `bytes` has its content.
   */
  const char *path;
  /*
   The content of the file, or NULL if `path` names it.
   */
  const uint8_t *bytes;
  /*
   Number of these bytes.
   */
  size_t byte_count;
} TriadImage;

/*
 The options for opening a model; triad_open_options_default fills them in.
 */
typedef struct {
  /*
   `sizeof(TriadOpenOptions)` of the header that the caller was compiled with.
   */
  size_t struct_size;
  /*
   Whether to run a model file unchanged, in float, without preparing it for INT8.
   */
  bool run_float;
  /*
   Number of threads for the computation; 0: one per core.
   */
  size_t threads;
  /*
   Maximum number of tokens of a prompt and its answer together; 0: 4096, or the model's context if that is less.
   */
  size_t context;
  /*
   Tokens of a prompt per forward pass; 0: 256.
   */
  size_t chunk;
  /*
   A TriadKvFormat.
   */
  uint32_t kv_format;
  /*
   Called with a sentence at the start of each step of opening, or NULL. It must not return by longjmp or an
   exception.
   */
  void (*on_step)(const char *step, void *user);
  /*
   The second argument of `on_step`.
   */
  void *user;
} TriadOpenOptions;

/*
 A callback for each function call of an answer: the name of the function, and its arguments, a JSON object. Both are
 valid during the call. A return value other than 0 ends the answer. The rules of TriadOnText hold.
 */
typedef int32_t (*TriadOnCall)(const char *name, const char *arguments, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Replaces the adapters of a conversation: later calls compute with the sum of their changes. A `count` of 0 removes
 all. Tokens that were processed with other adapters are processed again by the next answer. If an adapter does not
 fit the model, those of before remain.
 */
TriadStatus triad_session_set_adapters(const TriadSession *session,
                                       const TriadAdapter *adapters,
                                       size_t count);

/*
 Returns the default options.
 */
TriadGenerateOptions triad_generate_options_default(void);

/*
 Continues a prompt, which is the whole conversation: the part that the session has already processed is not computed
 again, and processed tokens that differ from it are discarded. `options`, `cancel`, `on_text` and `generation` may
 be NULL. A cancelled answer is not an error: its `finish` reports it.
 */
TriadStatus triad_session_generate(const TriadSession *session,
                                   const uint32_t *prompt,
                                   size_t count,
                                   const TriadGenerateOptions *options,
                                   const TriadCancel *cancel,
                                   TriadOnText on_text,
                                   void *user,
                                   TriadGeneration *generation);

/*
 Answers the last of `messages`, which are the whole conversation, by the model's chat template; a model without one
 continues the last message. Otherwise the same as triad_session_generate.
 */
TriadStatus triad_session_chat(const TriadSession *session,
                               const TriadMessage *messages,
                               size_t count,
                               const TriadGenerateOptions *options,
                               const TriadCancel *cancel,
                               TriadOnText on_text,
                               void *user,
                               TriadGeneration *generation);

/*
 Does the same as triad_session_chat for messages with pictures, which come before the text of their message and are in
 the order of the messages. The model has to read pictures.
 */
TriadStatus triad_session_chat_images(const TriadSession *session,
                                      const TriadMessage *messages,
                                      size_t count,
                                      const TriadImage *images,
                                      size_t image_count,
                                      const TriadGenerateOptions *options,
                                      const TriadCancel *cancel,
                                      TriadOnText on_text,
                                      void *user,
                                      TriadGeneration *generation);

/*
 Returns the default options.
 */
TriadOpenOptions triad_open_options_default(void);

/*
 Opens the model called `name`: the path of a package, a GGUF file or a safetensors folder, or a name that can be
 fetched. A model file is prepared for INT8 once. `options` may be NULL for the defaults, `cancel` may be NULL. Free
 the model with triad_model_free.
 */
TriadStatus triad_model_open(const char *name,
                             const TriadOpenOptions *options,
                             const TriadCancel *cancel,
                             TriadModel **model);

/*
 Frees a model. Its sessions remain valid, and keep the data that they need.
 */
void triad_model_free(TriadModel *model);

/*
 Returns the size of a model's vocabulary: the number of its logits. 0 if `model` is NULL.
 */
size_t triad_model_vocab_size(const TriadModel *model);

/*
 Returns the maximum number of tokens of a prompt and its answer together. 0 if `model` is NULL.
 */
size_t triad_model_context(const TriadModel *model);

/*
 Returns the tokens of a text. With `special`, texts of special tokens become those tokens. Free them with
 triad_tokens_free.
 */
TriadStatus triad_model_tokenize(const TriadModel *model,
                                 const char *text,
                                 bool special,
                                 uint32_t **tokens,
                                 size_t *count);

/*
 Returns the vector of a text, of length 1: the last hidden states, pooled as the model's files state, or else their
 mean. `cancel` may be NULL. Free it with triad_vector_free.
 */
TriadStatus triad_model_embed(const TriadModel *model,
                              const char *text,
                              const TriadCancel *cancel,
                              float **vector,
                              size_t *count);

/*
 Returns the text of tokens. Free it with triad_text_free.
 */
TriadStatus triad_model_detokenize(const TriadModel *model,
                                   const uint32_t *tokens,
                                   size_t count,
                                   char **text);

/*
 Returns the text of a conversation by the model's chat template, up to the start of the answer. Free it with
 triad_text_free.
 */
TriadStatus triad_model_apply_template(const TriadModel *model,
                                       const TriadMessage *messages,
                                       size_t count,
                                       char **text);

/*
 Frees a text that a function returned.
 */
void triad_text_free(char *text);

/*
 Frees tokens that a function returned, with their number.
 */
void triad_tokens_free(uint32_t *tokens, size_t count);

/*
 Frees a vector that a function returned, with its length.
 */
void triad_vector_free(float *vector, size_t count);

/*
 Creates a flag that cancels the calls that receive it. Free it with triad_cancel_free, after those calls.
 */
TriadCancel *triad_cancel_new(void);

/*
 Cancels calls with `cancel`, now and later, until triad_cancel_reset. May be called by a signal handler.
 */
void triad_cancel_set(const TriadCancel *cancel);

/*
 Permits calls with `cancel` again.
 */
void triad_cancel_reset(const TriadCancel *cancel);

/*
 Frees a cancel flag.
 */
void triad_cancel_free(TriadCancel *cancel);

/*
 Creates an empty conversation. Free it with triad_session_free.
 */
TriadStatus triad_session_new(const TriadModel *model, TriadSession **session);

/*
 Frees a conversation.
 */
void triad_session_free(TriadSession *session);

/*
 Creates a copy of a conversation; memory is shared until one of the two continues. Free it with triad_session_free.
 */
TriadStatus triad_session_fork(const TriadSession *session,
                               TriadSession **fork);

/*
 Removes all tokens after the first `length` ones.
 */
TriadStatus triad_session_truncate(const TriadSession *session, size_t length);

/*
 Returns the tokens of the conversation. Free them with triad_tokens_free.
 */
TriadStatus triad_session_tokens(const TriadSession *session, uint32_t **tokens, size_t *count);

/*
 Appends tokens and runs them. `cancel` may be NULL. triad_session_logits returns the result.
 */
TriadStatus triad_session_prefill(const TriadSession *session,
                                  const uint32_t *tokens,
                                  size_t count,
                                  const TriadCancel *cancel);

/*
 Appends one token and runs it. `cancel` may be NULL. triad_session_logits returns the result.
 */
TriadStatus triad_session_decode(const TriadSession *session,
                                 uint32_t token,
                                 const TriadCancel *cancel);

/*
 Returns the logits after the last computed token: triad_model_vocab_size floats in the session's own memory, valid
 until the next call with this session. They are 0 if nothing was computed.
 */
TriadStatus triad_session_logits(const TriadSession *session,
                                 const float **logits,
                                 size_t *count);

/*
 Writes a conversation to a file, for triad_session_restore.
 */
TriadStatus triad_session_save(const TriadSession *session, const char *path);

/*
 Reads the conversation from a file that triad_session_save wrote with the same model. Free it with
 triad_session_free.
 */
TriadStatus triad_session_restore(const TriadModel *model,
                                  const char *path,
                                  TriadSession **session);

/*
 Returns the maximum number of tokens of a conversation. 0 if `session` is NULL or in use.
 */
size_t triad_session_context(const TriadSession *session);

/*
 Returns a sentence about the calling thread's latest failed call, with the expected value; empty if none failed.
 Valid until the next call of this thread fails.
 */
const char *triad_last_error(void);

/*
 Returns the version of Triad.
 */
const char *triad_version(void);

/*
 Answers a conversation by the model's chat template; the model may call functions. `messages` and `tools` are JSON
 arrays in the form of OpenAI's chat API. An answer with calls continues the conversation as the message
 `{"role": "assistant", "content": …, "tool_calls": [{"type": "function", "function": {"name": …, "arguments": …}}]}`,
 and each result as `{"role": "tool", "name": …, "content": …}`. `on_text` receives the text without calls, `on_call`
 the calls; it may only be NULL without tools. An answer with tools has no schema, regex or grammar. Otherwise the
 same as triad_session_chat.
 */
TriadStatus triad_session_chat_tools(const TriadSession *session,
                                     const char *messages,
                                     const char *tools,
                                     const TriadGenerateOptions *options,
                                     const TriadCancel *cancel,
                                     TriadOnText on_text,
                                     TriadOnCall on_call,
                                     void *user,
                                     TriadGeneration *generation);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TRIAD_H */
