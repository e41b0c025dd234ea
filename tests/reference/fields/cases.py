"""The changed model files: every field that a reference reads, one by one, in every base checkpoint."""

import copy
import json
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

FAMILIES = Path(__file__).resolve().parents[2] / "golden/families"
DROP = object()
VOCAB = 128
FULL, SLIDING = "full_attention", "sliding_attention"

QWEN2_VISION = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 1, "patch_size": 14}

# Name of a base: checkpoint in tests/golden/families, changes to its configuration, tokens. Sessions of 80 tokens are
# beyond the context of LongRoPE's pre-training.
HUGGING_FACE = {
    "llama": ("llama", {}, 40),
    "llama-plain": ("llama", {"rope_scaling": None}, 40),
    "llama-biases": ("llama-biases", {}, 40),
    "mistral": ("mistral", {}, 40),
    "qwen2": ("qwen2", {}, 40),
    "qwen2-window": ("qwen2-window", {}, 40),
    "qwen3": ("qwen3", {}, 40),
    "qwen3-yarn": ("qwen3-yarn", {}, 40),
    "arcee": ("arcee", {}, 40),
    "granite": ("granite", {}, 40),
    "smollm3": ("smollm3", {}, 40),
    "ernie4_5": ("ernie4_5", {}, 40),
    "seed_oss": ("seed_oss", {}, 40),
    "glm": ("glm", {}, 40),
    "glm4": ("glm4", {}, 40),
    "hunyuan": ("hunyuan", {"rope_scaling": {"type": "dynamic", "alpha": 100.0, "factor": 1.0}}, 40),
    "exaone4": ("exaone4", {}, 40),
    "cohere2": ("cohere2", {}, 40),
    "olmo2": ("olmo2", {}, 40),
    "olmo3": ("olmo3", {}, 40),
    "ministral3": ("ministral3", {}, 40),
    "lfm2": ("lfm2", {}, 40),
    "qwen3_5": ("qwen3_5", {}, 40),
    "qwen2_moe": ("qwen2_moe", {}, 40),
    "qwen3_moe": ("qwen3_moe", {}, 40),
    "olmoe": ("olmoe", {}, 40),
    "mixtral": ("mixtral", {}, 40),
    "lfm2_moe": ("lfm2_moe", {}, 40),
    "granitemoe": ("granitemoe", {}, 40),
    "ernie4_5_moe": ("ernie4_5_moe", {}, 40),
    "glm4_moe": ("glm4_moe", {}, 40),
    "gemma": ("gemma", {}, 40),
    "gemma2": ("gemma2", {}, 40),
    "gemma3": ("gemma3", {}, 40),
    "gemma3n": ("gemma3n", {}, 40),
    "gemma4": ("gemma4", {}, 40),
    "gemma4-one-layer": ("gemma4-one-layer", {}, 40),
    "gemma4-moe": ("gemma4-moe", {}, 40),
    "gpt_oss": ("gpt_oss", {}, 40),
    "qwen3_next": ("qwen3_next", {}, 40),
    "granitehybrid": ("granitehybrid", {}, 40),
    "granitemoehybrid": ("granitemoehybrid", {}, 40),
    # Version 4 of transformers lacks YaRN's factor on scores, which the model's own code and llama.cpp have.
    "deepseek_v2": ("deepseek_v2-groups", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, 40),
    "deepseek_v2-greedy": ("deepseek_v2", {}, 40),
    "deepseek_v3": ("deepseek_v3", {}, 40),
    "glm4_moe_lite": ("glm4_moe_lite", {}, 40),
    "nemotron_h": ("nemotron_h", {}, 40),
    "nemotron_h-moe": ("nemotron_h-moe", {}, 40),
    "nemotron_h-both": ("nemotron_h-both", {}, 40),
    "falcon_h1": ("falcon_h1", {}, 40),
    "falcon_h1-before": ("falcon_h1-before", {}, 40),
    "phi2": ("phi2", {}, 40),
    "phi3": ("phi3", {}, 40),
    "phi3-longrope": ("phi3-longrope", {}, 80),
    # The text of models with images; changes to all fields but `/field` are in `text_config`.
    "qwen2_vl": ("qwen2_5_vl", {"/model_type": "qwen2_vl", "model_type": "qwen2_vl_text", "/vision_config": QWEN2_VISION}, 40),
    "qwen2_5_vl": ("qwen2_5_vl", {}, 40),
    "qwen3_vl": ("qwen3_vl", {}, 40),
    "smolvlm": ("smolvlm", {}, 40),
    "llava": ("llava", {}, 40),
}
# Bases whose text is read as that of another base: only fields around it are changed, and those of the text left out.
OTHER_TEXTS = {"qwen2_vl", "smolvlm", "llava"}
# Name of a base: file, tensors and fields (less the architecture) that it is without, tokens.
LONG_ROPE = ["rope_factors_short.weight", "rope_factors_long.weight", "rope.scaling.original_context_length", "rope.scaling.attn_factor"]
# Bases that differ from another of their family in what these fields have.
IN_ONE_STYLE = {"llama-plain", "llama-biases", "qwen2-window"}
VARIANTS = {"qwen3-yarn", "qwen3-yarn.gguf", "llama-plain", "llama-biases", "qwen2-window", "phi3-longrope", "llama-plain.gguf", "phi3.gguf"}
GGUF = {
    "llama.gguf": ("llama.gguf", [], 40),
    "llama-plain.gguf": ("llama.gguf", ["rope_freqs.weight"], 40),
    "qwen2.gguf": ("qwen2.gguf", [], 40),
    "qwen3.gguf": ("qwen3.gguf", [], 40),
    "qwen3-yarn.gguf": ("qwen3-yarn.gguf", [], 40),
    "arcee.gguf": ("arcee.gguf", [], 40),
    "granite.gguf": ("granite.gguf", [], 40),
    "smollm3.gguf": ("smollm3.gguf", [], 40),
    "ernie4_5.gguf": ("ernie4_5-plain.gguf", [], 40),
    "chatglm.gguf": ("glm.gguf", [], 40),
    "glm4.gguf": ("glm4.gguf", [], 40),
    "hunyuan-dense.gguf": ("hunyuan.gguf", [], 40),
    "exaone4.gguf": ("exaone4-plain.gguf", [], 40),
    "cohere2.gguf": ("cohere2.gguf", [], 40),
    "olmo2.gguf": ("olmo2.gguf", [], 40),
    "olmo3.gguf": ("olmo3.gguf", [], 40),
    "mistral3.gguf": ("ministral3.gguf", [], 40),
    "lfm2.gguf": ("lfm2.gguf", [], 40),
    "qwen35.gguf": ("qwen3_5.gguf", [], 40),
    "qwen2moe.gguf": ("qwen2_moe.gguf", [], 40),
    "qwen3moe.gguf": ("qwen3moe.gguf", [], 40),
    "olmoe.gguf": ("olmoe.gguf", [], 40),
    "mixtral.gguf": ("mixtral.gguf", [], 40),
    "lfm2moe.gguf": ("lfm2moe.gguf", [], 40),
    "granitemoe.gguf": ("granitemoe.gguf", [], 40),
    "ernie4_5-moe.gguf": ("ernie4_5-moe.gguf", [], 40),
    "glm4moe.gguf": ("glm4_moe.gguf", [], 40),
    "minicpm.gguf": ("minicpm.gguf", [], 40),
    "gpt-oss.gguf": ("gpt_oss.gguf", [], 40),
    "gemma.gguf": ("gemma.gguf", [], 40),
    "gemma2.gguf": ("gemma2.gguf", [], 40),
    "gemma3.gguf": ("gemma3.gguf", [], 40),
    "gemma3n.gguf": ("gemma3n-long.gguf", [], 40),
    "gemma4.gguf": ("gemma4.gguf", [], 40),
    "gemma4-moe.gguf": ("gemma4-moe.gguf", [], 40),
    "qwen3next.gguf": ("qwen3next.gguf", [], 40),
    "granitehybrid.gguf": ("granitehybrid.gguf", [], 40),
    "granitehybrid-moe.gguf": ("granitehybrid-moe.gguf", [], 40),
    "deepseek2.gguf": ("deepseek_v3.gguf", [], 40),
    "deepseek2-whole.gguf": ("deepseek_v2.gguf", [], 40),
    "nemotron_h.gguf": ("nemotron_h.gguf", [], 40),
    "nemotron_h_moe.gguf": ("nemotron_h-moe.gguf", [], 40),
    "falcon-h1.gguf": ("falcon_h1.gguf", [], 40),
    "phi2.gguf": ("phi2.gguf", [], 40),
    "phi3-longrope.gguf": ("phi3-longrope.gguf", [], 80),
    "phi3.gguf": ("phi3-longrope.gguf", LONG_ROPE, 40),
    "qwen2vl.gguf": ("qwen2vl.gguf", [], 40),
    "qwen3vl.gguf": ("qwen3vl.gguf", [], 40),
}
# The object that has the fields of the text, in a model with images.
TEXT = "text_config"


