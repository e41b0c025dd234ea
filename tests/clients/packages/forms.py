"""Packages whose purpose is answers in a form."""

from typing import Literal

import answers

def city_class():
    """A class of pydantic, which not every environment has."""
    import pydantic

    class City(pydantic.BaseModel):
        """A city."""

        city: Literal["Oslo", "Rome"]

    return City


def instructor(t):
    import instructor
    import openai

    City = city_class()
    ask = {"model": t.model, "messages": t.messages, "max_tokens": 64, "temperature": 0, "response_model": City, "max_retries": 0}

    def client(mode):
        return instructor.from_openai(openai.OpenAI(base_url=t.base, api_key=t.key, max_retries=0), mode=mode)

    @t.tries
    def tools():
        t.formed(client(instructor.Mode.TOOLS).create(**ask))
        assert t.recorded()[-1]["asked"]["tools"]

    @t.tries
    def form():
        t.formed(client(instructor.Mode.JSON_SCHEMA).create(**ask))

    @t.tries
    def stream():
        pieces = list(client(instructor.Mode.JSON_SCHEMA).create_partial(**ask))
        t.formed(pieces[-1])
        assert len(pieces) > 2, pieces

    @t.tries
    def chat():
        done = client(instructor.Mode.JSON_SCHEMA).create(**ask | {"response_model": None, "max_tokens": 24})
        t.said(done.choices[0].message.content)


def outlines(t):
    import openai
    import outlines

    City = city_class()
    client = openai.OpenAI(base_url=t.base, api_key=t.key, max_retries=0)
    model, vllm = outlines.from_openai(client, t.model), outlines.from_vllm(client, t.model)
    ask = {"max_tokens": 24, "temperature": 0}

    @t.tries
    def chat():
        t.said(model("Name three colours.", **ask))

    @t.tries
    def stream():
        t.streamed(list(model.stream("Name three colours.", **ask)))

    @t.tries
    def form():
        t.formed(model("Which city?", City, **ask))
        t.formed(vllm("Which city?", City, **ask))

    @t.tries
    def choices():
        answer = vllm("Is 7 a prime number?", Literal["yes", "no"], **ask)
        assert answer in ("yes", "no"), answer

    @t.tries
    def regex():
        answer = vllm("Name a number.", outlines.types.Regex("[1-9][0-9]{2}"), **ask)
        assert len(answer) == 3 and answer.isdigit(), answer


def guidance(t):
    import guidance

    def ask(name, form):
        model = guidance.models.OpenAI(name, echo=False, base_url=t.base, api_key=t.key)
        with guidance.user():
            asked = model + "Name three colours."
        with guidance.assistant():
            return (asked + form)["answer"]

    # It asks with streams alone.
    @t.tries
    def stream():
        # It sends no temperature; the scripted model needs none.
        answer = ask(t.scripted, guidance.gen("answer", max_tokens=24))
        t.said(answer, streams=True)

    @t.tries
    def form():
        t.formed(ask(t.model, guidance.json("answer", schema=t.schema, temperature=0)))


def dspy(t):
    import dspy

    language = dspy.LM(f"lm_studio/{t.model}", api_base=t.base, api_key=t.key, max_tokens=64, temperature=0, cache=False, num_retries=0)

    class Choice(dspy.Signature):
        """Answers with a city."""

        question: str = dspy.InputField()
        city: Literal["Oslo", "Rome"] = dspy.OutputField()

    @t.tries
    def chat():
        [answer] = language(messages=t.messages)
        t.said(answer if isinstance(answer, str) else answer["text"])

    @t.tries
    def form():
        with dspy.context(lm=language, adapter=dspy.JSONAdapter()):
            t.formed({"city": dspy.Predict(Choice)(question="Which city?").city})
        assert t.recorded()[-1]["asked"]["response_format"]["type"] == "json_schema"

    @t.tries
    async def stream():
        class Answer(dspy.Signature):
            """Answers."""

            question: str = dspy.InputField()
            answer: str = dspy.OutputField()

        with dspy.context(lm=language, adapter=dspy.JSONAdapter()):
            asked = dspy.streamify(dspy.Predict(Answer), stream_listeners=[dspy.streaming.StreamListener(signature_field_name="answer")])
            parts = [part async for part in asked(question="Name a colour.")]
        pieces = [part.chunk for part in parts if isinstance(part, dspy.streaming.StreamResponse)]
        # Its pieces have the quotes of JSON.
        assert "".join(pieces).strip().strip('"') == parts[-1].answer and len(pieces) > 1, parts
        assert answers.is_stream(t.recorded()[-1])


def mirascope(t):
    from mirascope import llm

    llm.register_provider("openai:completions", scope="openai/", base_url=t.base, api_key=t.key)
    City = city_class()

    # It sends no temperature; the scripted model needs none.
    @llm.call(f"openai/{t.scripted}:completions", max_tokens=24)
    def colours():
        return "Name three colours."

    @t.tries
    def chat():
        t.said(colours().text())

    @t.tries
    def stream():
        answer = colours.stream()
        t.streamed(list(answer.text_stream()))

    @t.tries
    def form():
        @llm.call(f"openai/{t.model}:completions", max_tokens=64, format=City)
        def city():
            return "Which city?"

        t.formed(city().parse())

    @t.tries
    def tools():
        @llm.tool
        def weather(city: Literal["Oslo", "Rome"]) -> str:
            """Tells the weather in a city."""
            return t.weather(city)

        @llm.call(f"openai/{t.scripted}:completions", tools=[weather], max_tokens=64)
        def forecast():
            return "What is the weather in Oslo?"

        answer = forecast()
        [call] = answer.tool_calls
        t.called(call.name, call.args)
        answer = answer.resume(answer.execute_tools())
        t.ran(answer.text())


def magentic(t):
    import magentic
    from magentic.chat_model.openai_chat_model import OpenaiChatModel

    City = city_class()

    def model(name, **more):
        return OpenaiChatModel(name, base_url=t.base, api_key=t.key, max_tokens=64, temperature=0, **more)

    @t.tries
    def chat():
        @magentic.prompt("Name three colours.", model=model(t.model))
        def colours() -> str: ...

        # It asks with streams alone.
        t.said(colours(), streams=True)

    @t.tries
    def stream():
        @magentic.prompt("Name three colours.", model=model(t.model))
        def colours() -> magentic.StreamedStr: ...

        t.streamed(list(colours()))

    @t.tries
    def form():
        @magentic.prompt("Which city?", model=model(t.model))
        def city() -> City: ...

        t.formed(city())

    @t.tries
    def tools():
        def weather(city: Literal["Oslo", "Rome"]) -> str:
            """Tells the weather in a city."""
            return t.weather(city)

        @magentic.prompt_chain("What is the weather in Oslo?", functions=[weather], model=model(t.scripted))
        def forecast() -> str: ...

        t.ran(forecast(), streams=True)
