#!/usr/bin/env python3
"""Makes tiny random models that rank, classify or have ModernBERT's layout, and what they must give.

    pip install torch transformers==5.24.0 sentence-transformers==6.2.0 gguf xllamacpp
    python tests/golden/encoders/modern.py

It writes next to this script, as `make.py` does for other models, in float64 where it computes:

    modern-bert               vectors of `SentenceTransformer.encode`; also as GGUF
    rerank-modern-bert        scores of `CrossEncoder.predict` without an activation; also as GGUF
    rerank-qwen3              the same of a language model with a module LogitScore, which are checked to be those of
                              `transformers` for Qwen3-Reranker's published prompt; also as GGUF
    rerank-qwen3-score        the same of Qwen3ForSequenceClassification
    classes-bert              the probabilities of a pipeline of `transformers`, with three classes
    bert-f16, -q8_0, -q4_0    GGUF files of `make.py`'s bert with matrices in these types, and vectors of the same numbers

llama.cpp reads each GGUF file, too: the script fails if it is far from these. The weights are random.
"""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
import xllamacpp
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, BertModel, ModernBertConfig,
    ModernBertForSequenceClassification, ModernBertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from make import FAR, HERE, MODES, PAIRS, TEXTS, WIDTHS, File, add_word_piece, randomize, server, word_piece, write

IDENTITY = torch.nn.Identity()
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
OTHER_TASK = "Find the same sum"
TEMPLATE = (
    '{%- set task = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("' + TASK + '") -%}\n'
    '{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    + "{{- " + json.dumps(PREFIX) + ' + "<Instruct>: " + task + "\\n<Query>: " + query + "\\n<Document>: " + document + '
    + json.dumps(SUFFIX) + " }}\n"
)


def bytes_bpe(merges):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    for one, other in merges:
        vocabulary[one + other] = len(vocabulary)
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    return made


QWEN_MERGES = [("n", "o"), ("y", "e"), ("ye", "s"), ("l", "o"), ("lo", "n"), ("lon", "g"), ("Ġ", "t")]
MODERN_MERGES = [("l", "o"), ("lo", "n"), ("lon", "g"), ("Ġ", "long")]


def qwen_tokenizer():
    made = bytes_bpe(QWEN_MERGES)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens(["<think>", "</think>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left", chat_template=TEMPLATE,
        model_max_length=4096,
    )


def modern_tokenizer():
    made = bytes_bpe(MODERN_MERGES)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    first = len(made.get_vocab())
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", first + 1), ("[SEP]", first + 2)],
    )
    names = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], model_max_length=512, **names
    )


def modern_config(size, **more):
    # Small windows and five blocks, so that global and local attention are both there and differ.
    return ModernBertConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=5,
        max_position_embeddings=512, local_attention=16, pad_token_id=size - 2, cls_token_id=size - 4, bos_token_id=size - 4,
        sep_token_id=size - 3, eos_token_id=size - 3, **more,
    )


