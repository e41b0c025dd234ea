"""Frameworks with models of several makers."""

import json
from typing import Literal


def langchain(t):
    import langchain_anthropic
    import langchain_core.messages
    import langchain_core.tools
    import langchain_ollama
    import langchain_openai
    from langchain.agents import create_agent

    @langchain_core.tools.tool
    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """Tells the weather in a city."""
        return t.weather(city)

    def openai(name):
        return langchain_openai.ChatOpenAI(model=name, base_url=t.base, api_key=t.key, temperature=0, max_tokens=64, max_retries=0)

    def responses(name):
        return langchain_openai.ChatOpenAI(
            model=name, base_url=t.base, api_key=t.key, temperature=0, max_tokens=64, max_retries=0, use_responses_api=True
        )

    def anthropic(name):
        return langchain_anthropic.ChatAnthropic(model=name, base_url=t.address, api_key=t.key, temperature=0, max_tokens=64, max_retries=0)

    def ollama(name):
        headers = {"headers": {"Authorization": f"Bearer {t.key}"}}
        return langchain_ollama.ChatOllama(model=name, base_url=t.address, temperature=0, num_predict=64, client_kwargs=headers)

    for make in (openai, responses, anthropic, ollama):
        # ChatOllama asks with streams alone.
        streams = make is ollama

        def chat():
            t.said(make(t.model).invoke("Name three colours.").text, streams)

        def stream():
            t.streamed([part.text for part in make(t.model).stream("Name three colours.")])

        def tools():
            agent = create_agent(make(t.scripted), tools=[weather])
            answer = agent.invoke({"messages": t.weather_messages})["messages"][-1]
            t.ran(answer.text, streams=streams)

        def form():
            more = {"method": "json_schema"}
            t.formed(make(t.model).with_structured_output(t.schema | {"title": "city", "description": "A city"}, **more).invoke("Which city?"))

        for attempt in (chat, stream, tools, form):
            if make is not openai:
                attempt.__name__ = f"{attempt.__name__} by {make.__name__}"
            t.tries(attempt)

    @t.tries
    def embeddings():
        # It sends tokens of OpenAI's vocabulary unless it is told not to.
        client = langchain_openai.OpenAIEmbeddings(model=t.model, base_url=t.base, api_key=t.key, check_embedding_ctx_length=False)
        one, two = client.embed_documents(["A cat sleeps.", "A cat sleeps."])
        assert one == two and client.embed_query("A cat sleeps.") == one


def llama_index(t):
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.ollama import Ollama
    from llama_index.llms.openai_like import OpenAILike

    question = [ChatMessage(role="user", content="Name three colours.")]

    def openai(name):
        return OpenAILike(
            model=name, api_base=t.base, api_key=t.key, is_chat_model=True, is_function_calling_model=True, temperature=0, max_tokens=64, max_retries=0
        )

    def ollama(name):
        return Ollama(model=name, base_url=t.address, headers={"Authorization": f"Bearer {t.key}"}, temperature=0, additional_kwargs={"num_predict": 64}, request_timeout=120)

    for make in (openai, ollama):

        def chat():
            t.said(make(t.model).chat(question).message.content)

        def stream():
            t.streamed([part.delta for part in make(t.model).stream_chat(question)])

        def tools():
            def weather(city: Literal["Oslo", "Rome"]) -> str:
                """Tells the weather in a city."""
                return t.weather(city)

            answer = make(t.scripted).predict_and_call([FunctionTool.from_defaults(weather)], "What is the weather in Oslo?")
            assert str(answer) == "It is 21 degrees in Oslo." and t.cities == ["Oslo"], answer
            t.cities.clear()

        for attempt in (chat, stream, tools):
            if make is not openai:
                attempt.__name__ = f"{attempt.__name__} by {make.__name__}"
            t.tries(attempt)

    @t.tries
    def form():
        from llama_index.core.prompts import PromptTemplate

        import forms

        t.formed(ollama(t.model).structured_predict(forms.city_class(), PromptTemplate("Which city?")))

    @t.tries
    def embeddings():
        client = OpenAILikeEmbedding(model_name=t.model, api_base=t.base, api_key=t.key)
        assert client.get_text_embedding("A cat sleeps.") == client.get_text_embedding("A cat sleeps.")