def tokens(count):
    """Random tokens, the same on every machine."""
    state, found = 1, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(3 + (state >> 12) % (VOCAB - 3))
    return found


@dataclass
class Case:
    base: str
    # Field: value, or DROP.
    changes: dict
    name: str = field(default="")

    def __post_init__(self):
        if not self.name:
            shown = (f"no {key}" if value is DROP else f"{key}={json.dumps(value)}" for key, value in self.changes.items())
            self.name = ", ".join(shown)


def changed(fields, changes, within=None):
    """`fields` with `changes`: of the object `within` if there is one, and of the outermost if a key begins with a slash."""
    fields = copy.deepcopy(fields)
    inner = fields[within] if within else fields
    for key, value in changes.items():
        place, key = (fields, key[1:]) if key.startswith("/") else (inner, key)
        if value is DROP:
            place.pop(key, None)
        else:
            place[key] = value
    return fields


# ---- config.json ----

ACTIVATIONS = ["silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "quick_gelu", "gelu_10",
               "relu", "relu2", "linear"]
# Fields that the two styles of configuration spell differently, or that only the newer has.
STYLED = re.compile("rope|rotary|layer_types|sliding|dtype|tie_word|head_dim|is_causal|max_position|original_max")
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
ROPE_FIELDS = {
    "rope_type": ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "mrope"],
    "type": ["default", "linear", "yarn", "longrope", "llama3"],
    "factor": [3.0, 0.5, None], "rope_theta": [333.0, None], "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [16, 128, None], "attention_factor": [1.5, 0.5, None], "beta_fast": [8.0],
    "beta_slow": [2.0], "mscale": [0.7, 2.0], "mscale_all_dim": [0.5, 2.0, 0.0], "truncate": [False], "low_freq_factor": [2.0, None],
    "high_freq_factor": [8.0, None], "mrope_section": [[2, 3, 3]], "finetuned": [True], "attn_factor": [1.5],
    "short_mscale": [1.2], "long_mscale": [1.2], "alpha": [100.0], "rope_local_base_freq": [77.0],
    "short_factor": [None], "long_factor": [None], "unheard_of": [1.5],
}
# What changes only how text is generated, how a model is trained, or what else a call returns.
ANY = {"architectures": [["Other"], None], "dtype": ["float16", None], "torch_dtype": ["float16", None], "transformers_version": ["9.0.0"],
       "id2label": [{"0": "a"}], "label2id": [{"a": 0}], "num_labels": [5], "return_dict": [False], "model_type": []}
