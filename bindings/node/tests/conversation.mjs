// Prints the answers of the conversation that the example `conversation` of Rust's library prints.
import { Model } from 'triad'

const schema = { type: 'object', properties: { city: { type: 'string', maxLength: 40 } }, required: ['city'], additionalProperties: false }
const options = { temperature: 0, maxTokens: 24 }
const show = (name, text) => console.log(`${name}: ${text.replaceAll('\n', '\\n')}`)

const model = await Model.open('smollm2-135m')
const chat = model.chat({ system: 'Answer in one sentence.', ...options })
show('first turn', (await chat.send('Name three colours.').answer()).text)
const pieces = []
for await (const piece of chat.send('And a fourth one?')) pieces.push(piece)
show('second turn', pieces.join(''))
show('its pieces', pieces.join('|'))
show('JSON', (await model.chat({ schema, ...options }).send('Where is the Eiffel Tower?').answer()).text)
const vector = await model.embed('A cat sleeps on the sofa.')
const bits = [...new Uint32Array(vector.buffer, vector.byteOffset, vector.length)]
show('embedding', bits.map((one) => one.toString(16).padStart(8, '0')).join(' '))
