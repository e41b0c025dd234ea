// The package as a program uses it, on the default model. Run by bindings/node/check.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, afterEach, before, test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { promisify } from 'node:util'
import * as triad from 'triad'

const { Model } = triad
const NAME = 'smollm2-135m'
const GREEDY = { temperature: 0, maxTokens: 16 }
const LONG = { temperature: 0, maxTokens: 400 }
const QUESTION = 'Name three colours.'
let model, folder

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'triad-node-'))
  model = await Model.open(NAME, { context: 512 })
})
after(() => rm(folder, { recursive: true }))

// Chats and sessions are closed after each test: they hold memory.
const opened = []
const keep = (made) => { opened.push(made); return made }
const chatOf = (options) => keep(model.chat(options))
const sessionOf = (options) => keep(model.session(options))
afterEach(() => opened.splice(0).forEach((made) => made.close()))

const refused = (code, words) => (error) => {
  assert.ok(error instanceof Error)
  assert.equal(error.code, code, error.message)
  assert.match(error.message, words)
  return true
}

async function pieces(generation) {
  const all = []
  for await (const piece of generation) all.push(piece)
  return all
}

test('a model has its name and context, and tokens become the text that they were made of', () => {
  assert.equal(model.name, NAME)
  assert.equal(model.context, 512)
  const text = 'Ünïcode, 数, and\nlines'
  const tokens = model.tokenize(text)
  assert.ok(tokens instanceof Uint32Array)
  assert.equal(model.detokenize(tokens), text)
  assert.equal(model.detokenize([...tokens]), text)
  assert.throws(() => model.detokenize([4294967295]), refused('InvalidArgument', /4294967295/))
  assert.throws(() => model.detokenize([-1]), refused('InvalidArgument', /tokens/))
})

test('steps are told in their order while a model is opened, and an error of their function ends that', async () => {
  const steps = []
  await Model.open(NAME, { context: 16, onStep: (step) => steps.push(step) })
  assert.equal(steps.at(-1), `loading ${NAME}`)
  const onStep = () => { throw new RangeError('no') }
  await assert.rejects(Model.open(NAME, { context: 16, onStep }), RangeError)
})

test('a model that is not there or damaged is an error with a code and its name', async () => {
  await assert.rejects(Model.open(join(folder, 'none.gguf')), refused('NotFound', /none\.gguf/))
  await writeFile(join(folder, 'broken.gguf'), 'GGUF')
  await assert.rejects(Model.open(join(folder, 'broken.gguf'), { quantize: false }), refused('Damaged', /broken\.gguf/))
  await assert.rejects(Model.open(NAME, { cacheType: 'f64' }), refused('InvalidArgument', /f64/))
  await assert.rejects(Model.open(NAME, { float: true }), refused('InvalidArgument', /float/))
  await assert.rejects(Model.open(3), refused('InvalidArgument', /name/))
})

test('a signal ends an opening', async () => {
  const reason = new Error('enough')
  await assert.rejects(Model.open(NAME, { signal: AbortSignal.abort(reason) }), (error) => error === reason)
})

test('the pieces of an answer are its text, and it is a message of the conversation', async () => {
  const chat = chatOf({ system: 'Be brief.', ...GREEDY })
  const generation = chat.send(QUESTION)
  const all = await pieces(generation)
  const answer = await generation.answer()
  assert.ok(all.length > 1)
  assert.equal(all.join(''), answer.text)
  assert.ok(answer.tokens.length <= 16 && answer.timing.prefillTokens > 0)
  assert.deepEqual(chat.messages, [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: QUESTION },
    { role: 'assistant', content: answer.text },
  ])
  const again = await chatOf({ system: 'Be brief.', ...GREEDY }).send(QUESTION).answer()
  assert.deepEqual(again.tokens, answer.tokens)
  assert.deepEqual(await pieces(generation), [], 'an answer that was read has no more pieces')
})

test('a signal ends an answer with its reason, and the chat goes on', async () => {
  const chat = chatOf(LONG)
  const controller = new AbortController()
  const generation = chat.send(QUESTION, { signal: controller.signal })
  await assert.rejects(async () => {
    for await (const piece of generation) if (piece) controller.abort()
  }, { name: 'AbortError' })
  await assert.rejects(generation.answer(), { name: 'AbortError' })
  assert.equal(chat.messages.length, 2, 'the part of the answer is a message')
  await assert.rejects(chat.send('More', { signal: AbortSignal.abort() }).answer(), { name: 'AbortError' })
  assert.equal(chat.messages.length, 2, 'nothing is sent after an abort')
  const next = chat.send('More')
  next.cancel()
  assert.equal((await next.answer()).finish, 'cancelled')
})

