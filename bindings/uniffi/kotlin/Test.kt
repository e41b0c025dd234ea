// The library as a Kotlin program uses it, on the default model. Run by bindings/uniffi/check.
import java.io.File
import java.nio.file.Files
import java.util.Collections
import kotlin.concurrent.thread
import kotlin.math.abs
import triad.AnswerOptions
import triad.CacheType
import triad.Finish
import triad.Generation
import triad.Model
import triad.OpenOptions
import triad.StepListener
import triad.Stopper
import triad.Tool
import triad.TriadException

const val NAME = "smollm2-135m"
const val QUESTION = "Name three colours."
val GREEDY = AnswerOptions(temperature = 0f, maxTokens = 16u)
val LONG = AnswerOptions(temperature = 0f, maxTokens = 400u)
val model = Model.open(NAME, OpenOptions(context = 512u))
val folder: File = Files.createTempDirectory("triad-kotlin").toFile()

// Chats and sessions are closed after each test: they hold memory.
val opened: MutableList<AutoCloseable> = Collections.synchronizedList(mutableListOf())

fun chatOf(system: String? = null, tools: List<Tool> = listOf(), options: AnswerOptions? = null) =
    model.chat(system, tools, options).also { opened += it }

fun sessionOf(options: AnswerOptions) = model.session(options).also { opened += it }

fun Generation.pieces() = generateSequence { next() }

inline fun <reified E : TriadException> fails(words: String, work: () -> Unit) {
    try {
        work()
    } catch (error: TriadException) {
        check(error is E) { "${error::class.simpleName}: ${error.message}" }
        check(words in error.message!!) { "${error.message}" }
        return
    }
    error("nothing failed")
}

val TESTS = mapOf<String, () -> Unit>(
    "a model has its name and context, and tokens become the text that they were made of" to {
        check(model.name() == NAME && model.context() == 512uL)
        val text = "Ünïcode, 数, and\nlines"
        check(model.detokenize(model.tokenize(text)) == text)
        fails<TriadException.InvalidArgument>("4294967295") { model.detokenize(listOf(UInt.MAX_VALUE)) }
    },
    "steps are told while a model is opened, and a stopper ends that" to {
        val steps = mutableListOf<String>()
        val listener = object : StepListener {
            override fun onStep(sentence: String) { steps += sentence }
        }
        Model.open(NAME, OpenOptions(context = 16u, cacheType = CacheType.INT8), listener).close()
        check(steps.last() == "loading $NAME") { "$steps" }
        val stopper = Stopper().apply { stop() }
        fails<TriadException.Cancelled>("") { Model.open(NAME, stopper = stopper) }
    },
    "a model that is not there or damaged is an error of its kind with its name" to {
        fails<TriadException.NotFound>("none.gguf") { Model.open("$folder/none.gguf") }
        File(folder, "broken.gguf").writeText("GGUF")
        fails<TriadException.Damaged>("broken.gguf") { Model.open("$folder/broken.gguf", OpenOptions(quantize = false)) }
    },
    "the pieces of an answer are its text, and it is a message of the conversation" to {
        val chat = chatOf(system = "Be brief.", options = GREEDY)
        val generation = chat.send(QUESTION)
        val pieces = generation.pieces().toList()
        val answer = generation.answer()
        check(pieces.size > 1 && pieces.joinToString("") == answer.text && answer.tokens.size <= 16)
        check(chat.messages().map { it.role } == listOf("system", "user", "assistant"))
        check(chat.messages().last().content == answer.text)
        check(generation.next() == null && generation.answer() == answer)
    },
    "a cancelled answer ends, and its chat goes on" to {
        val chat = chatOf(options = LONG)
        val generation = chat.send(QUESTION)
        check(generation.next() != null)
        fails<TriadException.Busy>("being generated") { chat.send(QUESTION) }
        generation.cancel()
        check(generation.answer().finish == Finish.CANCELLED)
        chat.send("More").use { check(it.next() != null) }
        check(chat.messages().size == 4)
        // No one takes the pieces of this one.
        val unread = chat.send("And more").apply { cancel() }
        check(unread.answer().finish == Finish.CANCELLED && chat.messages().size == 6)
    },
    "threads compute at the same time what each computes alone" to {
        val prompts = (0..2).map { "$it is a number that" }
        fun text(prompt: String) = sessionOf(GREEDY).generate(prompt).answer().text
        val alone = prompts.map(::text)
        val together = arrayOfNulls<String>(prompts.size)
        prompts.indices.map { thread { together[it] = text(prompts[it]) } }.forEach { it.join() }
        check(together.toList() == alone)
    },
    "answers have the form that was asked for" to {
        val colour = chatOf(options = AnswerOptions(regex = "(red|green)")).send(QUESTION).answer().text
        check(colour == "red" || colour == "green")
        val schema = """{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false}"""
        val json = chatOf(options = AnswerOptions(schema = schema, maxTokens = 100u)).send(QUESTION).answer().text
        check(json.filterNot(Char::isWhitespace) == """{"a":1}""") { json }
        fails<TriadException.InvalidArgument>("at most one") { chatOf(options = AnswerOptions(regex = "a", json = true)) }
        fails<TriadException.Constraint>("") { chatOf(options = AnswerOptions(regex = "(")).send("a").answer() }
    },
    "a wrong option is an error that names it, and a refused message is not kept" to {
        fails<TriadException.InvalidArgument>("temperature") { chatOf(options = AnswerOptions(temperature = -1f)).send("a").next() }
        val chat = chatOf(options = GREEDY)
        fails<TriadException.ContextFull>("") { chat.send("word ".repeat(100_000)).answer() }
        check(chat.messages().isEmpty())
    },
    "calls of functions are apart from the text, and their results go back" to {
        val parameters = """{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"""
        val call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"
        val regex = call.replace("{", "\\{").replace("}", "\\}")
        val chat = chatOf(tools = listOf(Tool("weather", "The weather in a city", parameters)), options = AnswerOptions(regex = regex))
        val answer = chat.send("How is the weather in Oslo?").answer()
        check(answer.text.isEmpty() && answer.calls.single().name == "weather" && "Oslo" in answer.calls.single().arguments)
        chat.pushResult(answer.calls.single(), "rain")
        check(chat.messages().last().role == "tool" && chat.reply().answer().calls.size == 1)
        fails<TriadException.InvalidArgument>("tool's name") { chatOf(tools = listOf(Tool("no name", "", parameters))) }
    },
    "an embedding has length one" to {
        check(abs(model.embed("A cat sleeps.").sumOf { (it * it).toDouble() } - 1) < 1e-4)
    },
    "a saved session goes on where it was" to {
        val session = sessionOf(GREEDY)
        session.generate("The capital of France is").answer()
        session.save("$folder/session")
        model.restore("$folder/session").use { check(it.tokens() == session.tokens()) }
        fails<TriadException.Damaged>("broken.gguf") { model.restore("$folder/broken.gguf") }
    },
)

fun main() {
    for ((name, test) in TESTS) {
        println(name)
        test()
        opened.forEach(AutoCloseable::close)
        opened.clear()
    }
    folder.deleteRecursively()
    println("${TESTS.size} passed, 0 failed")
}
