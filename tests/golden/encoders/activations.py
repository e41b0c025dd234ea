#!/usr/bin/env python3
"""Computes the scores of `CrossEncoder.predict` for each activation that a `config.json` may state.

    pip install torch transformers==4.57.6 sentence-transformers==5.1.2
    python tests/golden/encoders/activations.py

It reads the model `rerank-bert` next to this script, and writes activations.json: on each line the fields that were added to
config.json, and the score of each pair of rerank-bert.json in float64.
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

pairs = [json.loads(line) for line in (HERE / "rerank-bert.json").read_text().splitlines()]
pairs = [(pair["query"], pair["document"]) for pair in pairs]
lines = []
with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder) / "model"
    shutil.copytree(HERE / "rerank-bert", folder)
    config = json.loads((folder / "config.json").read_text())
    for change in CHANGES:
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        encoder = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float64}, max_length=190)
        scores = encoder.predict(pairs, batch_size=1, convert_to_numpy=True)
        lines.append(json.dumps({"change": change, "scores": [float(score) for score in scores]}))
(HERE / "activations.json").write_text("\n".join(lines) + "\n")
