#!/usr/bin/env python3
"""Makes tiny random encoders and cross-encoders, and the vectors and scores that they must give.

    pip install torch transformers==4.57.6 sentence-transformers==5.1.2 gguf xllamacpp
    python tests/golden/encoders/make.py

For each name in VECTORS and SCORES, and for `nomic`, this writes, next to this script:

    NAME/           the model as `sentence-transformers` reads it
    NAME.gguf       the same weights as llama.cpp's converter names and stores them, where llama.cpp has the model
    NAME.json       for each text the vector of `SentenceTransformer.encode`, or for each pair of texts the score of
                    `CrossEncoder.predict` without an activation, in float64; of `nomic`, which `transformers` lacks, by the
                    definition below

llama.cpp reads each GGUF file, too: the script fails if its vectors are far from these. It rounds, and has the tanh form
of GELU, so that they are not as close as Triad's must be. The weights are random, so nothing here is anyone's model.
"""

import json
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import torch
import xllamacpp
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig, BertForSequenceClassification, BertModel, Gemma3TextConfig, Gemma3TextModel, PreTrainedTokenizerFast,
    XLMRobertaConfig, XLMRobertaForSequenceClassification, XLMRobertaModel,
)

HERE = Path(__file__).resolve().parent
TEXTS = ["A cat sleeps.", "3 + 4 = 7", "Größe: 25 °C, 天气!", "long " * 40 + "end", "x\n  y", "[SEP] <s> q", "ﬁ ① Ａ"]
PAIRS = [("what is a cat", "A cat is an animal."), ("3 + 4", "7"), ("天气", "long " * 30 + "end"), ("x", "")]
WIDTHS = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=2)
MODES = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
# How far llama.cpp's vectors may be.
FAR = 0.02


def word_piece():
    """Words, letters and a few signs, without capital letters."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(d) for d in range(10)]
    signs = list(".,:;!?+=-°[]<>ß天气")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *signs, "long", "cat", "the", "end"]
    pieces += ["##" + letter for letter in letters] + ["##ß", "##ing", "##leep"]
    made = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def fields(message):
    """The fields of a message of protobuf."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        match key & 7:
            case 0:
                yield key >> 3, number()
            case 2:
                size = number()
                yield key >> 3, message[at : at + size]
                at += size
            case 5:
                yield key >> 3, struct.unpack("<f", message[at : at + 4])[0]
                at += 4
            case other:
                raise ValueError(f"wire type {other}")


def unigram():
    """The pieces and the map of characters of a vocabulary of SentencePiece, in the order of XLM-RoBERTa."""
    pieces, charsmap = [], b""
    for number, value in fields((HERE / "../tokenizer/model/unigram-map/tokenizer.model").read_bytes()):
        if number == 1:
            piece = dict(fields(value))
            pieces.append((piece[1].decode(), piece.get(2, 0.0), piece.get(3, 1)))
        if number == 3:
            charsmap = dict(fields(value)).get(2, b"")
    normal = [(text, score) for text, score, kind in pieces if kind == 1]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    return [(text, 0.0) for text in special] + normal + [("<mask>", 0.0)], charsmap


def xlm_roberta_tokenizer():
    pieces, charsmap = unigram()
    made = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    made.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(
        bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", cls_token="<s>", sep_token="</s>",
        mask_token="<mask>",
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **names)


