"""Measures OpenVINO GenAI once: `openvino_bench.py FOLDER THREADS GROUP prefill|decode TOKENS CONTEXT`.

Prefill is the time to the first token of a prompt of TOKENS random tokens; decode generates TOKENS after CONTEXT others.
GROUP is the dynamic quantization group: how many activations share one scale. Prints tokens per second as JSON.
"""

import json
import sys

import numpy
import openvino
import openvino_genai

folder, threads, group, test = sys.argv[1:5]
tokens, context = map(int, sys.argv[5:7])
model = openvino_genai.LLMPipeline(
    folder,
    "CPU",
    INFERENCE_NUM_THREADS=int(threads),
    DYNAMIC_QUANTIZATION_GROUP_SIZE=group,
    ATTENTION_BACKEND="PA",
    PERFORMANCE_HINT="LATENCY",
)
random = numpy.random.default_rng(0)


def generate(prompt, new):
    # New tokens each time, since a prompt that occurred before is not computed again.
    ids = random.integers(100, 40000, (1, prompt))
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = openvino_genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
    return model.generate(inputs, config).perf_metrics


if test == "prefill":
    generate(tokens, 1)
    rate = tokens / generate(tokens, 1).get_ttft().mean * 1000
else:
    generate(context, 4)
    # The first token belongs to the prompt.
    rate = 1000 / generate(context, tokens + 1).get_tpot().mean
print(json.dumps({"tokens_per_second": rate}))