test('a loop that breaks off ends the answer, and the chat is ready after it', async () => {
  const chat = chatOf(LONG)
  for await (const piece of chat.send(QUESTION)) if (piece) break
  const next = chat.send('And more?')
  next.cancel()
  await next.answer()
  assert.equal(chat.messages.length, 4)
})

test('a chat that generates is busy, and others compute at the same time what each computes alone', async () => {
  const prompts = [0, 1, 2].map((number) => `${number} is a number that`)
  const alone = []
  for (const prompt of prompts) alone.push((await sessionOf(GREEDY).generate(prompt).answer()).text)
  const together = await Promise.all(prompts.map((prompt) => sessionOf(GREEDY).generate(prompt).answer()))
  assert.deepEqual(together.map((answer) => answer.text), alone)

  const chat = chatOf(LONG)
  const first = chat.send(QUESTION)
  await assert.rejects(chat.send(QUESTION).answer(), refused('Busy', /being generated/))
  assert.throws(() => chat.messages, refused('Busy', /being generated/))
  first.cancel()
  await first.answer()
  assert.equal(chat.messages.length, 2)
})

test('a chat that is closed refuses messages, and its memory is free', async () => {
  const closed = model.chat(LONG)
  const running = closed.send(QUESTION)
  closed.close()
  running.cancel()
  assert.equal((await running.answer()).finish, 'cancelled')
  assert.throws(() => closed.messages, refused('InvalidArgument', /closed/))
  await assert.rejects(closed.send(QUESTION).answer(), refused('InvalidArgument', /closed/))
  for (let count = 0; count < 20; count += 1) {
    const next = model.chat({ ...GREEDY, maxTokens: 1 })
    await next.send(QUESTION).answer()
    next.close()
  }
})

test('the event loop turns while an answer is computed', async () => {
  let turns = 0
  let isDone = false
  const answer = sessionOf({ ...GREEDY, maxTokens: 48 }).generate('Once upon a time').answer()
  answer.finally(() => { isDone = true })
  while (!isDone) {
    await turn()
    turns += 1
  }
  assert.ok(turns > 50, `${turns} turns`)
})

test('answers have the form that was asked for', async () => {
  const regex = await chatOf({ regex: '(red|green)' }).send(QUESTION).answer()
  assert.match(regex.text, /^(red|green)$/)
  const schema = {
    type: 'object', properties: { colour: { enum: ['red', 'blue'] } }, required: ['colour'], additionalProperties: false,
  }
  const json = await chatOf({ schema, maxTokens: 100 }).send(QUESTION).answer()
  assert.ok(['red', 'blue'].includes(JSON.parse(json.text).colour))
  assert.throws(() => chatOf({ regex: 'a', schema }), refused('InvalidArgument', /at most one/))
  await assert.rejects(chatOf({ regex: '(' }).send('a').answer(), refused('Constraint', /./))
})

test('a wrong option is an error that names it', async () => {
  assert.throws(() => chatOf({ maxToken: 3 }), refused('InvalidArgument', /maxToken/))
  assert.throws(() => chatOf({ temperature: 'hot' }), refused('InvalidArgument', /temperature/))
  assert.throws(() => chatOf({ temperature: NaN }), refused('InvalidArgument', /temperature/))
  assert.throws(() => chatOf({ maxTokens: -1 }), refused('InvalidArgument', /maxTokens/))
  assert.throws(() => chatOf({ maxTokens: () => 3 }), refused('InvalidArgument', /maxTokens/))
  assert.throws(() => model.chat(null), refused('InvalidArgument', /options/))
  assert.throws(() => model.chat({ keepLetters: 'yes' }), refused('InvalidArgument', /keepLetters/))
  assert.throws(() => sessionOf('fast'), refused('InvalidArgument', /options/))
  assert.throws(() => chatOf().send(3), refused('InvalidArgument', /message/))
  assert.throws(() => chatOf().send('a', { maxTokens: 3 }), refused('InvalidArgument', /maxTokens/))
  assert.throws(() => chatOf().send('a', { signal: {} }), refused('InvalidArgument', /signal/))
  await assert.rejects(Model.open(NAME, { onStep: 'a' }), refused('InvalidArgument', /onStep/))
  await assert.rejects(chatOf({ temperature: -1 }).send('a').answer(), refused('InvalidArgument', /temperature/))
  const chat = chatOf(GREEDY)
  await assert.rejects(chat.send('word '.repeat(100000)).answer(), refused('ContextFull', /./))
  assert.equal(chat.messages.length, 0, 'a refused message is not kept')
})