def save(name, model, tokenizer):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    randomize(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lines(name, cases):
    (HERE / f"{name}.json").write_text("\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n")
    print(f"{name}: {len(cases)} cases")


def add_bpe(writer, tokenizer, pre, merges, special, added=()):
    size = len(tokenizer)
    names = [tokenizer.convert_ids_to_tokens(index) for index in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types([3 if name in special else 4 if name in added else 1 for name in names])
    writer.add_token_merges([" ".join(pair) for pair in merges])


MODERN_NAMES = [("attn.Wqkv", "attn_qkv"), ("attn.Wo", "attn_output"), ("mlp.Wi", "ffn_up"), ("mlp.Wo", "ffn_down"), ("mlp_norm", "ffn_norm")]


def modern_file(name, model, tokenizer, pooling):
    config = model.config
    tensors = {key.removeprefix("model."): value for key, value in model.state_dict().items()}
    file = File(name, "modern-bert", config, config.num_hidden_layers)
    file.number("attention.layer_norm_epsilon", float(config.norm_eps))
    file.number("rope.freq_base", 160000.0)
    file.number("attention.sliding_window", config.local_attention)
    file.number("attention.sliding_window_pattern", 3)
    file.writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    file.flag("modern-bert.attention.causal", False)
    file.number("pooling_type", pooling)
    writer, size = file.writer, len(tokenizer)
    add_bpe(writer, tokenizer, "modern-bert", MODERN_MERGES, ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    for add, index in [
        (writer.add_unk_token_id, 5), (writer.add_bos_token_id, 4), (writer.add_eos_token_id, 3), (writer.add_sep_token_id, 3),
        (writer.add_pad_token_id, 2), (writer.add_mask_token_id, 1),
    ]:
        add(size - index)
    for add in [writer.add_add_bos_token, writer.add_add_eos_token, writer.add_add_sep_token]:
        add(True)
    file.tensor("token_embd.weight", tensors["embeddings.tok_embeddings.weight"])
    file.tensor("token_embd_norm.weight", tensors["embeddings.norm.weight"])
    file.tensor("output_norm.weight", tensors["final_norm.weight"])
    for layer in range(config.num_hidden_layers):
        names = MODERN_NAMES + ([("attn_norm", "attn_norm")] if layer else [])
        for theirs, ours in names:
            file.tensor(f"blk.{layer}.{ours}.weight", tensors[f"layers.{layer}.{theirs}.weight"])
    if "classifier.weight" in tensors:
        for theirs, ours in [("head.dense", "cls"), ("head.norm", "cls.norm"), ("classifier", "cls.output")]:
            file.tensor(f"{ours}.weight", tensors[f"{theirs}.weight"])
        file.tensor("cls.output.bias", tensors["classifier.bias"])
    file.close()
    return file.path


def compare(path, cases):
    """Compares the vectors of llama.cpp."""
    engine, far = server(path), 0.0
    for case in cases:
        if "[SEP]" in case["text"]:
            continue
        vector = np.array(engine.handle_embeddings({"input": case["text"]})["data"][0]["embedding"])
        far = max(far, np.abs(vector / np.linalg.norm(vector) - np.array(case["vector"])).max())
    print(f"{path.name}: llama.cpp differs by at most {far:.1e}")
    assert far < FAR, path


def compare_scores(path, cases, score):
    """Compares the scores of llama.cpp."""
    engine = server(path, pooling_type=xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK)
    far = 0.0
    for case in cases:
        if not case["document"]:
            continue
        reply = engine.handle_rerank({"query": case["query"], "documents": [case["document"]]})
        far = max(far, abs(reply["results"][0]["relevance_score"] - score(case["score"])))
    print(f"{path.name}: llama.cpp differs by at most {far:.1e}")
    assert far < FAR, path


def make_modern():
    name, tokenizer = "modern-bert", modern_tokenizer()
    torch.manual_seed(11)
    model = ModernBertModel(modern_config(len(tokenizer))).eval()
    folder = save(name, model, tokenizer)
    # The form of published checkpoints, which both versions of `transformers` read. The other models have that of version 5.
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"], config["layer_types"]
    config.update(global_rope_theta=160000.0, local_rope_theta=10000.0, global_attn_every_n_layers=3)
    write(folder / "config.json", config)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    write(
        folder / "modules.json",
        [{"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"} for index, (kind, path) in enumerate(kinds)],
    )
    pooling = {f"pooling_mode_{mode}": mode == "cls_token" for mode in MODES}
    write(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, **pooling, "include_prompt": True})
    encoder = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float64}).to(torch.float64)
    vectors = encoder.encode(TEXTS, batch_size=1, normalize_embeddings=True, convert_to_numpy=True)
    cases = [{"text": text, "prompt": None, "vector": vector.tolist()} for text, vector in zip(TEXTS, vectors)]
    lines(name, cases)
    compare(modern_file(name, model, tokenizer, 2), cases)


def make_rerank_modern():
    name, tokenizer = "rerank-modern-bert", modern_tokenizer()
    torch.manual_seed(12)
    model = ModernBertForSequenceClassification(modern_config(len(tokenizer), num_labels=1, classifier_pooling="mean")).eval()
    folder = save(name, model, tokenizer)
    encoder = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float64})
    scores = encoder.predict(PAIRS, batch_size=1, activation_fn=IDENTITY, convert_to_numpy=True)
    cases = [{"query": query, "document": document, "score": float(score)} for (query, document), score in zip(PAIRS, scores)]
    lines(name, cases)
    path = modern_file(name, model, tokenizer, 4)
    # llama.cpp puts two separators between the texts, where the models have one.
    doubled = tokenizer.sep_token_id
    wide = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    others = []
    for case in cases:
        first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (case["query"], case["document"]))
        tokens = [tokenizer.cls_token_id, *first, doubled, doubled, *second, doubled]
        with torch.no_grad():
            score = wide(input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long)).logits[0, 0]
        others.append({**case, "score": float(score)})
    compare_scores(path, others, lambda score: score)