def bytes_tokenizer():
    """Bytes, with a token before and after each text as in EmbeddingGemma."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({**{letter: index for index, letter in enumerate(letters)}, "lo": 256}, [("l", "o")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<bos>", "<eos>"])
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>", special_tokens=[("<bos>", 257), ("<eos>", 258)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>")


def randomize(model):
    for name, parameter in model.named_parameters():
        if "norm" in name.lower() and name.endswith("weight"):
            # Gemma adds 1.
            low = -0.5 if "Gemma" in type(model).__name__ else 0.5
            torch.nn.init.uniform_(parameter, low, low + 1)
        else:
            torch.nn.init.normal_(parameter, std=0.3)


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def dense(folder, name, rows, columns, bias, activation):
    from safetensors.torch import save_file

    write(
        folder / name / "config.json",
        {"in_features": columns, "out_features": rows, "bias": bias, "activation_function": activation},
    )
    tensors = {"linear.weight": torch.randn(rows, columns) * 0.3}
    if bias:
        tensors["linear.bias"] = torch.randn(rows) * 0.3
    save_file(tensors, folder / name / "model.safetensors")
    return tensors


IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
PROMPTS = {"query": "task: search | query: ", "document": "title: none | text: "}
VECTORS = {
    "bert": dict(
        model=lambda size: BertModel(BertConfig(vocab_size=size, max_position_embeddings=192, **WIDTHS)), tokenizer=word_piece,
        mode="mean_tokens", prompts={}, dense=[], limits={"max_seq_length": 128, "do_lower_case": False}, gguf="bert",
    ),
    "bert-dense": dict(
        model=lambda size: BertModel(BertConfig(vocab_size=size, max_position_embeddings=192, hidden_act="gelu_new", **WIDTHS)),
        tokenizer=word_piece, mode="cls_token", prompts={}, dense=[(24, 32, True, TANH)], limits=None, gguf=None,
    ),
    "xlm-roberta": dict(
        model=lambda size: XLMRobertaModel(
            XLMRobertaConfig(vocab_size=size, max_position_embeddings=514, type_vocab_size=1, **WIDTHS), add_pooling_layer=False
        ),
        tokenizer=xlm_roberta_tokenizer, mode="mean_tokens", prompts={"query": "query: ", "passage": "passage: "}, dense=[],
        limits=None, gguf="bert",
    ),
    "gemma": dict(
        model=lambda size: Gemma3TextModel(
            Gemma3TextConfig(
                vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2,
                num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16, max_position_embeddings=512, sliding_window=24,
                use_bidirectional_attention=True,
            )
        ),
        tokenizer=bytes_tokenizer, mode="mean_tokens", prompts=PROMPTS, dense=[(64, 32, False, IDENTITY), (32, 64, False, IDENTITY)],
        limits=None, gguf="gemma-embedding",
    ),
}
SCORES = {
    "rerank-xlm-roberta": dict(
        model=lambda size: XLMRobertaForSequenceClassification(
            XLMRobertaConfig(vocab_size=size, max_position_embeddings=514, type_vocab_size=1, num_labels=1, **WIDTHS)
        ),
        tokenizer=xlm_roberta_tokenizer, gguf="bert",
    ),
    "rerank-bert": dict(
        model=lambda size: BertForSequenceClassification(
            BertConfig(vocab_size=size, max_position_embeddings=192, num_labels=1, **WIDTHS)
        ),
        tokenizer=word_piece, gguf=None,
    ),
}


class File:
    """A GGUF file with the names that llama.cpp's converter gives."""

    def __init__(self, name, architecture, config, layers):
        self.architecture = architecture
        self.writer = gguf.GGUFWriter(HERE / f"{name}.gguf", architecture)
        self.path = HERE / f"{name}.gguf"
        self.number("context_length", config.max_position_embeddings)
        self.number("embedding_length", config.hidden_size)
        self.number("feed_forward_length", config.intermediate_size)
        self.number("block_count", layers)
        self.number("attention.head_count", config.num_attention_heads)

    def number(self, key, value):
        kind = self.writer.add_float32 if isinstance(value, float) else self.writer.add_uint32
        kind(f"{self.architecture}.{key}", value)

    def flag(self, key, value):
        self.writer.add_bool(key, value)

    def tensor(self, name, tensor):
        self.writer.add_tensor(name, tensor.detach().to(torch.float32).numpy())

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


BERT_NAMES = [
    ("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"), ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"), ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"), ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm"),
]


