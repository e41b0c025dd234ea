// Triad for Node: the classes of index.d.ts over the native module. Work runs on threads of its own; the event loop
// gets its pieces and its result.
'use strict'

const native = require('./triad.node')

/** Returns options as the native module reads them. Undefined ones are left out, as JSON does. */
function toJson(options, name = 'options') {
  if (options !== undefined && (options === null || typeof options !== 'object')) {
    throw invalid(`${name}: expected an object`)
  }
  return JSON.stringify(options ?? {}, (key, value) => {
    // JSON would turn these into null, or leave them out.
    if (typeof value === 'number' && !Number.isFinite(value)) throw invalid(`${key}: expected a finite number`)
    if (typeof value === 'function' || typeof value === 'symbol' || typeof value === 'bigint') {
      throw invalid(`${key}: there is no such option of type ${typeof value}`)
    }
    return value
  })
}

function invalid(message) {
  return Object.assign(new Error(message), { code: 'InvalidArgument' })
}

function text(value, name) {
  if (typeof value !== 'string') throw invalid(`${name}: expected a string`)
  return value
}

/** Returns the signal of the options of a call, which have nothing else. */
function signalOf(options = {}) {
  if (options === null || typeof options !== 'object') throw invalid('options: expected an object')
  const { signal, ...others } = options
  const [other] = Object.keys(others)
  if (other !== undefined) throw invalid(`${other}: expected it among the options of the chat or session`)
  return checked(signal)
}

function checked(signal) {
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw invalid('signal: expected an AbortSignal')
  return signal
}

/** Waits for work that `start` begins, and for the last text that it sends to `onText`. */
async function run(start, onText = () => {}) {
  let last
  const ended = new Promise((resolve) => { last = resolve })
  const result = start((piece) => (piece === null ? last() : onText(piece)))
  try {
    return await result
  } finally {
    await ended
  }
}

/** Runs `work` with a handle that `signal` stops. */
async function stoppable(signal, stopper, work) {
  signal?.throwIfAborted()
  const stop = () => stopper.stop()
  signal?.addEventListener('abort', stop, { once: true })
  try {
    return await work()
  } finally {
    signal?.removeEventListener('abort', stop)
  }
}

/** A key that only this file has, so that no program makes generations. */
const OWN = Symbol('triad')

class Model {
  #model
  // The last embedding: they wait for each other, since each takes a thread.
  #embedding = Promise.resolve()

  constructor(model) {
    if (!(model instanceof native.Model)) throw invalid('models are made by Model.open')
    this.#model = model
  }

  static async open(name, { signal, onStep, ...options } = {}) {
    checked(signal)
    if (onStep !== undefined && typeof onStep !== 'function') throw invalid('onStep: expected a function')
    const stopper = new native.Stopper()
    let failure
    const step = (sentence) => {
      try {
        onStep?.(sentence)
      } catch (error) {
        failure ??= { error }
        stopper.stop()
      }
    }
    const open = () => run((onText) => native.open(text(name, 'name'), toJson(options), onText, stopper), step)
    try {
      return new Model(await stoppable(signal, stopper, open))
    } catch (error) {
      if (failure) throw failure.error
      if (error.code === 'Cancelled') signal?.throwIfAborted()
      throw error
    }
  }

  get name() { return this.#model.name }

  get context() { return this.#model.context }

  chat(given = {}) {
    if (given === null || typeof given !== 'object') throw invalid('options: expected an object')
    const { system, tools = [], keepLetters = false, ...options } = given
    if (typeof keepLetters !== 'boolean') throw invalid('keepLetters: expected a boolean')
    if (system !== undefined) text(system, 'system')
    return new Chat(this.#model.chat(system, keepLetters, toJson(tools, 'tools'), toJson(options)))
  }

  session(options) { return new Session(this.#model.session(toJson(options))) }

  async restore(path, options) {
    return new Session(await run((onText) => this.#model.restore(text(path, 'path'), toJson(options), onText)))
  }

  async embed(input) {
    text(input, 'text')
    const vector = this.#embedding.then(() => run((onText) => this.#model.embed(input, onText)))
    this.#embedding = vector.catch(() => {})
    return vector
  }

  tokenize(input) { return this.#model.tokenize(text(input, 'text')) }

  detokenize(tokens) {
    if (!Array.from(tokens).every((token) => Number.isInteger(token) && token >= 0 && token < 2 ** 32)) {
      throw invalid('tokens: expected integers from 0 on')
    }
    return this.#model.detokenize(Uint32Array.from(tokens))
  }
}

class Chat {
  #chat

  constructor(chat) {
    if (!(chat instanceof native.Chat)) throw invalid('chats are made by Model.chat')
    this.#chat = chat
  }

  send(message, options) {
    text(message, 'message')
    return new Generation(OWN, signalOf(options), (onText, stopper) => this.#chat.answer(message, onText, stopper))
  }

  reply(options) {
    return new Generation(OWN, signalOf(options), (onText, stopper) => this.#chat.answer(undefined, onText, stopper))
  }

  pushResult(call, result) { this.#chat.pushResult(text(call?.name, 'call.name'), text(result, 'result')) }

  close() { this.#chat.close() }

  get messages() { return JSON.parse(this.#chat.messages()) }
}

class Session {
  #session

  constructor(session) {
    if (!(session instanceof native.Session)) throw invalid('sessions are made by Model.session and Model.restore')
    this.#session = session
  }

  generate(prompt, options) {
    text(prompt, 'prompt')
    return new Generation(OWN, signalOf(options), (onText, stopper) => this.#session.answer(prompt, onText, stopper))
  }

  close() { this.#session.close() }

  get tokens() { return this.#session.tokens }

  async save(path) { return run((onText) => this.#session.save(text(path, 'path'), onText)) }
}

class Generation {
  #stopper = new native.Stopper()
  #pieces = []
  #hasEnded = false
  #waiting = []
  #answer

  constructor(own, signal, start) {
    if (own !== OWN) throw invalid('generations are made by chats and sessions')
    const onPiece = (piece) => {
      this.#pieces.push(piece)
      this.#wake()
    }
    const work = () => run((onText) => start(onText, this.#stopper), onPiece)
    this.#answer = stoppable(signal, this.#stopper, work)
      .then((json) => {
        const answer = JSON.parse(json)
        if (answer.finish === 'cancelled') signal?.throwIfAborted()
        return answer
      })
      .finally(() => {
        this.#hasEnded = true
        this.#wake()
      })
    // A caller that only reads pieces gets the error from them.
    this.#answer.catch(() => {})
  }

  #wake() { this.#waiting.splice(0).forEach((resolve) => resolve()) }

  answer() { return this.#answer }

  cancel() { this.#stopper.stop() }

  async * [Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this.#pieces.length > 0) yield this.#pieces.shift()
        if (this.#hasEnded) break
        await new Promise((resolve) => { this.#waiting.push(resolve) })
      }
      await this.#answer
    } finally {
      // A loop that breaks off ends the answer, and leaves its chat ready.
      this.#stopper.stop()
      await this.#answer.catch(() => {})
    }
  }
}

// `using` of newer versions of Node closes them.
if (Symbol.dispose) {
  for (const { prototype } of [Chat, Session]) prototype[Symbol.dispose] = prototype.close
}

module.exports = { Model, Chat, Session, Generation }