QWEN_NAMES = [
    ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"), ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
]


def qwen_config(size, **more):
    return Qwen3Config(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, max_position_embeddings=1024, tie_word_embeddings=True, pad_token_id=256 + len(QWEN_MERGES), **more,
    )


def qwen_file(name, model, tokenizer, yes, no):
    config = model.config
    tensors = {key.removeprefix("model."): value for key, value in model.state_dict().items()}
    file = File(name, "qwen3", config, config.num_hidden_layers)
    for key, value in [
        ("attention.head_count_kv", config.num_key_value_heads), ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim), ("attention.layer_norm_rms_epsilon", float(config.rms_norm_eps)),
        ("rope.freq_base", float(config.rope_parameters["rope_theta"])), ("pooling_type", 4),
    ]:
        file.number(key, value)
    writer = file.writer
    writer.add_classifier_output_labels(["yes", "no"])
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    add_bpe(writer, tokenizer, "qwen2", QWEN_MERGES, special, ["<think>", "</think>"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    text = f"{PREFIX}<Instruct>: {TASK}\n<Query>: {{query}}\n<Document>: {{document}}{SUFFIX}"
    writer.add_chat_template([{"name": "rerank", "template": text}])
    embedding = tensors["embed_tokens.weight"]
    file.tensor("token_embd.weight", embedding)
    file.tensor("output_norm.weight", tensors["norm.weight"])
    file.tensor("cls.output.weight", torch.stack([embedding[yes], embedding[no]]))
    for layer in range(config.num_hidden_layers):
        for theirs, ours in QWEN_NAMES:
            file.tensor(f"blk.{layer}.{ours}.weight", tensors[f"layers.{layer}.{theirs}.weight"])
    file.close()
    return file.path


def make_rerank_qwen3():
    name, tokenizer = "rerank-qwen3", qwen_tokenizer()
    torch.manual_seed(13)
    model = Qwen3ForCausalLM(qwen_config(len(tokenizer))).eval()
    folder = save(name, model, tokenizer)
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    write(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"idx": 1, "name": "1", "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"},
        ],
    )
    write(folder / "1_LogitScore/config.json", {"true_token_id": yes, "false_token_id": no})
    flat = {"method": "forward", "method_output_name": "logits"}
    write(
        folder / "sentence_bert_config.json",
        {
            "transformer_task": "text-generation", "modality_config": {"text": flat, "message": {**flat, "format": "flat"}},
            "module_output_name": "causal_logits",
        },
    )
    write(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None, "activation_fn": "torch.nn.modules.activation.Sigmoid"})
    ranker = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float64})
    wide = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def published(query, document, task):
        """The difference of the two logits, by the code in the model's description."""
        ids = lambda text: tokenizer.encode(text, add_special_tokens=False)
        pair = f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"
        tokens = ids(PREFIX) + ids(pair) + ids(SUFFIX)
        with torch.no_grad():
            logits = wide(input_ids=torch.tensor([tokens])).logits[0, -1]
        return float(logits[yes] - logits[no])

    cases = []
    for task in [None, OTHER_TASK]:
        scores = ranker.predict(PAIRS, batch_size=1, activation_fn=IDENTITY, convert_to_numpy=True, **({"prompt": task} if task else {}))
        for (query, document), score in zip(PAIRS, scores):
            expected = published(query, document, task or TASK)
            # `predict` returns numbers of 32 bits.
            assert abs(expected - float(score)) < 1e-6, (query, document, task)
            cases.append({"query": query, "document": document, "instruction": task, "score": expected})
    lines(name, cases)
    sigmoid = lambda score: 1 / (1 + np.exp(-score))
    compare_scores(qwen_file(name, model, tokenizer, yes, no), [case for case in cases if not case["instruction"]], sigmoid)


