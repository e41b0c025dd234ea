// Answers a question, piece by piece. The command is in docs/guide/kotlin.md; no machine of this project compiles Swift.
import Triad

final class Steps: StepListener {
    func onStep(sentence: String) { print(sentence) }
}

let arguments = CommandLine.arguments.dropFirst()
let question = arguments.first ?? "Why is the sky blue?"
let model = try Model.open(name: "smollm2-135m", listener: Steps())
let chat = try model.chat(options: AnswerOptions(maxTokens: 64))
let generation = try chat.send(message: question)
while let piece = try generation.next() {
    print(piece, terminator: "")
}
print("\n\(try generation.answer().decodeTokens) tokens")
