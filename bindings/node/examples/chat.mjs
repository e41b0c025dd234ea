// Answers a question, piece by piece; Ctrl-C ends the answer.
//
//     node chat.mjs "Why is the sky blue?" [MODEL]
import { Model } from 'triad'

const [question = 'Why is the sky blue?', name = 'smollm2-135m'] = process.argv.slice(2)
const model = await Model.open(name, { onStep: (step) => console.error(step) })
const generation = model.chat({ maxTokens: 64 }).send(question)
process.once('SIGINT', () => generation.cancel())
for await (const piece of generation) process.stdout.write(piece)
const { timing } = await generation.answer()
console.log()
console.error(`${timing.decodeTokens} tokens in ${timing.decodeSeconds.toFixed(2)} s`)
