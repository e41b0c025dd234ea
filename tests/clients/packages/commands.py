"""Programs of packages, as people start them."""

import json
import os
import re
import subprocess
from pathlib import Path

# Some programs draw in colours.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LONGEST_SECONDS = 240


def run(*words, text=None, **variables):
    """Returns the output of a program."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=LONGEST_SECONDS, env=os.environ | variables, check=False)
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
    return ESCAPES.sub("", done.stdout).replace("\r", "")


def inspect(t):
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool
    from inspect_ai.util import JSONSchema

    def model(name, **more):
        settings = GenerateConfig(temperature=0, max_tokens=64, max_retries=0, **more)
        return get_model(f"openai-api/triad/{name}", base_url=t.base, api_key=t.key, config=settings)

    @tool
    def weather():
        async def execute(city: str) -> str:
            """Tells the weather in a city.

            Args:
                city: The city.
            """
            return t.weather(city)

        return execute

    @t.tries
    async def chat():
        t.said((await model(t.model).generate("Name three colours.")).completion)

    @t.tries
    async def form():
        city = JSONSchema(type="object", properties={"city": JSONSchema(type="string", enum=["Oslo", "Rome"])}, required=["city"], additionalProperties=False)
        t.formed((await model(t.model, response_schema=ResponseSchema(name="city", json_schema=city)).generate("Which city?")).completion)

    @t.tries
    def tools():
        task = Task(dataset=[Sample(input="What is the weather in Oslo?", target="sunny")], solver=[use_tools(weather()), generate()], scorer=includes())
        [log] = eval(task, model=model(t.scripted), display="none", log_dir="logs")
        assert log.status == "success" and log.results.scores[0].metrics["accuracy"].value == 1, log
        t.ran(log.samples[0].output.completion)


def guidellm(t):
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Number {index}. Name three colours."}) + "\n" for index in range(4)))

    def measured(stream):
        run(
            "guidellm", "run", "--backend", f"kind=openai_http,target={t.address},model={t.scripted},api_key={t.key},stream={stream}",
            "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4", "--data", "kind=json_file,path=prompts.jsonl",
            "--output", "kind=json,path=out.json", "--disable-console",
        )
        [benchmark] = json.loads(Path("out.json").read_text())["benchmarks"]
        totals = benchmark["metrics"]["request_totals"]
        assert totals["successful"] == 4 and totals["errored"] == 0, totals
        outputs = [request["output"] for request in benchmark["requests"]["successful"]]
        assert {output.strip() for output in outputs} == {"Red, green and blue."}, outputs
        return benchmark

    @t.tries
    def chat():
        measured("false")

    @t.tries
    def stream():
        times = measured("true")["metrics"]["inter_token_latency_ms"]["successful"]
        assert times["mean"] > 0, times
        asked = t.recorded()[-1]["asked"]["stream_options"]
        assert asked["continuous_usage_stats"] and asked["include_usage"], asked


def aider(t):
    variables = {"OPENAI_API_BASE": t.base, "OPENAI_API_KEY": t.key, "AIDER_ANALYTICS_DISABLE": "true"}
    words = ["aider", "--model", f"openai/{t.scripted}", "--no-git", "--no-check-update", "--no-show-model-warnings", "--no-pretty"]
    words += ["--yes-always", "--chat-mode", "ask", "--message", "Name three colours.", "--no-analytics", "--map-tokens", "0", "--no-detect-urls"]

    @t.tries
    def chat():
        printed = run(*words, "--no-stream", **variables)
        assert "Red, green and blue." in printed, printed
        t.said("Red, green and blue.")

    @t.tries
    def stream():
        printed = run(*words, "--stream", **variables)
        assert "Red, green and blue." in printed, printed
        t.said("Red, green and blue.", streams=True)


def shell_gpt(t):
    variables = {"API_BASE_URL": t.base, "OPENAI_API_KEY": t.key, "DEFAULT_MODEL": t.model, "USE_LITELLM": "false", "PRETTIFY_MARKDOWN": "false"}
    variables |= {"OPENAI_USE_FUNCTIONS": "false", "SHELL_INTERACTION": "false"}

    @t.tries
    def stream():
        t.said(run("sgpt", "--no-cache", "--temperature", "0", "Name three colours.", text="", **variables), streams=True)


def llm(t):
    folder = Path("llm")
    folder.mkdir()
    named = [
        {"model_id": name, "model_name": name, "api_base": t.base, "api_key_name": "triad", "supports_tools": True, "supports_schema": True}
        for name in (t.model, t.scripted)
    ]
    # JSON is YAML.
    (folder / "extra-openai-models.yaml").write_text(json.dumps(named))
    (folder / "keys.json").write_text(json.dumps({"triad": t.key}))
    ask = ["-o", "temperature", "0", "-o", "max_tokens", "64"]

    def said(*words):
        return run("llm", *words, LLM_USER_PATH=str(folder.resolve()))

    @t.tries
    def chat():
        t.said(said("-m", t.model, *ask, "--no-stream", "Name three colours."))

    @t.tries
    def stream():
        t.said(said("-m", t.model, *ask, "Name three colours."), streams=True)

    @t.tries
    def form():
        t.formed(said("-m", t.model, *ask, "--no-stream", "--schema", json.dumps(t.schema), "Which city?"))

    @t.tries
    def tools():
        function = 'def weather(city: str) -> str:\n    """Tells the weather in a city."""\n    return f"It is 21 degrees in {city}."\n'
        printed = said("-m", t.scripted, *ask, "--no-stream", "--functions", function, "What is the weather in Oslo?")
        t.cities.append("Oslo")
        t.ran(printed)
