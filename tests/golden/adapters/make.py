#!/usr/bin/env python3
"""Makes tiny random LoRA adapters for checkpoints of `tests/golden/families`, and the logits that they must give.

    pip install torch transformers==4.57.6 peft==0.21.2 safetensors gguf xllamacpp
    python tests/golden/adapters/make.py [NAME ...]

For each name in CASES this writes, next to this script:

    NAME/                  the adapter as `peft` saves it
    NAME.gguf              the same adapter as llama.cpp's `convert_lora_to_gguf.py` names and orders it, for some
    golden.safetensors     SESSION.tokens [tokens] and SESSION.logits [tokens, vocab] of every session

The logits come from `peft` on `transformers` in float64 (its norms, RoPE and softmax stay in float32). Before anything is
kept, each adapter and each pattern in its configuration is seen to change the logits, and llama.cpp (through xllamacpp), an
engine of other authors, gives the GGUF adapters on the GGUF checkpoints the same logits. The same seeds give the same files
on one version of torch.
"""

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "reference"))

from llama_cpp import Engine

FAMILIES = HERE.parent / "families"
VOCAB = 128
TOKENS = 24
# An adapter must change the logits by this much, relative to the largest.
SENSITIVITY = 1e-2
# Logits may differ by this much, relative to the largest, between peft and llama.cpp.
AGREEMENT = 1e-5
# The same where the checkpoint is in bf16: llama.cpp rounds what is multiplied with it to bf16.
AGREEMENT_BF16 = 1e-2
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass
class Case:
    """One adapter."""

    base: str
    config: dict
    dtype: torch.dtype = torch.float32
    # `general.architecture` of the GGUF file, if there is one, and the format of its matrices.
    architecture: str | None = None
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    # Changes of the configuration, each of which must change the logits.
    features: list = field(default_factory=list)


CASES = {
    "llama-all": Case(
        "llama", dict(r=4, lora_alpha=6, target_modules=ALL), architecture="llama",
        features=[dict(lora_alpha=12)],
    ),
    # Ranks and alphas of their own, the root of the rank, some blocks, bf16.
    "llama-patterns": Case(
        "llama",
        dict(
            r=3, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"], layers_to_transform=[0, 2],
            rank_pattern={"v_proj": 5, "^model.layers.2.self_attn.q_proj": 2}, alpha_pattern={"layers.0.mlp.down_proj": 9},
        ),
        dtype=torch.bfloat16, features=[dict(use_rslora=False), dict(alpha_pattern={})],
    ),
    "mistral": Case("mistral", dict(r=2, lora_alpha=4, target_modules=["k_proj", "o_proj"]), dtype=torch.float16),
    "qwen2": Case(
        "qwen2", dict(r=4, lora_alpha=8, target_modules=ALL), dtype=torch.float16, architecture="qwen2",
        matrices=gguf.GGMLQuantizationType.F16,
    ),
    "gemma2": Case("gemma2", dict(r=3, lora_alpha=3, target_modules=ALL)),
    "phi2": Case(
        "phi2", dict(r=3, lora_alpha=5, target_modules=["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]),
        architecture="phi2",
    ),
    # Checkpoints whose rows of queries and keys are those of adjacent pairs, as in GGUF; some blocks have no RoPE.
    "ernie4_5": Case(
        "ernie4_5-plain", dict(r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "down_proj"]), architecture="ernie4_5",
    ),
    "cohere2": Case("cohere2", dict(r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "up_proj"])),
    # Query, key and value are one module, gate and up another.
    "phi3": Case("phi3", dict(r=4, lora_alpha=6, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
}

# Adapters with scales, together.
TOGETHER = {"llama-both": {"llama-all": 0.5, "llama-patterns": 1.5}}


def base(case):
    model = AutoModelForCausalLM.from_pretrained(FAMILIES / case.base, attn_implementation="eager", dtype=torch.float32)
    return model.eval()


def build(name, case, changes=None):
    """The model of a case with its adapter, whose numbers are representable in the case's format."""
    model = get_peft_model(base(case), LoraConfig(**(case.config | (changes or {}))))
    generator = torch.Generator().manual_seed(sum(name.encode()))
    for parameter_name, parameter in sorted(model.named_parameters()):
        if "lora_" in parameter_name:
            values = 0.5 * torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
            parameter.data = values.to(case.dtype).float()
    return model.eval()


def tokens(count):
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(2)).tolist()


@torch.no_grad()
def logits(model, ids):
    return model.double()(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def difference(one, other):
    """Largest difference, relative to the largest logit."""
    return float(np.abs(one - other).max() / np.abs(one).max())


# From Hugging Face's names to llama.cpp's, inside a block.
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}


def pair_adjacent(matrix, heads):
    """llama.cpp's LLaMA rotates dimensions 2i and 2i + 1 of a head, transformers i and i + half."""
    halves = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, matrix.shape[1])
    return halves.swapaxes(1, 2).reshape(matrix.shape)


