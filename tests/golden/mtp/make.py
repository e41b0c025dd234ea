#!/usr/bin/env python3
"""Makes tiny checkpoints with a head that predicts one more token (MTP), and the logits of the heads.

    pip install torch transformers==5.24.0 safetensors gguf
    python tests/golden/mtp/make.py

`transformers` drops the tensors of such heads. So the model's part comes from `transformers`, and the head's is
computed here as the paper defines it (DeepSeek-V3, arXiv 2412.19437, section 2.2):

    row i  =  projection · [norm(embedding of token i + 1); norm(state of the model at i)]
    logits =  output matrix · norm(block(row i))

The block is a layer with attention of `transformers`, the state that after the last norm of the model. The state of the
head after its own last norm takes the place of the model's for further tokens. Everything is in float64. For each name
in BASES this writes, next to this script:

    NAME/            the checkpoint of ../families with the head's tensors
    NAME.gguf        the same under llama.cpp's names, if ../families has it
    golden.safetensors
        NAME.tokens  [tokens], of which the last one is the token after the session
        NAME.logits  [tokens - 1, vocab] of the rows of the session
        NAME.more    [MORE] tokens that the head predicts, the likeliest ones
        NAME.chain   [MORE, vocab] the logits that they are chosen from

and `perfect.gguf` and `wrong.gguf`: models that count upwards, whose head predicts every token or always the same one.
"""

import copy
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
FAMILIES = HERE.parent / "families"
BASES = ["qwen3_5", "qwen3_5_moe"]
TOKENS = 33
MORE = 4
VOCAB = 128


def random(shape, generator, scale):
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    return values.to(torch.bfloat16).double()


def make_head(model, generator):
    """The parts of a head for `model`, with random weights."""
    layers = model.model.layers
    block = copy.deepcopy(next(it for it in layers if hasattr(it, "self_attn")))
    hidden = model.config.hidden_size
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            scale = 0.3 if "norm" in name else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(random(parameter.shape, generator, scale))
    norms = {name: copy.deepcopy(model.model.norm) for name in ["embedding", "hidden", "last"]}
    with torch.no_grad():
        for norm in norms.values():
            norm.weight.copy_(random(norm.weight.shape, generator, 0.3))
    return block, norms, random((hidden, 2 * hidden), generator, hidden**-0.5)


def run_head(model, head, tokens, states):
    """The states of the head for `tokens` after `states` of the model, `[rows, hidden]`."""
    block, norms, projection = head
    rows = torch.cat([norms["embedding"](model.model.embed_tokens(tokens)), norms["hidden"](states)], dim=-1)
    x = (rows @ projection.T)[None]
    positions = torch.arange(len(tokens))[None]
    mask = torch.full((len(tokens), len(tokens)), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    rotation = model.model.rotary_emb(x, positions[None].expand(3, 1, -1))
    with torch.no_grad():
        x = block(x, position_embeddings=rotation, attention_mask=mask, position_ids=positions)
        return norms["last"](x)[0]


def head_tensors(head):
    block, norms, projection = head
    tensors = {f"mtp.layers.0.{name}": values for name, values in block.state_dict().items()}
    names = {"embedding": "pre_fc_norm_embedding", "hidden": "pre_fc_norm_hidden", "last": "norm"}
    tensors |= {f"mtp.{names[name]}.weight": norm.weight for name, norm in norms.items()}
    tensors["mtp.fc.weight"] = projection
    return {name: values.detach().to(torch.bfloat16).contiguous() for name, values in tensors.items()}


GGUF_NAMES = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
    "mtp.layers.0.input_layernorm.weight": "attn_norm.weight",
    "mtp.layers.0.post_attention_layernorm.weight": "post_attention_norm.weight",
    "mtp.layers.0.self_attn.q_proj.weight": "attn_q.weight",
    "mtp.layers.0.self_attn.k_proj.weight": "attn_k.weight",
    "mtp.layers.0.self_attn.v_proj.weight": "attn_v.weight",
    "mtp.layers.0.self_attn.o_proj.weight": "attn_output.weight",
    "mtp.layers.0.self_attn.q_norm.weight": "attn_q_norm.weight",
    "mtp.layers.0.self_attn.k_norm.weight": "attn_k_norm.weight",
    "mtp.layers.0.mlp.gate_proj.weight": "ffn_gate.weight",
    "mtp.layers.0.mlp.up_proj.weight": "ffn_up.weight",
    "mtp.layers.0.mlp.down_proj.weight": "ffn_down.weight",
}


