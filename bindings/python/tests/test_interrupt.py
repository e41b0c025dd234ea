"""Ctrl-C, in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading
import triad

# A shell's background job ignores Ctrl-C, and its children do.
signal.signal(signal.SIGINT, signal.default_int_handler)
model = triad.Model("smollm2-135m", context=4096)
# As Ctrl-C would, once the call below has begun; the main thread holds no Python code then.
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted, and", model.generate("One, two,", max_tokens=1).tokens != [])
"""


@pytest.mark.parametrize(
    "call",
    [
        "model.session().prefill([1] * 4000); model.session().prefill([2] * 4000); model.session().prefill([3] * 4000)",
        "model.generate('Once', max_tokens=4000, logit_bias={token: -100 for token in model.end_tokens})",
        "[*model.stream('Once', max_tokens=4000, logit_bias={token: -100 for token in model.end_tokens})]",
    ],
)
def test_ctrl_c_ends_a_call_and_the_model_goes_on(call):
    run = subprocess.run([sys.executable, "-c", PROGRAM.format(call=call)], capture_output=True, text=True, timeout=300)
    assert (run.stdout, run.returncode) == ("interrupted, and True\n", 0), run.stderr