def write_gguf(path, case, model):
    config = model.config
    writer = gguf.GGUFWriter(path, case.architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(case.config["lora_alpha"]))
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        _, _, block, part = name.removeprefix("base_model.model.").split(".", 3)
        module, factor = part.split(".lora_")
        values = parameter.detach().float().numpy()
        if case.architecture == "llama" and factor.startswith("B") and module == "self_attn.q_proj":
            values = pair_adjacent(values, config.num_attention_heads)
        if case.architecture == "llama" and factor.startswith("B") and module == "self_attn.k_proj":
            values = pair_adjacent(values, config.num_key_value_heads)
        stored = gguf.quantize(values, case.matrices)
        assert (gguf.dequantize(stored, case.matrices) == values).all(), f"{name} does not fit {case.matrices.name}"
        writer.add_tensor(f"blk.{block}.{NAMES[module]}.weight.lora_{factor[0].lower()}", stored, raw_dtype=case.matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_log_probabilities(case, path, ids):
    """Log-probabilities after every prefix of `ids`, by llama.cpp in float32."""
    engine = Engine(FAMILIES / f"{case.base}.gguf", whole=VOCAB - 1, adapters=[path])
    rows = np.empty((len(ids), VOCAB))
    for length in range(1, len(ids) + 1):
        for token, log_probability in engine.candidates(ids[:length], VOCAB):
            rows[length - 1, token] = log_probability
    return rows


def main():
    chosen = sys.argv[1:] or list(CASES)
    ids, path = tokens(TOKENS), HERE / "golden.safetensors"
    golden = load_file(path) if path.exists() else {}
    for name, case in CASES.items():
        if name not in chosen:
            continue
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model = build(name, case)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(case.dtype)
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        # No other output has the place of the base.
        config = folder / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | dict(base_model_name_or_path=case.base), indent=2))
        model = build(name, case)
        if case.architecture:
            write_gguf(HERE / f"{name}.gguf", case, model)
        found, plain = logits(model, ids), logits(base(case), ids)
        assert difference(plain, found) > SENSITIVITY, f"{name} changes nothing"
        for changes in case.features:
            seen = difference(found, logits(build(name, case, changes), ids))
            assert seen > SENSITIVITY, f"{name}: {changes} changes the logits by {seen} only"
        saved = logits(PeftModel.from_pretrained(base(case), folder).eval(), ids)
        assert difference(found, saved) < 1e-6, f"{name} is not what was saved: {difference(found, saved)}"
        if case.architecture:
            theirs = llama_cpp_log_probabilities(case, HERE / f"{name}.gguf", ids)
            ours = torch.log_softmax(torch.tensor(found).double(), -1).numpy()
            bound = AGREEMENT if case.base == "llama" else AGREEMENT_BF16
            assert difference(ours, theirs) < bound, f"{name}: llama.cpp differs by {difference(ours, theirs)}"
            print(f"{name}: llama.cpp differs by {difference(ours, theirs):.1e}")
        golden[f"{name}.logits"] = found
    for session, scales in TOGETHER.items():
        names = list(scales)
        if not set(names) <= set(chosen):
            continue
        model = PeftModel.from_pretrained(base(CASES[names[0]]), HERE / names[0], adapter_name=names[0])
        for name in names[1:]:
            model.load_adapter(HERE / name, adapter_name=name)
        model.base_model.set_adapter(names)
        for module in model.modules():
            for name in names:
                if isinstance(module, LoraLayer) and name in module.scaling:
                    module.scaling[name] *= scales[name]
        golden[f"{session}.logits"] = logits(model.eval(), ids)
    for session in [*CASES, *TOGETHER]:
        golden[f"{session}.tokens"] = np.array(ids, dtype=np.uint32)
    save_file(golden, path)


if __name__ == "__main__":
    main()
