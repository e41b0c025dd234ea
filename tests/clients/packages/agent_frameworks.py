"""Frameworks for agents: the model calls a tool, the package runs it, and the model answers with its result."""

from typing import Literal

import forms


def tool(t):
    """The tool as a function, whose types and text the packages read."""

    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """Tells the weather in a city.

        Args:
            city: The city.
        """
        return t.weather(city)

    return weather


def pydantic_ai(t):
    import pydantic_ai
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    City = forms.city_class()

    def openai(name):
        return OpenAIChatModel(name, provider=OpenAIProvider(base_url=t.base, api_key=t.key))

    def responses(name):
        return OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=t.base, api_key=t.key))

    def anthropic(name):
        return AnthropicModel(name, provider=AnthropicProvider(base_url=t.address, api_key=t.key))

    settings = {"temperature": 0, "max_tokens": 64}
    for make in (openai, responses, anthropic):

        async def chat():
            t.said((await pydantic_ai.Agent(make(t.model), model_settings=settings).run("Name three colours.")).output)

        async def stream():
            async with pydantic_ai.Agent(make(t.model), model_settings=settings).run_stream("Name three colours.") as answer:
                t.streamed([part async for part in answer.stream_text(delta=True, debounce_by=None)])

        async def tools():
            agent = pydantic_ai.Agent(make(t.scripted), tools=[tool(t)], model_settings=settings)
            t.ran((await agent.run("What is the weather in Oslo?")).output)

        async def form():
            kind = pydantic_ai.ToolOutput(City) if make is anthropic else pydantic_ai.NativeOutput(City)
            t.formed((await pydantic_ai.Agent(make(t.model), output_type=kind, model_settings=settings).run("Which city?")).output)

        for attempt in (chat, stream, tools, form):
            if make is not openai:
                attempt.__name__ = f"{attempt.__name__} by {make.__name__}"
            t.tries(attempt)


def openai_agents(t):
    import agents
    import openai

    agents.set_tracing_disabled(True)

    def worker(name, kind=agents.OpenAIChatCompletionsModel, **more):
        model = kind(model=name, openai_client=openai.AsyncOpenAI(base_url=t.base, api_key=t.key, max_retries=0))
        return agents.Agent(name="Helper", model=model, model_settings=agents.ModelSettings(temperature=0, max_tokens=64), **more)

    @t.tries
    async def chat():
        t.said((await agents.Runner.run(worker(t.model), "Name three colours.")).final_output)

    @t.tries
    async def stream():
        run = agents.Runner.run_streamed(worker(t.model), "Name three colours.")
        events = [event.data async for event in run.stream_events() if event.type == "raw_response_event"]
        t.streamed([event.delta for event in events if event.type == "response.output_text.delta"])

    @t.tries
    async def tools():
        helper = worker(t.scripted, tools=[agents.function_tool(tool(t))])
        t.ran((await agents.Runner.run(helper, "What is the weather in Oslo?")).final_output)

    @t.tries
    async def form():
        t.formed((await agents.Runner.run(worker(t.model, output_type=forms.city_class()), "Which city?")).final_output)

    @t.tries
    async def responses():
        helper = worker(t.scripted, agents.OpenAIResponsesModel, tools=[agents.function_tool(tool(t))])
        t.ran((await agents.Runner.run(helper, "What is the weather in Oslo?")).final_output)


def smolagents(t):
    import smolagents

    def model(name):
        return smolagents.OpenAIModel(model_id=name, api_base=t.base, api_key=t.key, temperature=0, max_tokens=64)

    @t.tries
    def chat():
        t.said(model(t.model)([smolagents.ChatMessage(role="user", content="Name three colours.")]).content)

    @t.tries
    def stream():
        question = [smolagents.ChatMessage(role="user", content="Name three colours.")]
        t.streamed([part.content for part in model(t.model).generate_stream(question)])

    @t.tries
    def tools():
        # Of one step: the script has no call that ends a run, and the package then asks for an answer without tools.
        agent = smolagents.ToolCallingAgent(tools=[smolagents.tool(tool(t))], model=model(t.scripted), max_steps=1)
        t.ran(agent.run("What is the weather in Oslo?"))

    @t.tries
    def form():
        schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": t.schema, "strict": True}}
        question = [smolagents.ChatMessage(role="user", content="Which city?")]
        t.formed(model(t.model).generate(question, response_format=schema).content)


def autogen(t):
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    def client(name):
        about = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": ModelFamily.UNKNOWN}
        return OpenAIChatCompletionClient(model=name, base_url=t.base, api_key=t.key, model_info=about, temperature=0, max_tokens=64, max_retries=0)

    question = [UserMessage(content="Name three colours.", source="user")]

    @t.tries
    async def chat():
        t.said((await client(t.model).create(question)).content)

    @t.tries
    async def stream():
        parts = [part async for part in client(t.model).create_stream(question)]
        t.streamed([part for part in parts if isinstance(part, str)])

    @t.tries
    async def tools():
        agent = AssistantAgent("helper", model_client=client(t.scripted), tools=[tool(t)], reflect_on_tool_use=True)
        t.ran((await agent.run(task="What is the weather in Oslo?")).messages[-1].content)

    @t.tries
    async def form():
        agent = AssistantAgent("helper", model_client=client(t.model), output_content_type=forms.city_class())
        t.formed((await agent.run(task="Which city?")).messages[-1].content)


