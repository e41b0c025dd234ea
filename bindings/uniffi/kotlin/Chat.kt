// Answers a question, piece by piece, on a JVM. `bindings/uniffi/kotlin` of docs/guide/kotlin.md has the commands.
import triad.AnswerOptions
import triad.Model
import triad.StepListener

object Steps : StepListener {
    override fun onStep(sentence: String) = System.err.println(sentence)
}

fun main(arguments: Array<String>) {
    val question = arguments.getOrElse(0) { "Why is the sky blue?" }
    Model.open(arguments.getOrElse(1) { "smollm2-135m" }, listener = Steps).use { model ->
        val chat = model.chat(options = AnswerOptions(maxTokens = 64u))
        chat.send(question).use { generation ->
            generateSequence { generation.next() }.forEach(::print)
            println()
            System.err.println("${generation.answer().decodeTokens} tokens")
        }
    }
}
