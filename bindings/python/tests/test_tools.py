"""Packages and benchmarks."""

import json

import pytest

import triad


def test_a_task_is_scored_row_by_row(model, tmp_path):
    rows = ["The capital of France is Paris", "One two three four five"]
    data = tmp_path / "lambada.jsonl"
    data.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    evaluation = model.evaluate("lambada", data)
    assert evaluation["task"] == "lambada" and evaluation["count"] == 2 and len(evaluation["rows"]["correct"]) == 2
    assert [metric["name"] for metric in evaluation["metrics"]] == ["acc", "perplexity"]
    assert model.evaluate("lambada", data, limit=1)["count"] == 1
    with pytest.raises(ValueError, match="expected one of lambada"):
        model.evaluate("chess", data)
    with pytest.raises(triad.Error, match="none.jsonl"):
        model.evaluate("lambada", tmp_path / "none.jsonl")


def test_a_prepared_package_answers(tmp_path):
    steps = []
    path = triad.prepare("smollm2-135m", tmp_path / "model.triad", prune="none", tokens=256, progress=steps.append)
    assert steps == ["reading the model", "calibrating", "choosing clip thresholds and shadows", "quantizing"]
    assert triad.Model(path, context=64).generate("The capital of France is", max_tokens=2, temperature=0).text
    with pytest.raises(triad.Error, match="package already"):
        triad.prepare(path)
    with pytest.raises(triad.Error, match="model.triad"):
        triad.prepare("smollm2-135m", tmp_path / "model.triad")


def test_wrong_ways_to_prepare_are_refused():
    for options, message in [
        ({"weights": "int2"}, "int2"),
        ({"prune": 1.5}, "share from 0 to 1"),
        ({"prune": "some"}, "auto"),
        ({"weights": "int4", "prune": 0.5}, "prune is for INT8"),
    ]:
        with pytest.raises(ValueError, match=message):
            triad.prepare(**options)
