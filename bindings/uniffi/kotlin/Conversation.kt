// Prints the answers of the conversation that bindings/conversation prints with Rust.
import triad.AnswerOptions
import triad.Model

fun main() {
    val options = AnswerOptions(temperature = 0f, maxTokens = 24u)
    val chat = Model.open("smollm2-135m").chat(system = "Answer in one sentence.", options = options)
    for (question in listOf("Name three colours.", "And a fourth one?")) println(chat.send(question).answer().text)
}