SKIPPED = {"_name_or_path", "name_or_path", "attn_implementation", "auto_map", "model_type", "torchscript", "use_bfloat16", "tf_legacy_loss",
           "sub_configs", "base_config_key", "json", "sub_config_name", "experts_implementation"}


def longrope(pairs):
    return {"rope_type": "longrope", "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
            "long_factor": [1.5 + 0.5 * pair for pair in range(pairs)], "original_max_position_embeddings": 32}


def ropes(config, style):
    """Values of `rope_scaling` or `rope_parameters`."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    pairs = int(head * (config.get("partial_rotary_factor") or 1.0)) // 2
    kinds = [{"rope_type": "default"}, {"type": "default"}, {"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0},
             {"factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, YARN, {"type": "yarn", "factor": 2.0}, LLAMA3, longrope(pairs),
             {**longrope(pairs), "type": "longrope"}, {"type": "su", **longrope(pairs)}, {"rope_type": "linear", "type": "dynamic", "factor": 2.0},
             {"rope_type": "linear", "type": "default", "factor": 2.0}, {"rope_theta": 333.0},
             {"rope_type": "linear", "factor": 2.0, "rope_theta": 333.0}, {"rope_type": "default", "rope_theta": 333.0},
             {"rope_type": "default", "partial_rotary_factor": 0.5}, {"rope_type": "default", "unheard_of": 1}]
    return [None, {}, *kinds]


def layers(config):
    count = config.get("num_hidden_layers") or len(config["layers_block_type"])
    return [None, [FULL] * count, [SLIDING] * count, [(FULL, SLIDING)[i % 2] for i in range(count)],
            [(SLIDING, FULL)[i % 2] for i in range(count)], [FULL] * (count - 1), [], ["chunked_attention"] * count,
            ["attention"] * count, ["linear_attention"] * count]


def plausible(name, value, config, style):
    """Other values of a field."""
    if name in ANY:
        return ANY[name]
    if name in ("hidden_act", "hidden_activation"):
        return [*ACTIVATIONS, None]
    if name in ("rope_scaling", "rope_parameters"):
        return ropes(config, style)
    if name in ("layer_types", "mlp_layer_types", "mtp_layer_types"):
        return layers(config)
    if name == "per_layer_config":
        return [{"1": {"rms_norm_eps": 0.3}}, {}]
    if name.endswith("_config"):
        return [{}, {"quant_method": "fp8"}, None]
    if name == "max_window_layers":
        return [0, 1, 2, 99, None]
    if name in ("sliding_window", "attention_chunk_size"):
        return [0, 1, 4, 100, None]
    if isinstance(value, bool):
        return [True, False, None]
    if isinstance(value, int):
        return [value // 2, 0, value * 2, None]
    if isinstance(value, float):
        return [0.3, 0.0, value * 2, None]
    if isinstance(value, list):
        return [[], [0], None]
    if isinstance(value, dict):
        return [{}, None]
    if isinstance(value, str):
        return ["other", None]
    return [False, 3, None]


def rope_changes(config, key):
    """One field changed of an object under `key`, or of the objects in it."""
    rope = config.get(key)
    if not isinstance(rope, dict):
        return
    nested = [part for part in (FULL, SLIDING) if isinstance(rope.get(part), dict)]
    for part in nested or [None]:
        inner = rope[part] if part else rope
        for name, values in ROPE_FIELDS.items():
            others = [value for value in values if name not in inner or value != inner[name]]
            for value in others + ([DROP] if name in inner else []):
                new = changed(inner, {name: value})
                whole = {**rope, part: new} if part else new
                path = f"{key}.{part}.{name}" if part else f"{key}.{name}"
                yield {key: whole}, f"no {path}" if value is DROP else f"{path}={json.dumps(value)}"
    for part in nested:
        yield {key: changed(rope, {part: DROP})}, f"no {key}.{part}"
        yield {key: changed(rope, {part: None})}, f"{key}.{part}=null"
    if nested:
        yield {key: {**rope, "rope_theta": 55.0}}, f"{key}.rope_theta=55 next to its parts"


def together(config, style):
    """Fields whose meaning depends on each other."""
    if style == "4":
        yield from windows_together(config)
        return
    default, linear = {"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}
    thorough = config["model_type"] in ("llama", "gemma3_text")
    parameters = ({}, linear, {**linear, "rope_theta": 77.0}, default, LLAMA3, {**default, "rope_theta": 77.0})
    for parameters in parameters if thorough else parameters[:3]:
        yield {"rope_parameters": parameters, "rope_theta": 333.0}
        yield {"rope_parameters": parameters, "rope_theta": DROP}
        yield {"rope_parameters": parameters, "rope_theta": 333.0, "partial_rotary_factor": 0.5}
        yield {"rope_parameters": parameters, "rope_theta": 333.0, "rope_local_base_freq": 55.0}
        scalings = ({}, linear, {**linear, "rope_theta": 99.0}, None, default, YARN)
        for scaling in scalings if thorough else scalings[:3]:
            yield {"rope_parameters": parameters, "rope_scaling": scaling, "rope_theta": 333.0}
            yield {"rope_parameters": parameters, "rope_scaling": scaling, "rope_theta": DROP}
    nested = {FULL: linear, SLIDING: default}
    parts = (nested, {FULL: linear}, {SLIDING: {**default, "rope_theta": 44.0}}, {FULL: None, SLIDING: default},
             {FULL: {**linear, "rope_theta": 44.0}, SLIDING: {**linear, "rope_theta": 33.0}})
    for parts in parts if config["model_type"] == "gemma3_text" else parts[:1]:
        yield {"rope_parameters": parts, "rope_theta": 333.0, "rope_local_base_freq": 55.0}
        yield {"rope_parameters": parts, "rope_theta": DROP, "rope_local_base_freq": DROP}
        yield {"rope_parameters": parts, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}
        yield {"rope_parameters": parts, "rope_scaling": {"type": "linear", "factor": 3.0, "rope_theta": 99.0}, "rope_theta": 333.0}
        yield {"rope_parameters": parts, "layer_types": layers(config)[1]}


def windows_together(config):
    kinds = layers(config)
    for types in kinds if "sliding_window" in config else kinds[3:4]:
        for use in (True, False, None):
            yield {"layer_types": types, "use_sliding_window": use, "sliding_window": 4}
        yield {"layer_types": types, "use_sliding_window": True, "sliding_window": None}
        yield {"layer_types": types, "sliding_window": DROP}
        yield {"layer_types": types, "max_window_layers": 1, "use_sliding_window": True, "sliding_window_pattern": 2}
    yield {"layer_types": DROP, "sliding_window_pattern": 2}
    yield {"layer_types": DROP, "sliding_window_pattern": 1}
    yield {"layer_types": DROP, "sliding_window_pattern": None}
    yield {"layer_types": DROP, "_sliding_window_pattern": 2}
    yield {"layer_types": DROP, "sliding_window_pattern": DROP}
    yield {"layer_types": DROP, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": DROP}
    yield {"layer_types": DROP, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    yield {"hidden_act": "relu", "hidden_activation": DROP}
    yield {"hidden_act": "silu", "hidden_activation": DROP}
    yield {"hidden_act": "gelu", "hidden_activation": "silu"}
    yield {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"}
    yield {"hidden_act": "gelu", "hidden_activation": None}


def around(outer, values):
    """Fields outside the object of the text, those of the text with up to so many `values` each."""
    text = outer[TEXT]
    for flag in (True, False, None, DROP):
        for inner in (True, False, None, DROP):
            yield {"/tie_word_embeddings": flag, "tie_word_embeddings": inner}
    own = {name: value for name, value in outer.items() if not isinstance(value, dict)}
    for name, value in sorted((text | own).items()) if values else ():
        if name not in SKIPPED | {"transformers_version"}:
            for other in plausible(name, value, text, "4")[:values]:
                yield {f"/{name}": other}
    for name in sorted(text) if values else ():
        if name not in SKIPPED:
            yield {name: DROP}
            yield {f"/{name}": text[name], name: DROP}
    yield {"model_type": DROP}
    yield {"/model_type": text["model_type"]}
    for name in ("/vision_config", f"/{TEXT}"):
        for value in (DROP, None, {}):
            yield {name: value}
    # All fields at the top level, as the oldest files of Qwen2-VL have them.
    flat = {f"/{name}": value for name, value in text.items() if name != "model_type"}
    for rest in (DROP, None, {}):
        yield flat | {f"/{TEXT}": rest}


def hugging_face(base, config, style, fields, outer=None):
    """Changed configurations of a base. `fields`: what each version says that it reads; `outer`: the configuration that
    has `config` as its text."""
    whole, within = (outer, TEXT) if outer else (config, None)
    seen = {json.dumps(whole, sort_keys=True)}

    def fresh(changes, name=""):
        text = json.dumps(changed(whole, changes, within), sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield Case(base, changes, name)

    yield Case(base, {}, "as it is")
    other_text = base.split()[0] in OTHER_TEXTS
    values = 0 if style == "5" else 1 if other_text else 3
    for changes in around(outer, values) if outer else ():
        yield from fresh(changes)
    if other_text:
        return
    defaults = {}
    for version in fields:
        defaults |= {name: None for name in version["read"]} | version["own"]
    defaults |= config
    for name, value in sorted(defaults.items()):
        if name in SKIPPED or name.startswith("_"):
            continue
        if (style == "5" and len(fields) > 1 or base.split()[0] in VARIANTS) and not STYLED.search(name):
            continue
        # What only the code of all families reads is tried in one of them.
        common = all(name in version["common"] or name not in version["read"] + list(version["own"]) for version in fields)
        if common and not base.startswith("llama ") and not STYLED.search(name):
            continue
        for other in plausible(name, value, config, style):
            yield from fresh({name: other})
        if name in config:
            yield from fresh({name: DROP})
    for key in ("rope_scaling", "rope_parameters"):
        for changes, name in rope_changes(config, key):
            yield from fresh(changes, name)
    for one in (style,) if len(fields) > 1 else ("4", "5"):
        for changes in together(config, one):
            yield from fresh(changes)


# ---- GGUF ----

CODES = {"u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "arr": 9, "u64": 10}
PACKED = {"u32": "<I", "i32": "<i", "f32": "<f", "bool": "<B", "u64": "<Q"}


def packed(kind, value):
    if kind == "str":
        return struct.pack("<Q", len(value.encode())) + value.encode()
    if kind.startswith("arr:"):
        inner = kind[4:]
        return struct.pack("<IQ", CODES[inner], len(value)) + b"".join(packed(inner, one) for one in value)
    return struct.pack(PACKED[kind], value)


class GgufBase:
    """A file's fields, `(kind, value)` by key, and its tensors in f32, so that no engine rounds activations to theirs."""

    def __init__(self, file, without):
        reader = gguf.GGUFReader(FAMILIES / file)
        self.architecture = reader.fields["general.architecture"].contents()
        kinds = {gguf.GGUFValueType[name]: kind for name, kind in
                 dict(UINT32="u32", INT32="i32", FLOAT32="f32", BOOL="bool", STRING="str", UINT64="u64").items()}
        self.fields = {}
        for key, entry in reader.fields.items():
            if key.startswith("GGUF.") or key.removeprefix(f"{self.architecture}.") in without:
                continue
            array = entry.types[0] == gguf.GGUFValueType.ARRAY
            kind = f"arr:{kinds[entry.types[-1]]}" if array else kinds[entry.types[0]]
            self.fields[key] = (kind, entry.contents())
        tensors, self.data = [], b""
        for tensor in reader.tensors:
            if tensor.name in without:
                continue
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("<f4")
            dimensions = values.shape[::-1]
            entry = packed("str", tensor.name) + struct.pack("<I", len(dimensions)) + struct.pack(f"<{len(dimensions)}Q", *dimensions)
            tensors.append(entry + struct.pack("<IQ", 0, len(self.data)))
            self.data += values.tobytes() + b"\0" * (-values.nbytes % 32)
        self.head, self.table = struct.pack("<IQ", 3, len(tensors)), b"".join(tensors)

    def bytes(self, changes):
        fields = changed(self.fields, changes)
        out = b"GGUF" + self.head + struct.pack("<Q", len(fields))
        for key, (kind, value) in fields.items():
            out += packed("str", key) + struct.pack("<I", CODES[kind.split(":")[0]]) + packed(kind, value)
        out += self.table
        return out + b"\0" * (-len(out) % 32) + self.data


