// Prints the answers of the conversation that bindings/conversation prints with Rust.
import { Model } from 'triad'

const chat = (await Model.open('smollm2-135m')).chat({ system: 'Answer in one sentence.', temperature: 0, maxTokens: 24 })
for (const question of ['Name three colours.', 'And a fourth one?']) console.log((await chat.send(question).answer()).text)