def write_gguf(source, path, changed, added):
    """Copies a file with the tensors `changed` by a function, and with a block more of `added` tensors."""
    reader = gguf.GGUFReader(source)
    fields = reader.fields
    architecture = fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    blocks = fields[f"{architecture}.block_count"].contents()
    for name, field in fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        sub_type = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        if name == f"{architecture}.block_count":
            value = blocks + 1
        writer.add_key_value(name, value, kind, sub_type)
    writer.add_uint32(f"{architecture}.nextn_predict_layers", 1)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist())))
        add(writer, tensor.name, changed(tensor.name, values), tensor.tensor_type)
    for name, values in added.items():
        kind = gguf.GGMLQuantizationType.BF16 if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        add(writer, f"blk.{blocks}.{name}", values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer, name, values, kind):
    stored = gguf.quantize(np.ascontiguousarray(values, dtype=np.float32), kind)
    writer.add_tensor(name, stored, raw_dtype=kind)


def head_for_gguf(tensors):
    """The head's tensors under llama.cpp's names. Files of GGUF have the 1 of norms added."""
    found = {}
    for name, values in tensors.items():
        values = values.float().numpy()
        found[GGUF_NAMES[name]] = values + 1.0 if "norm" in name else values
    return found


def make_base(name, golden):
    generator = torch.Generator().manual_seed(45)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(FAMILIES / name, folder)
    eager = dict(attn_implementation="eager", experts_implementation="eager")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **eager).eval()
    head = make_head(model, generator)
    tensors = head_tensors(head)
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path, {"format": "pt"})
    path.chmod(0o644)
    config = json.loads((folder / "config.json").read_text())
    config["mtp_num_hidden_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    tokens = torch.randint(3, VOCAB, (TOKENS,), generator=generator)
    with torch.no_grad():
        states = model.model(tokens[None, :-1]).last_hidden_state[0]
    of_head = run_head(model, head, tokens[1:], states)
    logits = of_head @ model.lm_head.weight.T
    chain, more, known, given = [], [], tokens[1:], states
    for _ in range(MORE):
        latest = run_head(model, head, known, given)[-1]
        chain.append(model.lm_head.weight @ latest)
        more.append(int(chain[-1].argmax()))
        known = torch.cat([known, torch.tensor(more[-1:])])
        given = torch.cat([given, latest[None]])
    golden |= {
        f"{name}.tokens": tokens.int(),
        f"{name}.logits": logits.detach().float().contiguous(),
        f"{name}.more": torch.tensor(more).int(),
        f"{name}.chain": torch.stack(chain).detach().float(),
    }
    source = FAMILIES / f"{name}.gguf"
    if name == "qwen3_5" and source.exists():
        write_gguf(source, HERE / f"{name}.gguf", lambda _, values: values, head_for_gguf(tensors))
    return tensors


def make_counting(tensors):
    """Models whose blocks add nothing, so that their output matrix alone chooses the next token: the next number."""
    generator = torch.Generator().manual_seed(46)
    embedding = torch.randn((VOCAB, 32), generator=generator)
    embedding = (embedding / embedding.norm(dim=-1, keepdim=True)).numpy()
    adds = ("attn_output.weight", "ssm_out.weight", "ffn_down.weight")

    def counting(name, values):
        if name == "token_embd.weight":
            return embedding
        if name == "output.weight":
            return np.roll(embedding, 1, axis=0)
        if name == "output_norm.weight":
            return np.ones_like(values)
        return np.zeros_like(values) if name.endswith(adds) else values

    for name, projection in [("perfect", np.eye(32, 64)), ("wrong", np.zeros((32, 64)))]:
        head = head_for_gguf(tensors)
        head = {name: np.zeros_like(values) if name.endswith(adds) else values for name, values in head.items()}
        head = {name: np.ones_like(values) if "nextn" in name else values for name, values in head.items()}
        head["nextn.eh_proj.weight"] = projection
        write_gguf(FAMILIES / "qwen3_5.gguf", HERE / f"{name}.gguf", counting, head)


def main():
    golden = {}
    tensors = [make_base(name, golden) for name in BASES]
    make_counting(tensors[0])
    save_file(golden, HERE / "golden.safetensors")
    (HERE / "golden.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