def haystack(t):
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool
    from haystack.utils import Secret

    def client(name, **more):
        settings = {"temperature": 0, "max_tokens": 64}
        return OpenAIChatGenerator(api_key=Secret.from_token(t.key), model=name, api_base_url=t.base, generation_kwargs=settings, max_retries=0, **more)

    question = [ChatMessage.from_user("Name three colours.")]

    @t.tries
    def chat():
        t.said(client(t.model).run(question)["replies"][0].text)

    @t.tries
    def stream():
        pieces = []
        client(t.model, streaming_callback=lambda part: pieces.append(part.content)).run(question)
        t.streamed(pieces)

    @t.tries
    def tools():
        tool = Tool(name="weather", description="Tells the weather in a city", parameters=t.schema, function=t.weather)
        agent = Agent(chat_generator=client(t.scripted), tools=[tool])
        t.ran(agent.run(messages=[ChatMessage.from_user("What is the weather in Oslo?")])["messages"][-1].text)

    @t.tries
    def form():
        schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": t.schema, "strict": True}}
        t.formed(client(t.model).run(question, generation_kwargs={"response_format": schema})["replies"][0].text)


def semantic_kernel(t):
    import openai
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
    from semantic_kernel.contents import ChatHistory

    import forms

    def service(name):
        client = openai.AsyncOpenAI(base_url=t.base, api_key=t.key, max_retries=0)
        return OpenAIChatCompletion(ai_model_id=name, async_client=client)

    def history():
        told = ChatHistory()
        told.add_user_message("Name three colours.")
        return told

    settings = {"temperature": 0, "max_tokens": 64}

    @t.tries
    async def chat():
        t.said(str(await service(t.model).get_chat_message_content(history(), OpenAIChatPromptExecutionSettings(**settings))))

    @t.tries
    async def stream():
        parts = service(t.model).get_streaming_chat_message_content(history(), OpenAIChatPromptExecutionSettings(**settings))
        t.streamed([str(part) async for part in parts])

    @t.tries
    async def form():
        wanted = OpenAIChatPromptExecutionSettings(**settings, response_format=forms.city_class())
        t.formed(json.loads(str(await service(t.model).get_chat_message_content(history(), wanted))))

    # Its functions are called by two names, which the model's script has not.
    t.leaves_out("tools", "the script of the model calls `weather`, it has `plugin-weather`")


def griptape(t):
    import schema
    from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
    from griptape.events import EventBus, EventListener, TextChunkEvent
    from griptape.structures import Agent

    def driver(name, **more):
        return OpenAiChatPromptDriver(model=name, base_url=t.base, api_key=t.key, temperature=0, max_tokens=64, max_attempts=1, **more)

    @t.tries
    def chat():
        t.said(Agent(prompt_driver=driver(t.model)).run("Name three colours.").output_task.output.value)

    @t.tries
    def stream():
        pieces = []
        EventBus.add_event_listener(EventListener(lambda event: pieces.append(event.token), event_types=[TextChunkEvent]))
        Agent(prompt_driver=driver(t.model, stream=True)).run("Name three colours.")
        t.streamed(pieces)

    @t.tries
    def form():
        wanted = schema.Schema({"city": schema.Or("Oslo", "Rome")})
        agent = Agent(prompt_driver=driver(t.model, structured_output_strategy="native"), output_schema=wanted)
        t.formed(agent.run("Which city?").output_task.output.value)

    t.leaves_out("tools", "its tools have names of several parts, which the model's script has not")
