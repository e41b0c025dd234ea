/* Triad runs language models on the device in your hand. docs/guide/c.md has a first program.
 *
 * Written by cbindgen from bindings/c/src; a test compares both.
 *
 * Threads: a TriadModel and a TriadCancel may be used by many threads at once. A TriadSession is used by one thread at a
 * time: another one gets TRIAD_STATUS_BUSY, and a session must not be freed while it is used. Sessions of one model
 * may compute at the same time.
 *
 * Errors: a function that can fail returns a TriadStatus; triad_last_error has the sentence. What a pointer points to is
 * only written where TRIAD_STATUS_OK is returned, unless a function says otherwise.
 *
 * Texts are UTF-8. What a function gives to the caller names the function that frees it; freeing NULL does nothing.
 */

#ifndef TRIAD_H
#define TRIAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 How a call ended.
 */
typedef enum {
  /*
   Done.
   */
  TRIAD_STATUS_OK = 0,
  /*
   An argument is NULL, no UTF-8, or out of its range.
   */
  TRIAD_STATUS_INVALID_ARGUMENT = 1,
  /*
   The model, a file or a run is not as it has to be.
   */
  TRIAD_STATUS_MODEL = 2,
  /*
   What was asked for does not fit into memory.
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
   A mistake in Triad: a panic, whose message is on standard error.
   */
  TRIAD_STATUS_INTERNAL = 7,
} TriadStatus;

/*
 Why an answer ended.
 */
typedef enum {
  /*
   The model ended it.
   */
  TRIAD_FINISH_END_TOKEN = 0,
  /*
   A stop text came up.
   */
  TRIAD_FINISH_STOP_TEXT = 1,
  /*
   As many tokens as were asked for.
   */
  TRIAD_FINISH_LENGTH = 2,
  /*
   No room for another token.
   */
  TRIAD_FINISH_CONTEXT_FULL = 3,
  /*
   It was cancelled, or `on_text` ended it.
   */
  TRIAD_FINISH_CANCELLED = 4,
} TriadFinish;

/*
 Number format of keys and values.
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
 What ends a call from another thread.
 */
typedef struct TriadCancel TriadCancel;

/*
 A model, ready to run.
 */
typedef struct TriadModel TriadModel;

/*
 One conversation: the tokens that a model has seen, with their keys and values.
 */
typedef struct TriadSession TriadSession;

/*
 How an answer is made; triad_generate_options_default fills it in. Where a number may be NaN or -1, that is what the
 model's authors recommend, else greedy.
 */
typedef struct {
  /*
   `sizeof(TriadGenerateOptions)` of the header that the caller was compiled with.
   */
  size_t struct_size;
  /*
   Tokens of the answer, at most.
   */
  size_t max_tokens;
  /*
   Divisor of the logits, or NaN; 0 always takes the likeliest token.
   */
  float temperature;
  /*
   Keep only this many likeliest tokens, or -1; 0 keeps all.
   */
  int64_t top_k;
  /*
   Keep the fewest likeliest tokens whose probabilities add up to this, or NaN.
   */
  float top_p;
  /*
   Drop tokens less likely than this share of the likeliest one, or NaN.
   */
  float min_p;
  /*
   Make tokens that were there before less likely, or NaN; 1 changes nothing.
   */
  float repetition_penalty;
  /*
   Subtracted from the logit of a token for each time that it is in the answer so far.
   */
  float frequency_penalty;
  /*
   Subtracted from the logits of tokens that are in the answer so far.
   */
  float presence_penalty;
  /*
   Start of the random numbers: the same seed gives the same answer.
   */
  uint64_t seed;
  /*
   Texts that end the answer and are not part of it.
   */
  const char *const *stop;
  /*
   How many there are.
   */
  size_t stop_count;
} TriadGenerateOptions;

/*
 Called with each part of an answer's text, which is valid during the call; anything but 0 ends the answer. It must not
 return by longjmp or an exception, nor call functions with the session that computes.
 */
typedef int32_t (*TriadOnText)(const char *text, void *user);

/*
 What came of an answer.
 */
