#!/usr/bin/env python3
"""Changes each field of the encoders' `config.json`, one by one, and writes how the hidden states of `transformers` change.

    PYTHONPATH=... python tests/golden/encoders/fields.py 4       # with version 4 of transformers
    PYTHONPATH=... python tests/golden/encoders/fields.py 5       # with version 5

For each model in MODELS the result is a line of `fields-4.json` or `fields-5.json` for each change: the model, the field,
its value (no `value` if it is left out), and the effect: `same`, `other`, or `error` if the model does not load or run.
"""

import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel

HERE = Path(__file__).resolve().parent
MODELS = ["bert", "xlm-roberta", "gemma", "modern-bert"]
# Fields that name files, versions and training, and those of outputs that `transformers` can return besides.
OTHERS = {"_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "model_type"}
MORE = {
    "is_decoder": True, "add_cross_attention": True, "position_embedding_type": "relative_key", "hidden_act": "relu",
    "hidden_activation": "silu", "use_bidirectional_attention": False, "sliding_window": 8, "head_dim": 8, "embedding_size": 16,
    "num_key_value_heads": 1, "rope_theta": 5.0, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 2.0, "rope_local_base_freq": 3.0, "tie_word_embeddings": False, "is_causal": True,
    "layer_types": ["full_attention"] * 6, "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "attention_bias": True,
    "sliding_window_pattern": 2, "pad_token_id": 3, "type_vocab_size": 3, "problem_type": "regression", "use_cache": False,
    "classifier_dropout": 0.5, "chunk_size_feed_forward": 2, "norm_bias": True, "mlp_bias": True,
}
TOKENS = [2, 9, 17, 1, 33, 5, 5, 12, 3] + [7 + index % 40 for index in range(40)] + [3]


def states(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.no_grad():
            tokens = torch.tensor([TOKENS])
            return model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state


def values(field, value):
    """Other values of a field."""
    others = [MORE[field]] if field in MORE else []
    match value:
        case bool():
            others.append(not value)
        case int():
            others += [value + 1, value * 2, max(value // 2, 1)]
        case float():
            others += [value * 100 if value < 1 else value / 2]
        case str() if field not in MORE:
            others.append("other")
    return [other for other in others if other != value]


def effect(base, config, expected):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(base / "model.safetensors", folder)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            found = states(folder)
        except Exception:
            return "error"
    if found.shape != expected.shape or not torch.isfinite(found).all():
        return "error"
    return "same" if torch.allclose(found, expected, rtol=0, atol=1e-9) else "other"


def main():
    version = sys.argv[1]
    assert transformers.__version__.startswith(version), transformers.__version__
    transformers.logging.set_verbosity_error()
    lines = []
    for model in MODELS:
        base = HERE / model
        config = json.loads((base / "config.json").read_text())
        expected = states(base)
        assert torch.isfinite(expected).all()
        fields = {**dict.fromkeys(MORE), **config}
        for field in sorted(set(fields) - OTHERS):
            for value in values(field, config.get(field)):
                found = effect(base, {**config, field: value}, expected)
                lines.append({"model": model, "field": field, "value": value, "effect": found})
            if field in config:
                found = effect(base, {key: config[key] for key in config if key != field}, expected)
                lines.append({"model": model, "field": field, "effect": found})
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    (HERE / f"fields-{version}.json").write_text(text)
    counts = {name: sum(line["effect"] == name for line in lines) for name in ["same", "other", "error"]}
    print(f"transformers {transformers.__version__}: {counts}")


if __name__ == "__main__":
    main()
