"""The example of an agent, on the tiny model that tests/golden/pictures/chat.py made."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = Path(__file__).parents[3] / "tests/golden/pictures/chat"


def test_an_action_parses_for_each_screen_as_text_and_as_picture(tmp_path):
    command = [sys.executable, EXAMPLES / "screen_agent.py", "--model", MODEL, "--float", "--threads", "1"]
    run = subprocess.run([*command, "--draw", tmp_path], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    steps = [json.loads(line) for line in run.stdout.splitlines()]
    screens = json.loads((EXAMPLES / "screens.json").read_text())
    assert [step["form"] for step in steps] == ["text", "picture"] * len(screens)
    assert len(list(tmp_path.glob("*.png"))) == len(screens)
    for step in steps:
        assert step["action"]["action"] in ("tap", "type", "scroll")
        assert min(step["decode"], step["prefill"], step["answer"]) > 0
        # Only pictures have an encoder.
        assert (step["encode"] > 0) == (step["form"] == "picture")