typedef struct {
  /*
   Why it ended.
   */
  TriadFinish finish;
  /*
   Tokens of the prompt.
   */
  size_t prompt_tokens;
  /*
   Tokens of the prompt that were not computed, since they were before.
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
   Seconds for the answer, behind its first token.
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
 How a model is opened; triad_open_options_default fills it in.
 */
typedef struct {
  /*
   `sizeof(TriadOpenOptions)` of the header that the caller was compiled with.
   */
  size_t struct_size;
  /*
   Run a model file as it is, in float, without preparing it for INT8.
   */
  bool run_float;
  /*
   Threads that compute; 0: one for each core.
   */
  size_t threads;
  /*
   Tokens of a prompt and its answer together, at most; 0: 4096, or what the model was made for if that is less.
   */
  size_t context;
  /*
   Tokens of prompts that go through the model at once; 0: 256.
   */
  size_t chunk;
  /*
   A TriadKvFormat.
   */
  uint32_t kv_format;
  /*
   Called with a sentence as each step of opening begins, or NULL. It must not return by longjmp or an exception.
   */
  void (*on_step)(const char *step, void *user);
  /*
   What `on_step` is called with.
   */
  void *user;
} TriadOpenOptions;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Fills in the usual options.
 */
TriadGenerateOptions triad_generate_options_default(void);

/*
 Continues a prompt, which is all that there is: what the session has seen of it already is not computed again, and what it
 has seen beyond is forgotten. `options`, `cancel`, `on_text` and `generation` may be NULL. An answer that is cancelled is
 no error: its `finish` tells.
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
 continues the last message. Else as triad_session_generate.
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
 Fills in the usual options.
 */
TriadOpenOptions triad_open_options_default(void);

/*
 Opens the model called `name`: the path of a package, a GGUF file or a safetensors folder, or a name that can be fetched.
 It is prepared for INT8 once. `options` may be NULL for the usual ones, `cancel` for none. Free it with triad_model_free.
 */
TriadStatus triad_model_open(const char *name,
                             const TriadOpenOptions *options,
                             const TriadCancel *cancel,
                             TriadModel **model);

/*
 Frees a model. Its sessions go on, and keep what they need of it.
 */
void triad_model_free(TriadModel *model);

/*
 Tokens that a model knows: the number of its logits. 0 if `model` is NULL.
 */
size_t triad_model_vocab_size(const TriadModel *model);

/*
 Tokens of a prompt and its answer together, at most. 0 if `model` is NULL.
 */
size_t triad_model_context(const TriadModel *model);

/*
 The tokens of a text. With `special`, texts of special tokens become those tokens. Free them with triad_tokens_free.
 */
TriadStatus triad_model_tokenize(const TriadModel *model,
                                 const char *text,
                                 bool special,
                                 uint32_t **tokens,
                                 size_t *count);

/*
 The text of tokens. Free it with triad_text_free.
 */
TriadStatus triad_model_detokenize(const TriadModel *model,
                                   const uint32_t *tokens,
                                   size_t count,
                                   char **text);

/*
 The text of a conversation by the model's chat template, up to where the answer begins. Free it with triad_text_free.
 */
TriadStatus triad_model_apply_template(const TriadModel *model,
                                       const TriadMessage *messages,
                                       size_t count,
                                       char **text);

/*
 Frees a text that a function gave.
 */
void triad_text_free(char *text);

/*
 Frees tokens that a function gave, with their number.
 */
void triad_tokens_free(uint32_t *tokens, size_t count);

/*
 What cancels calls that are given it. Free it with triad_cancel_free, behind those calls.
 */
TriadCancel *triad_cancel_new(void);

/*
 Ends calls that were given `cancel`, now and later, until triad_cancel_reset. May be called by a signal handler.
 */
void triad_cancel_set(const TriadCancel *cancel);

/*
 Lets calls with `cancel` through again.
 */
void triad_cancel_reset(const TriadCancel *cancel);

/*
 Frees it.
 */
void triad_cancel_free(TriadCancel *cancel);

/*
 An empty conversation. Free it with triad_session_free.
 */
TriadStatus triad_session_new(const TriadModel *model, TriadSession **session);

/*
 Frees a conversation.
 */
void triad_session_free(TriadSession *session);

/*
 Another conversation that has seen the same; memory is shared until one of the two goes on. Free it with
 triad_session_free.
 */
TriadStatus triad_session_fork(const TriadSession *session,
                               TriadSession **fork);

/*
 Forgets everything behind the first `length` tokens.
 */
TriadStatus triad_session_truncate(const TriadSession *session, size_t length);

/*
 The tokens that were seen. Free them with triad_tokens_free.
 */
TriadStatus triad_session_tokens(const TriadSession *session, uint32_t **tokens, size_t *count);

/*
 Runs tokens behind those that were seen. `cancel` may be NULL. triad_session_logits has the result.
 */
TriadStatus triad_session_prefill(const TriadSession *session,
                                  const uint32_t *tokens,
                                  size_t count,
                                  const TriadCancel *cancel);

/*
 Runs one token behind those that were seen. `cancel` may be NULL. triad_session_logits has the result.
 */
TriadStatus triad_session_decode(const TriadSession *session,
                                 uint32_t token,
                                 const TriadCancel *cancel);

/*
 Logits that follow the last token that was computed: triad_model_vocab_size floats in the session's own memory, valid
 until the next call with this session. Where nothing was computed they are 0.
 */
TriadStatus triad_session_logits(const TriadSession *session,
                                 const float **logits,
                                 size_t *count);

/*
 Writes what a conversation has seen to a file, for triad_session_restore.
 */
TriadStatus triad_session_save(const TriadSession *session, const char *path);

/*
 The conversation in a file that triad_session_save wrote with the same model. Free it with triad_session_free.
 */
TriadStatus triad_session_restore(const TriadModel *model,
                                  const char *path,
                                  TriadSession **session);

/*
 Tokens that a conversation holds, at most. 0 if `session` is NULL or in use.
 */
size_t triad_session_context(const TriadSession *session);

/*
 A sentence about the calling thread's latest call that failed, with what was expected; empty if none did. Valid until the
 next call of this thread fails.
 */
const char *triad_last_error(void);

/*
 The version of Triad.
 */
const char *triad_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TRIAD_H */
