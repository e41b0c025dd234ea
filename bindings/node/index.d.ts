/** Options for opening a model. */
export interface OpenOptions {
  /** Whether a model file is prepared for INT8; the default is true. */
  quantize?: boolean
  /** Number of threads; the default is one for each fast core. */
  threads?: number
  /** Maximum tokens of a prompt and its answer together; the default is 4096, or the model's own context if that is less. */
  context?: number
  /** Tokens of a prompt per forward pass; the default is 256. */
  prefillChunk?: number
  /** Number format of the KV cache; the default is `f16`. */
  cacheType?: 'f16' | 'int8' | 'f32'
  /** Called with a sentence for the user when each step begins: fetching, preparing, loading. */
  onStep?: (sentence: string) => void
  /** Ends the opening. */
  signal?: AbortSignal
}

/** A JSON schema. */
export type Schema = { [keyword: string]: unknown }

/** Options of answers. Without one, the model's authors' value is used, else temperature 0.7, top-p 0.95 and repetition penalty 1.05. At most one of `json`, `schema`, `regex` and `grammar` is set. */
export interface AnswerOptions {
  /** Ends an answer after this number of tokens. */
  maxTokens?: number
  /** Divides the logits; 0 always takes the likeliest token. */
  temperature?: number
  /** Keeps only this number of likeliest tokens; 0 keeps all. */
  topK?: number
  /** Keeps the fewest likeliest tokens whose probabilities add up to this share. */
  topP?: number
  /** Drops tokens whose probability is below this share of the likeliest token's. */
  minP?: number
  /** Makes tokens that occurred before less likely; 1 changes nothing. */
  repetitionPenalty?: number
  /** Seed of the random numbers: the same seed gives the same answer. */
  seed?: number
  /** Texts that end an answer and are not part of it. */
  stop?: string[]
  /** The answer is a JSON object. */
  json?: boolean
  /** The answer is JSON that matches this schema. */
  schema?: Schema
  /** The answer matches this regular expression as a whole, in the syntax of Rust's `regex`. */
  regex?: string
  /** The answer matches this grammar, in llguidance's variant of Lark. */
  grammar?: string
  /** LoRA adapters, with the factors of their products. */
  adapters?: { path: string; scale?: number }[]
}

/** A function that the model may call. */
export interface Tool {
  name: string
  description?: string
  /** JSON schema of an object. */
  parameters: Schema
}

/** Options of a conversation. */
export interface ChatOptions extends AnswerOptions {
  /** The system message. */
  system?: string
  tools?: Tool[]
  /** Keeps names of control tokens in messages as plain text, for messages of untrusted users. */
  keepLetters?: boolean
}

/** A call of a function by the model. */
export interface ToolCall {
  name: string
  /** Its arguments, a JSON object as text. */
  arguments: string
}

/** A complete answer. */
export interface Answer {
  /** The text, without a stop text and without function calls. */
  text: string
  /** The tokens, with the end token if there was one. */
  tokens: number[]
  /** The reason why it ended. */
  finish: 'end-token' | 'stop-string' | 'length' | 'context-full' | 'cancelled'
  calls: ToolCall[]
  timing: {
    prefillTokens: number
    reusedTokens: number
    prefillSeconds: number
    decodeTokens: number
    decodeSeconds: number
    timeToFirstTokenSeconds: number
  }
}

export interface Message {
  role: 'system' | 'user' | 'assistant' | 'tool'
  content: string
}

/** The property `code` of errors. */
export type ErrorCode =
  | 'NotFound' | 'Damaged' | 'Unsupported' | 'InvalidArgument' | 'Constraint' | 'ContextFull'
  | 'Memory' | 'Device' | 'Io' | 'Cancelled' | 'Busy' | 'Internal'

/** An error of Triad. */
export interface TriadError extends Error {
  code: ErrorCode
}

/** A model that is ready to run. Its chats and sessions may run concurrently. */
export class Model {
  private constructor()
  /** Opens a model by the path of a package, GGUF file or safetensors folder, by the name `smollm2-135m`, or by `hf:owner/name[:file]`. Fetches and prepares the model if necessary. */
  static open(name: string, options?: OpenOptions): Promise<Model>
  readonly name: string
  /** Maximum tokens of a prompt and its answer together. */
  readonly context: number
  /** Begins a conversation. */
  chat(options?: ChatOptions): Chat
  /** Begins a text. */
  session(options?: AnswerOptions): Session
  /** Restores a session that `Session.save` wrote. */
  restore(path: string, options?: AnswerOptions): Promise<Session>
  /** Returns the embedding of a text, a vector of length 1. */
  embed(text: string): Promise<Float32Array>
  /** Returns the tokens of a text. Names of control tokens are plain text. */
  tokenize(text: string): Uint32Array
  /** Returns the text of tokens. */
  detokenize(tokens: Iterable<number>): string
}

/** A conversation. It generates one answer at a time: another one is refused with the code `Busy`. */
export class Chat {
  private constructor()
  /** Adds a user message and generates the answer, which becomes a message of the conversation as far as it gets. */
  send(message: string, options?: { signal?: AbortSignal }): Generation
  /** Generates an answer to the conversation as it is, such as after the results of calls. */
  reply(options?: { signal?: AbortSignal }): Generation
  /** Adds the result of a call. */
  pushResult(call: Pick<ToolCall, 'name'>, result: string): void
  readonly messages: Message[]
  /** Frees the memory of the conversation's keys and values, once an answer that is being generated has ended. JavaScript's garbage collector may do so much later. */
  close(): void
}

/** A text that a model continues. It generates one answer at a time. */
export class Session {
  private constructor()
  /** Continues `prompt`, which is the whole text. Tokens at its beginning that the session already has are not computed again. */
  generate(prompt: string, options?: { signal?: AbortSignal }): Generation
  /** The tokens of the session: prompts and answers. */
  readonly tokens: Uint32Array
  /** Frees the memory of the session's keys and values, as `Chat.close` does. */
  close(): void
  /** Writes the session to a file, for `Model.restore`. */
  save(path: string): Promise<void>
}

/** An answer while it is generated: its pieces, each with whole characters. A loop that breaks off ends it. */
export class Generation implements AsyncIterable<string> {
  private constructor()
  [Symbol.asyncIterator](): AsyncIterator<string>
  /** Waits for the complete answer. It rejects with the signal's reason if that has ended the answer. */
  answer(): Promise<Answer>
  /** Ends the answer at its present length; its `finish` is then `cancelled`. */
  cancel(): void
}