def known_keys(library):
    """Keys of an architecture that llama.cpp (its library's own strings) or gguf-py knows, without the architecture."""
    strings = {found.decode() for found in re.findall(rb"%s\.([a-z0-9_.]+[a-z0-9_])\0", library.read_bytes())}
    for group in vars(gguf.Keys).values():
        for key in vars(group).values() if isinstance(group, type) else ():
            if isinstance(key, str) and key.startswith("{arch}."):
                strings.add(key.removeprefix("{arch}."))
    return sorted(strings)


def gguf_values(key, now, blocks):
    """Other values of a field, with their kinds."""
    kind, value = now or (None, None)
    if kind == "str" or key.endswith(("type", "func")):
        yield from (("str", text) for text in ("none", "linear", "yarn", "longrope", "su", "other", ""))
    if kind in (None, "u32", "i32"):
        value = value or 0
        others = {0, 1, 2, 3, 8, value // 2, value + 1, value * 2, 512} if kind else {0, 1, 2, 8}
        yield from (("u32", other) for other in sorted(others - {value if kind else -1}))
        if kind:
            yield "arr:u32", [value] * blocks
            yield "arr:i32", [value // 2] + [value] * (blocks - 1)
            yield "i32", -1
            yield "u64", value
    if kind in (None, "f32"):
        value = value or 0.0
        yield from (("f32", other) for other in {0.0, 0.25, 1.0, 1.5, 3.0, value * 2} - {value if kind else -1.0})
        yield "f32", -1.0
    if kind in (None, "bool"):
        yield from (("bool", flag) for flag in (True, False))
    if kind is None or kind.startswith("arr:"):
        yield "arr:bool", [bool(index % 2) for index in range(blocks)]
        yield "arr:i32", [1] * blocks
        yield "arr:i32", [2 + index % 2 for index in range(4)]
        yield "arr:f32", [0.5] * blocks
        yield "arr:bool", [True] * (blocks + 1)


# The kind that no number and no list of numbers is; a field that may be of it is not read.
ODD = ("arr:str", ["odd"])


def gguf_cases(name, base, keys, is_read):
    """Changed headers of a base. `is_read(case)`: whether the reference refuses the file of a case."""
    blocks = base.fields[f"{base.architecture}.block_count"][1]
    yield Case(name, {}, "as it is")
    own = [key.removeprefix(f"{base.architecture}.") for key in base.fields if key.startswith(f"{base.architecture}.")]
    for key in sorted({*keys, *own}):
        if name in VARIANTS and not re.search("rope|sliding|context", key):
            continue
        full = f"{base.architecture}.{key}"
        now = base.fields.get(full)
        odd = Case(name, {full: ODD})
        yield odd
        for value in gguf_values(key, now, blocks) if now or is_read(odd) else ():
            yield Case(name, {full: value})
        if now:
            yield Case(name, {full: DROP})
    for changes in gguf_together(base.architecture, base, blocks):
        yield Case(name, changes)


def gguf_together(architecture, base, blocks):
    scaling = f"{architecture}.rope.scaling"
    text = lambda value: {f"{scaling}.type": ("str", value)}
    for kind in ("none", "linear", "yarn", "longrope"):
        for factor in (2.0, 0.0, 1.0):
            yield text(kind) | {f"{scaling}.factor": ("f32", factor)}
            yield text(kind) | {f"{scaling}.factor": DROP, f"{architecture}.rope.scale_linear": ("f32", factor)}
        yield text(kind) | {f"{scaling}.attn_factor": ("f32", 1.5)}
        yield text(kind) | {f"{scaling}.factor": ("f32", 2.0), f"{scaling}.attn_factor": ("f32", 1.5)}
        yield text(kind) | {f"{scaling}.factor": ("f32", 2.0), f"{scaling}.original_context_length": ("u32", 16)}
        yield text(kind) | {f"{scaling}.factor": ("f32", 2.0), f"{scaling}.yarn_log_multiplier": ("f32", 0.5)}
        yield text(kind) | {f"{scaling}.factor": ("f32", 2.0), f"{scaling}.yarn_ext_factor": ("f32", 0.5)}
    yield {f"{scaling}.factor": ("f32", 2.0), f"{architecture}.rope.scale_linear": ("f32", 3.0)}
    yield {f"{scaling}.factor": ("f32", 2.0), f"{scaling}.finetuned": ("bool", True)}
    window = f"{architecture}.attention.sliding_window"
    for pattern in (("u32", 1), ("u32", 2), ("u32", 0), ("arr:bool", [True] * blocks), ("arr:bool", [index % 2 == 0 for index in range(blocks)])):
        yield {window: ("u32", 4), f"{window}_pattern": pattern}
        yield {window: DROP, f"{window}_pattern": pattern}
    for base_key in ("rope.freq_base_swa", "rope.dimension_count_swa", "attention.key_length_swa", "attention.value_length_swa"):
        yield {window: ("u32", 4), f"{architecture}.{base_key}": ("f32", 77.0) if "base" in base_key else ("u32", 8)}
