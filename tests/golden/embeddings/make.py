#!/usr/bin/env python3
"""Makes tiny random models of vectors in the layout of `sentence-transformers`, and the vectors that they must give.

    pip install torch transformers==4.57.6 sentence-transformers==5.1.2
    python tests/golden/embeddings/make.py

For each name in CASES this writes, next to this script:

    NAME/           the model as `sentence-transformers` reads it: Qwen3-Embedding's layout has tensors without the prefix
                    `model.`, a tokenizer that appends an end token, the last token's state, and prompts
    NAME.json       for each text, prompt and number of dimensions the vector of `SentenceTransformer.encode`, in float64

The weights are random, so nothing here is anyone's model. The same seeds give the same files on one version of torch.
"""

import json
import shutil
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

HERE = Path(__file__).resolve().parent
END = "<|endoftext|>"
# `sentence-transformers` strips the white space around a text, which Triad keeps.
TEXTS = ["A cat sleeps.", "3 + 4 = 7", "Größe: 25 °C, 天气", " ".join(["long"] * 40), "x\n  y"]
SHAPE = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    max_position_embeddings=512, tie_word_embeddings=True,
)
MODES = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
PROMPTS = {"query": "Instruct: find\nQuery:", "document": ""}

CASES = {
    "qwen3": (Qwen3Model, Qwen3Config, "lasttoken", {"prompts": PROMPTS, "default_prompt_name": None}),
    "llama": (LlamaModel, LlamaConfig, "mean_tokens", {"prompts": {"passage": "passage: "}, "default_prompt_name": "passage"}),
    "first": (Qwen3Model, Qwen3Config, "cls_token", {"prompts": {}, "default_prompt_name": None}),
}


def tokenizer(appends):
    """Bytes and an end token, which is put after each text if `appends`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    if appends:
        made.post_processor = processors.TemplateProcessing(
            single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, made.token_to_id(END))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END, padding_side="left")


def write(folder, name, value):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def make(name):
    kind, config, mode, prompts = CASES[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokens = tokenizer(appends=mode == "lasttoken")
    torch.manual_seed(sum(name.encode()))
    model = kind(config(vocab_size=len(tokens), **SHAPE)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(MODULES)
    ]
    write(folder, "modules.json", modules)
    pooling = {f"pooling_mode_{other}": other == mode for other in MODES}
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": SHAPE["hidden_size"], **pooling, "include_prompt": True})
    write(folder, "config_sentence_transformers.json", {**prompts, "similarity_fn_name": "cosine"})
    # Of no use to a reader, but `SentenceTransformer` wants the folder to be there.
    (folder / "2_Normalize").mkdir()
    encoder = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float64})
    cases = []
    for prompt in [None, *prompts["prompts"]]:
        for dimensions in [None, 8]:
            vectors = encoder.encode(
                TEXTS, batch_size=1, prompt_name=prompt, truncate_dim=dimensions, normalize_embeddings=True,
                convert_to_numpy=True,
            )
            for text, vector in zip(TEXTS, vectors):
                cases.append({"text": text, "prompt": prompt, "dimensions": dimensions, "vector": vector.tolist()})
    (folder / "2_Normalize").rmdir()
    (HERE / f"{name}.json").write_text("\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n")
    print(f"{name}: {len(cases)} vectors")


if __name__ == "__main__":
    for case in CASES:
        make(case)
