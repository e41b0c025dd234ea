#!/usr/bin/env python3
"""Makes the greedy answers of a real model by llama.cpp, which Triad's are compared with.

    pip install gguf xllamacpp
    python tests/golden/greedy/make.py MODEL.gguf [--threads N]

writes two files next to this script: MODEL.json from the file as it is, and MODEL-float.json from the same
weights widened to float32. On the file as it is llama.cpp rounds activations to 8 bits before it
multiplies them with quantized weights; on float32 it computes what Triad computes. For each of prompts.json: the prompt as text (rendered by the
model's chat template, if it has one and the prompt is a chat) and as tokens; the likeliest token of
each of up to 64 steps, a control token last if there was one; how far the logit of the second is below it, and
which token that is.
"""

import argparse
import hashlib
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

import gguf

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "reference"))

from llama_cpp import Engine

LENGTH = 64
CONTEXT = 512


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    model = arguments.model
    source = {
        "model": model.stem,
        "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "engine": f"llama.cpp of xllamacpp {importlib.metadata.version('xllamacpp')}, float32 KV cache",
    }
    answers = answer_prompts(model, arguments.threads)
    write(HERE / f"{model.stem}.json", source | {"weights": "as stored"}, answers)
    with tempfile.TemporaryDirectory() as folder:
        wide = Path(folder) / "float.gguf"
        widen(model, wide)
        answers = answer_prompts(wide, arguments.threads)
    write(HERE / f"{model.stem}-float.json", source | {"weights": "widened to float32"}, answers)


def answer_prompts(model, threads):
    """The prompts with llama.cpp's answers."""
    fields = gguf.GGUFReader(model).fields
    has_template = "tokenizer.chat_template" in fields
    pieces = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    ends = {token for token, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL}
    engine = Engine(model, pieces.index("a"), CONTEXT, threads)
    prompts = []
    for prompt in json.loads((HERE / "prompts.json").read_text(encoding="utf-8")):
        chat = has_template and prompt["kind"] == "chat"
        text = engine.render(prompt["text"]) if chat else prompt["text"]
        tokens = engine.tokenize(text)
        steps = engine.greedy(tokens, LENGTH, ends)
        greedy = [step[0][0] for step in steps]
        answer = engine.text([token for token in greedy if token not in ends])
        prompts.append({
            **prompt,
            "rendered": text,
            "tokens": tokens,
            "answer": answer,
            "greedy": greedy,
            "second": [step[1][0] for step in steps],
            "gaps": [round(step[0][1] - step[1][1], 4) for step in steps],
        })
        print(f"{len(prompts):2} {prompt['kind']} {prompt['text'][:40]!r} -> {answer[:60]!r}", flush=True)
    return prompts


def widen(model, path):
    """The GGUF file `model` with every tensor in float32."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path, source, prompts):
    """One line a prompt: short, and yet a change can be read."""
    head = json.dumps(source, indent=2).removesuffix("\n}")
    lines = ",\n".join("    " + json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    path.write_text(f'{head},\n  "prompts": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
