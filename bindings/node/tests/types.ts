// Uses the declarations as a program does. Checked by tsc, not run.
import { Model, type Answer, type ErrorCode, type TriadError } from 'triad'

export async function use(signal: AbortSignal): Promise<Answer> {
  const model: Model = await Model.open('smollm2-135m', { context: 512, cacheType: 'int8', signal, onStep: (step) => step.length })
  const tools = [{ name: 'weather', parameters: { type: 'object' } }]
  const chat = model.chat({ system: 'Be brief.', tools, schema: { type: 'object' }, stop: ['\n'], adapters: [{ path: 'a' }] })
  let text = ''
  for await (const piece of chat.send('Hello', { signal })) text += piece
  const vector: Float32Array = await model.embed(text)
  const session = await model.restore('session', { seed: vector.length })
  await session.save(model.detokenize(session.tokens))
  // @ts-expect-error: there is no such option
  model.chat({ maxToken: 3 })
  // @ts-expect-error: a model is opened, not constructed
  new Model()
  // @ts-expect-error: there is no such format
  await Model.open('a', { cacheType: 'f64' })
  try {
    return await chat.reply().answer()
  } catch (error) {
    const code: ErrorCode = (error as TriadError).code
    throw new Error(code)
  }
}