def ag2(t):
    import ag2
    from ag2.config import OpenAIConfig

    def agent(name, streaming=False, **more):
        model = OpenAIConfig(model=name, base_url=t.base, api_key=t.key, temperature=0, max_tokens=64, max_retries=0, streaming=streaming)
        return ag2.Agent("helper", "Be brief.", config=model, **more)

    @t.tries
    async def chat():
        t.said((await agent(t.model).ask("Name three colours.")).body)

    @t.tries
    async def stream():
        t.said((await agent(t.model, streaming=True).ask("Name three colours.")).body, streams=True)

    @t.tries
    async def tools():
        t.ran((await agent(t.scripted, tools=[tool(t)]).ask("What is the weather in Oslo?")).body)

    @t.tries
    async def form():
        reply = await agent(t.model, response_schema=forms.city_class()).ask("Which city?")
        t.formed(await reply.content())


def agno(t):
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike

    def model(name, **more):
        return OpenAILike(id=name, base_url=t.base, api_key=t.key, temperature=0, max_tokens=64, **more)

    @t.tries
    def chat():
        t.said(Agent(model=model(t.model)).run("Name three colours.").content)

    @t.tries
    def stream():
        parts = [part for part in Agent(model=model(t.model)).run("Name three colours.", stream=True) if part.event == "RunContent"]
        t.streamed([part.content for part in parts])

    @t.tries
    def tools():
        t.ran(Agent(model=model(t.scripted), tools=[tool(t)]).run("What is the weather in Oslo?").content)

    @t.tries
    def form():
        t.formed(Agent(model=model(t.model, supports_native_structured_outputs=True), output_schema=forms.city_class()).run("Which city?").content)


def crewai(t):
    import crewai
    from crewai.tools import tool as crew_tool

    def model(name, **more):
        return crewai.LLM(model=f"openai/{name}", base_url=t.base, api_key=t.key, temperature=0, max_tokens=64, **more)

    def crew(name, task, tools=(), **more):
        worker = crewai.Agent(role="Helper", goal="Help", backstory="A helper.", llm=model(name), tools=list(tools), max_iter=3)
        work = crewai.Task(description=task, expected_output="A sentence.", agent=worker, **more)
        return crewai.Crew(agents=[worker], tasks=[work]).kickoff()

    @t.tries
    def chat():
        t.said(model(t.model).call(t.messages))

    @t.tries
    def stream():
        t.said(model(t.model, stream=True).call(t.messages), streams=True)

    @t.tries
    def tools():
        t.ran(crew(t.scripted, "What is the weather in Oslo?", [crew_tool("weather")(tool(t))]).raw)

    @t.tries
    def form():
        t.formed(model(t.model, response_format=forms.city_class()).call(t.messages))


def strands(t):
    import strands
    from strands.models.openai import OpenAIModel

    def agent(name, **more):
        model = OpenAIModel(client_args={"base_url": t.base, "api_key": t.key, "max_retries": 0}, model_id=name, params={"temperature": 0, "max_tokens": 64})
        return strands.Agent(model=model, callback_handler=None, **more)

    # It asks with streams alone.
    @t.tries
    async def stream():
        t.streamed([event["data"] async for event in agent(t.scripted).stream_async("Name three colours.") if "data" in event])

    @t.tries
    def tools():
        answer = agent(t.scripted, tools=[strands.tool(tool(t))])("What is the weather in Oslo?")
        t.ran(str(answer), streams=True)

    @t.tries
    def form():
        t.formed(agent(t.model).structured_output(forms.city_class(), "Which city?"))


def google_adk(t):
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    async def run(name, question, mode=StreamingMode.NONE, **more):
        model = LiteLlm(model=f"openai/{name}", api_base=t.base, api_key=t.key, temperature=0, max_tokens=64)
        runner = InMemoryRunner(agent=LlmAgent(name="helper", model=model, **more), app_name="trial")
        session = await runner.session_service.create_session(app_name="trial", user_id="someone")
        message = types.Content(role="user", parts=[types.Part(text=question)])
        events = runner.run_async(user_id="someone", session_id=session.id, new_message=message, run_config=RunConfig(streaming_mode=mode))
        return [event async for event in events]

    def text_of(event):
        return "".join(part.text or "" for part in event.content.parts)

    @t.tries
    async def chat():
        t.said(text_of((await run(t.model, "Name three colours."))[-1]))

    @t.tries
    async def stream():
        events = await run(t.model, "Name three colours.", StreamingMode.SSE)
        t.streamed([text_of(event) for event in events if event.partial])

    @t.tries
    async def tools():
        t.ran(text_of((await run(t.scripted, "What is the weather in Oslo?", tools=[tool(t)]))[-1]))

    @t.tries
    async def form():
        t.formed(text_of((await run(t.model, "Which city?", output_schema=forms.city_class()))[-1]))
