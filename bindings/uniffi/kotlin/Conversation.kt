// Prints the answers of the conversation that the example `conversation` of Rust's library prints.
import java.io.PrintStream
import triad.AnswerOptions
import triad.Model

const val SCHEMA = """{"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"], "additionalProperties": false}"""

fun show(name: String, text: String) = PrintStream(System.out, true, "UTF-8").print("$name: ${text.replace("\n", "\\n")}\n")

fun main() {
    val options = AnswerOptions(temperature = 0f, maxTokens = 24u)
    val model = Model.open("smollm2-135m")
    val chat = model.chat(system = "Answer in one sentence.", options = options)
    show("first turn", chat.send("Name three colours.").answer().text)
    val generation = chat.send("And a fourth one?")
    val pieces = generateSequence { generation.next() }.toList()
    show("second turn", pieces.joinToString(""))
    show("its pieces", pieces.joinToString("|"))
    val form = model.chat(options = options.copy(schema = SCHEMA))
    show("JSON", form.send("Where is the Eiffel Tower?").answer().text)
    val bits = model.embed("A cat sleeps on the sofa.").map { "%08x".format(it.toRawBits()) }
    show("embedding", bits.joinToString(" "))
}