def make_rerank_qwen3_score():
    name, tokenizer = "rerank-qwen3-score", qwen_tokenizer()
    torch.manual_seed(14)
    model = Qwen3ForSequenceClassification(qwen_config(len(tokenizer), num_labels=1)).eval()
    folder = save(name, model, tokenizer)
    wide = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    cases = []
    for query, document in PAIRS:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        assert text == f"{PREFIX}<Instruct>: {TASK}\n<Query>: {query}\n<Document>: {document}{SUFFIX}", text
        tokens = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            score = wide(**{key: tokens[key] for key in ["input_ids", "attention_mask"]}).logits[0, 0]
        cases.append({"query": query, "document": document, "instruction": None, "score": float(score)})
    lines(name, cases)


def make_classes():
    name, tokenizer = "classes-bert", word_piece()
    # Version 5 has types of tokens only for tokenizers that state it.
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    torch.manual_seed(15)
    labels = {0: "contradiction", 1: "entailment", 2: "neutral"}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=192, id2label=labels, label2id={it: key for key, it in labels.items()}, **WIDTHS)
    folder = save(name, BertForSequenceClassification(config).eval(), tokenizer)
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**stated, "model_input_names": tokenizer.model_input_names})
    wide = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    pipeline = transformers.pipeline("text-classification", model=wide, tokenizer=tokenizer, top_k=None, dtype=torch.float64)
    cases = []
    # The tokenizer takes an empty second text for none.
    for text, second in [pair for pair in PAIRS if pair[1]] + [(text, None) for text, _ in PAIRS]:
        of = text if second is None else {"text": text, "text_pair": second}
        with torch.no_grad():
            outputs = wide(**tokenizer(text, second, return_tensors="pt")).logits[0]
        by_label = {it["label"]: it["score"] for it in (lambda it: it[0] if isinstance(it[0], list) else it)(pipeline(of))}
        probabilities = torch.softmax(outputs, 0).tolist()
        assert all(abs(by_label[labels[key]] - value) < 1e-6 for key, value in enumerate(probabilities)), by_label
        cases.append({"text": text, "second": second, "outputs": outputs.tolist(), "probabilities": probabilities})
    lines(name, cases)


def make_types():
    """`bert.gguf` with its matrices in other types, and the vectors of the same numbers."""
    reader = gguf.GGUFReader(HERE / "bert.gguf")
    for kind in [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0]:
        name = f"bert-{kind.name.lower()}"
        tokenizer = word_piece()
        model = BertModel.from_pretrained(HERE / "bert")
        config = model.config
        file = File(name, "bert", config, config.num_hidden_layers)
        file.number("attention.layer_norm_epsilon", float(config.layer_norm_eps))
        file.flag("bert.attention.causal", False)
        file.number("pooling_type", 1)
        add_word_piece(file.writer, tokenizer)
        changed = {}
        for tensor in reader.tensors:
            values = np.array(tensor.data).reshape([int(it) for it in reversed(tensor.shape)])
            if tensor.name.startswith("blk.") and values.ndim == 2 and values.shape[1] % 32 == 0:
                stored = gguf.quants.quantize(values, kind)
                values = gguf.quants.dequantize(stored, kind).astype(np.float32)
                file.writer.add_tensor(tensor.name, stored, raw_dtype=kind)
            else:
                file.writer.add_tensor(tensor.name, values)
            changed[tensor.name] = torch.tensor(values)
        file.close()
        from make import BERT_NAMES

        state = model.state_dict()
        for key in state:
            for theirs, ours in BERT_NAMES:
                parts = key.removeprefix("encoder.layer.").split(".", 1)
                if key.startswith("encoder.layer.") and parts[1] == f"{theirs}.weight":
                    state[key] = changed[f"blk.{parts[0]}.{ours}.weight"]
        encoder = SentenceTransformer(str(HERE / "bert"), device="cpu", model_kwargs={"dtype": torch.float64}).to(torch.float64)
        encoder[0].auto_model.load_state_dict({key: value.to(torch.float64) for key, value in state.items()})
        vectors = encoder.encode(TEXTS, batch_size=1, normalize_embeddings=True, convert_to_numpy=True)
        cases = [{"text": text, "prompt": None, "vector": vector.tolist()} for text, vector in zip(TEXTS, vectors)]
        lines(name, cases)
        compare(file.path, cases)


if __name__ == "__main__":
    make_modern()
    make_rerank_modern()
    make_rerank_qwen3()
    make_rerank_qwen3_score()
    make_classes()
    make_types()
