"""The packages of the APIs' makers, and clients of several APIs."""


def openai(t):
    import openai

    client = openai.OpenAI(base_url=t.base, api_key=t.key, max_retries=0)
    ask = {"model": t.model, "messages": t.messages, "max_tokens": 24, "temperature": 0}

    @t.tries
    def chat():
        t.said(client.chat.completions.create(**ask).choices[0].message.content)

    @t.tries
    def stream():
        t.streamed([part.choices[0].delta.content for part in client.chat.completions.create(**ask, stream=True) if part.choices])

    @t.tries
    def tools():
        call, *_ = client.chat.completions.create(**ask | {"messages": t.weather_messages, "max_tokens": 64}, tools=[t.tool], tool_choice="required").choices[0].message.tool_calls
        t.called(call.function.name, call.function.arguments)

    @t.tries
    def form():
        import pydantic

        City = pydantic.create_model("City", city=(t.weather.__annotations__["city"], ...))
        t.formed(client.chat.completions.parse(**ask, response_format=City).choices[0].message.parsed)

    @t.tries
    def responses():
        done = client.responses.create(model=t.model, input=t.messages, max_output_tokens=24, temperature=0)
        t.said(done.output_text)
        parts = client.responses.create(model=t.model, input=t.messages, max_output_tokens=24, temperature=0, stream=True)
        t.streamed([part.delta for part in parts if part.type == "response.output_text.delta"])

    @t.tries
    def embeddings():
        one, two = client.embeddings.create(model=t.model, input=["A cat sleeps.", "A cat sleeps."]).data
        assert one.embedding == two.embedding and abs(sum(value * value for value in one.embedding) - 1) < 1e-3


def anthropic(t):
    import anthropic

    client = anthropic.Anthropic(base_url=t.address, api_key=t.key, max_retries=0)
    ask = {"model": t.model, "messages": t.messages, "max_tokens": 24, "extra_body": {"temperature": 0}}

    @t.tries
    def chat():
        done = client.messages.create(**ask)
        t.said(done.content[0].text)
        assert done.stop_reason in ("max_tokens", "end_turn"), done

    @t.tries
    def stream():
        with client.messages.stream(**ask) as parts:
            t.streamed(list(parts.text_stream))

    @t.tries
    def tools():
        tool = {"name": "weather", "description": "The weather in a city", "input_schema": t.schema}
        done = client.messages.create(**ask | {"max_tokens": 64, "messages": t.weather_messages}, tools=[tool], tool_choice={"type": "any"})
        t.called(done.content[-1].name, done.content[-1].input)
        assert done.stop_reason == "tool_use", done

    @t.tries
    def form():
        import pydantic

        City = pydantic.create_model("City", city=(t.weather.__annotations__["city"], ...))
        t.formed(client.messages.parse(**ask, output_format=City).parsed_output)

    @t.tries
    def count_tokens():
        counted = client.messages.count_tokens(model=t.model, messages=t.messages).input_tokens
        usage = client.messages.create(**ask).usage
        assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)


def ollama(t):
    import ollama

    client = ollama.Client(host=t.address, headers={"Authorization": f"Bearer {t.key}"})
    ask = {"model": t.model, "messages": t.messages, "options": {"temperature": 0, "num_predict": 24}}

    @t.tries
    def chat():
        t.said(client.chat(**ask).message.content)

    @t.tries
    def stream():
        t.streamed([part.message.content for part in client.chat(**ask, stream=True)])

    @t.tries
    def tools():
        history = list(t.weather_messages)
        reply = client.chat(model=t.scripted, messages=history, tools=[t.tool]).message
        [call] = reply.tool_calls
        t.called(call.function.name, call.function.arguments)
        history += [reply, {"role": "tool", "content": t.weather(**call.function.arguments), "tool_name": call.function.name}]
        t.ran(client.chat(model=t.scripted, messages=history, tools=[t.tool]).message.content)

    @t.tries
    def form():
        t.formed(client.chat(**ask, format=t.schema).message.content)

    @t.tries
    def embed():
        one, two = client.embed(model=t.model, input=["A cat sleeps.", "A cat sleeps."]).embeddings
        assert list(one) == list(two) and abs(sum(value * value for value in one) - 1) < 1e-3


def huggingface_hub(t):
    import huggingface_hub

    client = huggingface_hub.InferenceClient(base_url=t.base, api_key=t.key)
    ask = {"model": t.model, "messages": t.messages, "max_tokens": 24, "temperature": 0}

    @t.tries
    def chat():
        t.said(client.chat_completion(**ask).choices[0].message.content)

    @t.tries
    def stream():
        t.streamed([part.choices[0].delta.content for part in client.chat_completion(**ask, stream=True) if part.choices])

    @t.tries
    def tools():
        done = client.chat_completion(**ask | {"messages": t.weather_messages, "max_tokens": 64}, tools=[t.tool], tool_choice="required")
        call, *_ = done.choices[0].message.tool_calls
        t.called(call.function.name, call.function.arguments)

    @t.tries
    def form():
        schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": t.schema, "strict": True}}
        t.formed(client.chat_completion(**ask, response_format=schema).choices[0].message.content)


def litellm(t):
    import litellm

    for provider, base, more in [
        ("openai", t.base, {}), ("anthropic", t.address, {}), ("ollama_chat", t.address, {}), ("hosted_vllm", t.base, {}),
    ]:
        ask = {"model": f"{provider}/{t.model}", "api_base": base, "api_key": t.key, "max_tokens": 24, "temperature": 0, "messages": t.messages} | more

        def chat():
            t.said(litellm.completion(**ask).choices[0].message.content)

        def stream():
            t.streamed([part.choices[0].delta.content for part in litellm.completion(**ask, stream=True)])

        def tools():
            scripted = ask | {"model": f"{provider}/{t.scripted}", "messages": t.weather_messages, "max_tokens": 64}
            [call] = litellm.completion(**scripted, tools=[t.tool]).choices[0].message.tool_calls
            t.called(call.function.name, call.function.arguments)

        def form():
            schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": t.schema, "strict": True}}
            t.formed(litellm.completion(**ask | {"max_tokens": 64}, response_format=schema).choices[0].message.content)

        for attempt in (chat, stream, tools, form):
            if provider != "openai":
                attempt.__name__ = f"{attempt.__name__} by {provider}"
            t.tries(attempt)
