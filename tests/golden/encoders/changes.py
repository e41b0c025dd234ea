#!/usr/bin/env python3
"""Computes the scores of `CrossEncoder.predict` for activations and inputs that the files of a model may state.

    pip install torch transformers==4.57.6 sentence-transformers==5.1.2
    python tests/golden/encoders/changes.py

It reads the model `rerank-bert` next to this script, and writes changes.json: on each line the fields that were added to
a file, and the score of each pair of rerank-bert.json in float64.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder

HERE = Path(__file__).resolve().parent
SIGMOID, IDENTITY, TANH = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
OLD = "sbert_ce_default_activation_function"
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
CHANGES = [
    {},
    {OLD: SIGMOID},
    {OLD: IDENTITY},
    {OLD: TANH},
    {OLD: None},
    {"sentence_transformers": {"activation_fn": IDENTITY}},
    {"sentence_transformers": {"activation_fn": TANH, "version": "5.1.2"}, OLD: IDENTITY},
    {"sentence_transformers": {"version": "5.1.2"}, OLD: IDENTITY},
]
INPUTS = [
    {"model_input_names": ["input_ids", "attention_mask"]},
    {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
]

pairs = [json.loads(line) for line in (HERE / "rerank-bert.json").read_text().splitlines()]
pairs = [(pair["query"], pair["document"]) for pair in pairs]
lines = []
with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder) / "model"
    shutil.copytree(HERE / "rerank-bert", folder)
    for file, change in [(CONFIG, change) for change in CHANGES] + [(TOKENIZER, change) for change in INPUTS]:
        before = (folder / file).read_text()
        (folder / file).write_text(json.dumps({**json.loads(before), **change}))
        encoder = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float64}, max_length=190)
        scores = encoder.predict(pairs, batch_size=1, convert_to_numpy=True)
        lines.append(json.dumps({"file": file, "change": change, "scores": [float(score) for score in scores]}))
        (folder / file).write_text(before)
(HERE / "changes.json").write_text("\n".join(lines) + "\n")