def add_word_piece(writer, tokenizer):
    size = len(tokenizer)
    names = [tokenizer.convert_ids_to_tokens(index) for index in range(size)]
    special = [index < 5 for index in range(size)]
    spell = lambda text: text[2:] if text.startswith("##") else "▁" + text
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text if control else spell(text) for text, control in zip(names, special)])
    writer.add_token_types([3 if control else 1 for control in special])
    for add, index in [
        (writer.add_pad_token_id, 0), (writer.add_unk_token_id, 1), (writer.add_bos_token_id, 2), (writer.add_eos_token_id, 3),
        (writer.add_sep_token_id, 3), (writer.add_mask_token_id, 4),
    ]:
        add(index)
    writer.add_token_type_count(2)


def bert_file(name, model, tokenizer, pooling):
    config, is_roberta = model.config, "Roberta" in type(model).__name__
    tensors = {key.removeprefix("roberta.").removeprefix("bert."): value for key, value in model.state_dict().items()}
    first = config.pad_token_id + 1 if is_roberta else 0
    config.max_position_embeddings -= first
    file = File(name, "bert", config, config.num_hidden_layers)
    config.max_position_embeddings += first
    file.number("attention.layer_norm_epsilon", float(config.layer_norm_eps))
    file.flag("bert.attention.causal", False)
    file.number("pooling_type", pooling)
    writer, size = file.writer, len(tokenizer)
    if is_roberta:
        pieces, charsmap = unigram()
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([text for text, _ in pieces])
        writer.add_token_scores([score for _, score in pieces])
        writer.add_token_types([{"<unk>": 2}.get(text, 3 if index < 4 or index + 1 == size else 1) for index, (text, _) in enumerate(pieces)])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_precompiled_charsmap(charsmap)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(3)
        writer.add_sep_token_id(2)
        writer.add_pad_token_id(1)
        writer.add_mask_token_id(size - 1)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        writer.add_add_sep_token(True)
        writer.add_token_type_count(1)
    else:
        add_word_piece(writer, tokenizer)
    file.tensor("token_embd.weight", tensors["embeddings.word_embeddings.weight"])
    file.tensor("position_embd.weight", tensors["embeddings.position_embeddings.weight"][first:])
    file.tensor("token_types.weight", tensors["embeddings.token_type_embeddings.weight"])
    for part in ["weight", "bias"]:
        file.tensor(f"token_embd_norm.{part}", tensors[f"embeddings.LayerNorm.{part}"])
        for layer in range(config.num_hidden_layers):
            for theirs, ours in BERT_NAMES:
                file.tensor(f"blk.{layer}.{ours}.{part}", tensors[f"encoder.layer.{layer}.{theirs}.{part}"])
        if "classifier.dense.weight" in tensors:
            file.tensor(f"cls.{part}", tensors[f"classifier.dense.{part}"])
            file.tensor(f"cls.output.{part}", tensors[f"classifier.out_proj.{part}"])
    file.close()
    return file.path


GEMMA_NAMES = [
    ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"), ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
]