test('calls of functions are apart from the text, and their results go back', async () => {
  const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  const tools = [{ name: 'weather', description: 'The weather in a city', parameters }]
  const call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
  const regex = call.replace(/[{}]/g, '\\$&')
  const chat = chatOf({ tools, regex, temperature: 0 })
  const answer = await chat.send('How is the weather in Oslo?').answer()
  assert.equal(answer.text, '')
  assert.equal(answer.calls.length, 1)
  assert.equal(answer.calls[0].name, 'weather')
  assert.deepEqual(JSON.parse(answer.calls[0].arguments), { city: 'Oslo' })
  chat.pushResult(answer.calls[0], 'rain')
  assert.deepEqual(chat.messages.at(-1), { role: 'tool', content: 'rain' })
  assert.equal((await chat.reply().answer()).calls.length, 1)
  assert.throws(() => chatOf({ tools: [{ name: 'no name', parameters }] }), refused('InvalidArgument', /tool's name/))
  assert.throws(() => chatOf({ tools: [{ name: 'a', parameters: 3 }] }), refused('InvalidArgument', /parameters/))
})

test('an embedding has length one and tells texts apart', async () => {
  const [cat, kitten, sum] = await Promise.all(['A cat sleeps.', 'A kitten sleeps.', '3 + 4 = 7'].map((text) => model.embed(text)))
  const dot = (a, b) => a.reduce((total, value, index) => total + value * b[index], 0)
  assert.ok(cat instanceof Float32Array && Math.abs(dot(cat, cat) - 1) < 1e-4)
  assert.ok(dot(cat, kitten) > dot(cat, sum))
  await assert.rejects(model.embed('word '.repeat(100000)), refused('ContextFull', /./))
})

test('a saved session goes on where it was', async () => {
  const session = sessionOf(GREEDY)
  const { tokens } = await session.generate('The capital of France is').answer()
  assert.ok(session.tokens.length >= tokens.length)
  const path = join(folder, 'session')
  await session.save(path)
  const restored = keep(await model.restore(path, GREEDY))
  assert.deepEqual(restored.tokens, session.tokens)
  await writeFile(join(folder, 'broken'), 'no session')
  await assert.rejects(model.restore(join(folder, 'broken')), refused('Damaged', /broken/))
})

test('a process and a worker may end while an answer is generated, and no one need read it', async () => {
  const begin = `const { Model } = await import('triad')
    const model = await Model.open('${NAME}', { context: 512 })
    model.chat({ regex: '(' }).send('no one reads this error')
    const generation = model.chat({ temperature: 0, maxTokens: 400 }).send('Tell a story.')
    for await (const piece of generation) `
  const run = (script) => promisify(execFile)(process.execPath, ['--input-type=module', '-e', script])
  await assert.rejects(run(`${begin} process.exit(7)`), { code: 7, stderr: '' })
  const inWorker = JSON.stringify(`(async () => { const { parentPort } = await import('node:worker_threads')
    ${begin} parentPort.postMessage(piece) })()`)
  const { stderr } = await run(`import { Worker } from 'node:worker_threads'
    const worker = new Worker(${inWorker}, { eval: true })
    await new Promise((resolve) => worker.once('message', resolve))
    await worker.terminate()`)
  assert.equal(stderr, '')
})

test('the declarations have the members of the classes', async () => {
  const declarations = await readFile(join(dirname(createRequire(import.meta.url).resolve('triad')), 'index.d.ts'), 'utf8')
  for (const name of ['Model', 'Chat', 'Session', 'Generation']) {
    const [, body] = declarations.match(new RegExp(`^export class ${name}\\b[^{]*{\\n(.*?)^}`, 'ms'))
    const declared = [...body.matchAll(/^ {2}(?:static |readonly )?(\w+)[(:]/gm)].map((match) => match[1])
    const members = Object.getOwnPropertyNames(triad[name].prototype)
    if (name === 'Model') members.push('open')
    assert.deepEqual(declared.filter((member) => member !== 'constructor').sort(), members.filter((member) => member !== 'constructor').sort(), name)
    assert.throws(() => new triad[name]({}), refused('InvalidArgument', /are made by/), `${name} is not made by a program`)
  }
})

test('the example answers', async () => {
  const { stdout, stderr } = await promisify(execFile)(process.execPath, ['chat.mjs', QUESTION])
  assert.ok(stdout.trim().length > 10)
  assert.match(stderr, new RegExp(`loading ${NAME}[^]*tokens in`))
})
