"""Answers in a form and calls of functions, with the packages `openai`, `anthropic` and `openai-agents`: what these packages
make of an answer, whole and streamed, is what was asked for. The model is small, so that what it calls a function with is
checked by its schema and not by its sense."""

import asyncio
import json
import re
from typing import Literal

import agents
import openai
import pydantic

QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
CITIES = ["Oslo", "Rome"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather of the next days", "parameters": SCHEMA}


class City(pydantic.BaseModel):
    """A city, for answers in a form."""

    city: Literal["Oslo", "Rome"]
    country: Literal["Norway", "Italy"]
    large: bool


def check(arguments):
    assert arguments["city"] in CITIES and 1 <= arguments["days"] <= 9 and len(arguments) == 2, arguments


def forms(client, model):
    ask = {"model": model, "messages": QUESTION, "max_tokens": 96, "temperature": 0}
    parsed = client.chat.completions.parse(**ask, response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City), parsed
    with client.chat.completions.stream(**ask, response_format=City) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    response = client.responses.parse(model=model, input=QUESTION, max_output_tokens=96, temperature=0, text_format=City)
    assert response.output_parsed == parsed.choices[0].message.parsed, response
    for more, form in [({"regex": "[A-Z][a-z]{2,8}"}, "[A-Z][a-z]{2,8}"), ({"choice": ["yes", "no"]}, "yes|no")]:
        answer = client.chat.completions.create(**ask, extra_body={"structured_outputs": more})
        assert re.fullmatch(form, answer.choices[0].message.content), answer
        answer = client.completions.create(model=model, prompt="It is", extra_body={"structured_outputs": more})
        assert re.fullmatch(form, answer.choices[0].text), answer
    try:
        schema = {"name": "x", "schema": {"type": "array", "uniqueItems": True}}
        client.chat.completions.create(**ask, response_format={"type": "json_schema", "json_schema": schema})
        raise AssertionError("a schema that answers can't be kept to is taken")
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema", error


def chat(client, model):
    tools = [{"type": "function", "function": WEATHER}]
    ask = {"model": model, "tools": tools, "max_tokens": 128, "temperature": 0, "parallel_tool_calls": False}
    for choice in ["required", {"type": "function", "function": {"name": "weather"}}]:
        whole = client.chat.completions.create(messages=QUESTION, **ask, tool_choice=choice).choices[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
        [call] = whole.message.tool_calls
        check(json.loads(call.function.arguments))
        deltas = []
        with client.chat.completions.stream(messages=QUESTION, **ask, tool_choice=choice) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    deltas.append(event.arguments_delta)
            final = stream.get_final_completion().choices[0]
        assert len(deltas) > 2 and "".join(deltas) == call.function.arguments, deltas
        assert final.finish_reason == "tool_calls", final
        assert final.message.tool_calls[0].function.arguments == call.function.arguments
    history = [*QUESTION, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"}]
    answer = client.chat.completions.create(messages=history, **ask | {"max_tokens": 32})
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls, answer
    # By a model of pydantic's: the package makes the schema, and reads the arguments.
    parsed = client.chat.completions.parse(
        messages=QUESTION, **ask | {"tools": [openai.pydantic_function_tool(City)]}, tool_choice="required"
    )
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, City), parsed
    return call.function.arguments


def auto(client, model):
    """The model decides: it calls the function as it did before in the conversation."""
    history = []
    for number, (city, days) in enumerate([("Rome", 2), ("Oslo", 4), ("Rome", 5)]):
        function = {"name": "weather", "arguments": json.dumps({"city": city, "days": days})}
        history += [
            {"role": "user", "content": f"What is the weather in {city} in the next {days} days?"},
            {"role": "assistant", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "sunny"},
            {"role": "assistant", "content": "It will be sunny."},
        ]
    history.append({"role": "user", "content": "What is the weather in Oslo in the next 3 days?"})
    # With the second schema, which answers can't be kept to, calls are those that the model writes by itself.
    for parameters in [SCHEMA, SCHEMA | {"not": {}}]:
        tools = [{"type": "function", "function": WEATHER | {"parameters": parameters}}]
        ask = {"model": model, "messages": history, "tools": tools, "max_tokens": 128, "temperature": 0}
        whole = client.chat.completions.create(**ask).choices[0]
        [call] = whole.message.tool_calls
        assert whole.finish_reason == "tool_calls", whole
        assert json.loads(call.function.arguments) == {"city": "Oslo", "days": 3}, call
        with client.chat.completions.stream(**ask) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.message.tool_calls[0].function.arguments == call.function.arguments, final
        none = client.chat.completions.create(**ask, tool_choice="none").choices[0]
        assert none.message.content and not none.message.tool_calls, none


def responses(client, model):
    ask = {
        "model": model, "input": QUESTION, "tools": [{"type": "function", "strict": True} | WEATHER],
        "tool_choice": "required", "max_output_tokens": 128, "temperature": 0, "parallel_tool_calls": False,
    }
    whole = client.responses.create(**ask)
    [call] = whole.output
    assert call.type == "function_call" and call.name == "weather" and whole.status == "completed", whole
    check(json.loads(call.arguments))
    with client.responses.stream(**ask) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        assert stream.get_final_response().output[0].arguments == call.arguments == "".join(deltas)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    history = [*QUESTION, call.model_dump(exclude_none=True), result]
    answer = client.responses.create(**ask | {"input": history, "tool_choice": "none", "max_output_tokens": 24})
    assert answer.output_text, answer


def messages(client, model):
    tools = [{"name": "weather", "description": WEATHER["description"], "input_schema": SCHEMA}]
    ask = {
        "model": model, "messages": QUESTION, "tools": tools, "max_tokens": 128,
        "extra_body": {"temperature": 0},
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    }
    whole = client.messages.create(**ask)
    [use] = whole.content
    assert use.type == "tool_use" and whole.stop_reason == "tool_use", whole
    check(use.input)
    with client.messages.stream(**ask) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(parts) > 2 and json.loads("".join(parts)) == use.input == final.content[0].input, parts
    parsed = client.messages.parse(model=model, messages=QUESTION, max_tokens=96, output_format=City)
    assert isinstance(parsed.parsed_output, City), parsed
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}
    history = [*QUESTION, {"role": "assistant", "content": whole.content}, result]
    answer = client.messages.create(**ask | {"messages": history, "tool_choice": {"type": "none"}, "max_tokens": 24})
    assert answer.content[0].type == "text" and answer.stop_reason in ("end_turn", "max_tokens"), answer


def agent(address, key, model):
    """An agent with one tool: the package calls it with what the model wrote, and asks again with its result."""
    called = []

    @agents.function_tool
    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather in a city."""
        called.append(city)
        return f"It is sunny in {city}."

    agents.set_tracing_disabled(True)

    async def run(settings, streams):
        client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
        worker = agents.Agent(
            name="Forecaster", instructions="Tell people about the weather.", tools=[weather],
            model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client), model_settings=settings,
        )
        if not streams:
            return await agents.Runner.run(worker, QUESTION[0]["content"], max_turns=6)
        result = agents.Runner.run_streamed(worker, QUESTION[0]["content"], max_turns=6)
        async for _ in result.stream_events():
            pass
        return result

    settings = agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=96, parallel_tool_calls=False)
    for streams in [False, True]:
        called.clear()
        result = asyncio.run(run(settings, streams))
        assert called and set(called) <= set(CITIES), called
        assert isinstance(result.final_output, str) and result.final_output, result
    return result.final_output


def all_of_them(client, other, address, key, model):
    forms(client, model)
    arguments = chat(client, model)
    auto(client, model)
    responses(client, model)
    messages(other, model)
    answer = agent(address, key, model)
    print(f"forms, tools: {arguments}; an agent: {answer!r}")