def gemma_file(name, model, tokenizer, pooling, layers):
    config, tensors = model.config, model.state_dict()
    file = File(name, "gemma-embedding", config, config.num_hidden_layers)
    for key, value in [
        ("attention.head_count_kv", config.num_key_value_heads), ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim), ("attention.layer_norm_rms_epsilon", float(config.rms_norm_eps)),
        ("rope.freq_base", float(config.rope_theta)), ("attention.sliding_window", (config.sliding_window - 1) * 2),
        ("pooling_type", pooling),
    ]:
        file.number(key, value)
    writer, size = file.writer, len(tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.convert_ids_to_tokens(index) for index in range(size)])
    writer.add_token_types([3 if index >= 257 else 1 for index in range(size)])
    writer.add_token_merges(["l o"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    plus = lambda key, tensor: tensor + 1 if "norm" in key else tensor
    file.tensor("token_embd.weight", tensors["embed_tokens.weight"])
    file.tensor("output_norm.weight", plus("norm", tensors["norm.weight"]))
    for layer in range(config.num_hidden_layers):
        for theirs, ours in GEMMA_NAMES:
            key = f"layers.{layer}.{theirs}.weight"
            file.tensor(f"blk.{layer}.{ours}.weight", plus(key, tensors[key]))
    for number, layer in enumerate(layers, 2):
        rows, columns = layer["linear.weight"].shape
        file.number(f"dense_{number}_feat_in", columns)
        file.number(f"dense_{number}_feat_out", rows)
        file.tensor(f"dense_{number}.weight", layer["linear.weight"])
    file.close()
    return file.path


def make_nomic():
    """nomic-embed: BERT's norms, with RoPE, a gate and no biases of linear layers."""
    name, tokenizer, config = "nomic", word_piece(), BertConfig(max_position_embeddings=192, **WIDTHS)
    hidden, width, heads, layers, base = 32, 48, 4, 2, 1000.0
    torch.manual_seed(sum(name.encode()))
    tensors = {"token_embd.weight": (len(tokenizer), hidden), "token_types.weight": (2, hidden)}
    norms = ["token_embd_norm"]
    for layer in range(layers):
        for part, shape in [
            ("attn_qkv", (3 * hidden, hidden)), ("attn_output", (hidden, hidden)), ("ffn_up", (width, hidden)),
            ("ffn_gate", (width, hidden)), ("ffn_down", (hidden, width)),
        ]:
            tensors[f"blk.{layer}.{part}.weight"] = shape
        norms += [f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm"]
    tensors = {key: torch.randn(shape) * 0.3 for key, shape in tensors.items()}
    for norm in norms:
        tensors[f"{norm}.weight"], tensors[f"{norm}.bias"] = torch.rand(hidden) + 0.5, torch.randn(hidden) * 0.3
    file = File(name, "nomic-bert", config, layers)
    file.number("attention.layer_norm_epsilon", 1e-12)
    file.number("rope.freq_base", base)
    file.flag("nomic-bert.attention.causal", False)
    file.number("pooling_type", 1)
    add_word_piece(file.writer, tokenizer)
    for key, tensor in tensors.items():
        file.tensor(key, tensor)
    file.close()
    wide = {key: tensor.to(torch.float64) for key, tensor in tensors.items()}
    norm = lambda x, key: torch.nn.functional.layer_norm(x, (hidden,), wide[f"{key}.weight"], wide[f"{key}.bias"], 1e-12)

    def vector(text):
        tokens = torch.tensor(tokenizer(text)["input_ids"])
        x = norm(wide["token_embd.weight"][tokens] + wide["token_types.weight"][0], "token_embd_norm")
        size = hidden // heads
        angles = torch.arange(len(tokens))[:, None] * base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        cos, sin = angles.cos()[None], angles.sin()[None]
        for layer in range(layers):
            weight = lambda part: wide[f"blk.{layer}.{part}.weight"].T
            q, k, v = (part.view(-1, heads, size).transpose(0, 1) for part in (x @ weight("attn_qkv")).split(hidden, dim=1))
            turn = lambda a: torch.cat(
                [a[..., : size // 2] * cos - a[..., size // 2 :] * sin, a[..., size // 2 :] * cos + a[..., : size // 2] * sin], -1
            )
            scores = torch.softmax(turn(q) @ turn(k).transpose(1, 2) / size**0.5, -1)
            attended = (scores @ v).transpose(0, 1).reshape(-1, hidden) @ weight("attn_output")
            x = norm(x + attended, f"blk.{layer}.attn_output_norm")
            inner = torch.nn.functional.silu(x @ weight("ffn_gate")) * (x @ weight("ffn_up"))
            x = norm(x + inner @ weight("ffn_down"), f"blk.{layer}.layer_output_norm")
        pooled = x.mean(0)
        return (pooled / pooled.norm()).tolist()

    cases = [{"text": text, "prompt": None, "vector": vector(text)} for text in TEXTS]
    (HERE / f"{name}.json").write_text("\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n")
    print(f"{name}: {len(cases)} vectors")
    compare(file.path, cases)


def server(path, **options):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.embedding, params.n_ctx, params.n_batch, params.n_ubatch = True, 512, 512, 512
    params.warmup, params.verbosity, params.n_parallel = False, -1, 1
    params.cpuparams.n_threads = 2
    for name, value in options.items():
        setattr(params, name, value)
    return xllamacpp.Server(params)


def compare(path, cases):
    """Compares the vectors of llama.cpp."""
    engine = server(path)
    far = 0.0
    for case in cases:
        if case["prompt"] or "[SEP]" in case["text"]:
            continue
        reply = engine.handle_embeddings({"input": case["text"]})
        vector = np.array(reply["data"][0]["embedding"])
        far = max(far, np.abs(vector / np.linalg.norm(vector) - np.array(case["vector"])).max())
    print(f"{path.name}: llama.cpp differs by at most {far:.1e}")
    assert far < FAR, path


def make_vectors(name):
    case, folder = VECTORS[name], HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokens = case["tokenizer"]()
    torch.manual_seed(sum(name.encode()))
    model = case["model"](len(tokens)).eval()
    randomize(model)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    if config.get("use_bidirectional_attention"):
        # `transformers` halves it when it reads the file.
        config["sliding_window"] = (config["sliding_window"] - 1) * 2
        write(folder / "config.json", config)
    modules, layers = [("Transformer", ""), ("Pooling", "1_Pooling")], []
    for number, (rows, columns, bias, activation) in enumerate(case["dense"], 2):
        modules.append(("Dense", f"{number}_Dense"))
        layers.append(dense(folder, f"{number}_Dense", rows, columns, bias, activation))
    modules.append(("Normalize", f"{len(modules)}_Normalize"))
    write(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(modules)
        ],
    )
    pooling = {f"pooling_mode_{other}": other == case["mode"] for other in MODES}
    write(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, **pooling, "include_prompt": True})
    write(folder / "config_sentence_transformers.json", {"prompts": case["prompts"], "default_prompt_name": None})
    if case["limits"]:
        write(folder / "sentence_bert_config.json", case["limits"])
    normalize = folder / modules[-1][1]
    normalize.mkdir()
    encoder = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float64}).to(torch.float64)
    cases = []
    for prompt in [None, *case["prompts"]]:
        vectors = encoder.encode(TEXTS, batch_size=1, prompt_name=prompt, normalize_embeddings=True, convert_to_numpy=True)
        for text, vector in zip(TEXTS, vectors):
            cases.append({"text": text, "prompt": prompt, "vector": vector.tolist()})
    normalize.rmdir()
    (HERE / f"{name}.json").write_text("\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n")
    print(f"{name}: {len(cases)} vectors")
    number = {"mean_tokens": 1, "cls_token": 2}[case["mode"]]
    match case["gguf"]:
        case "bert":
            compare(bert_file(name, model, tokens, number), cases)
        case "gemma-embedding":
            compare(gemma_file(name, model, tokens, number, layers), cases)


def make_scores(name):
    case, folder = SCORES[name], HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    tokens = case["tokenizer"]()
    torch.manual_seed(sum(name.encode()))
    model = case["model"](len(tokens)).eval()
    randomize(model)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    encoder = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float64}, max_length=190)
    scores = encoder.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Identity(), convert_to_numpy=True)
    cases = [{"query": query, "document": document, "score": float(score)} for (query, document), score in zip(PAIRS, scores)]
    (HERE / f"{name}.json").write_text("\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n")
    print(f"{name}: {len(cases)} scores")
    if case["gguf"]:
        path = bert_file(name, model, tokens, 4)
        engine = server(path, pooling_type=xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK)
        for query in {case["query"] for case in cases}:
            of_query = [case for case in cases if case["query"] == query and case["document"]]
            if not of_query:
                continue
            reply = engine.handle_rerank({"query": query, "documents": [case["document"] for case in of_query]})
            for result in reply["results"]:
                expected = of_query[result["index"]]["score"]
                assert abs(result["relevance_score"] - expected) < FAR, (query, result, expected)
        print(f"{path.name}: llama.cpp agrees")


if __name__ == "__main__":
    for name in VECTORS:
        make_vectors(name)
    for name in SCORES:
        make_scores(name)
    make_nomic()
