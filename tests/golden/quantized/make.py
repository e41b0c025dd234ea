#!/usr/bin/env python3
"""Makes tiny random checkpoints in every scheme of quantized safetensors, the weights that the scheme's own library
dequantizes from them, and the logits of `transformers` with these weights.

    pip install torch transformers==4.57.6 safetensors compressed-tensors bitsandbytes mlx mlx-cpu
    python tests/golden/quantized/make.py

For each name in CASES this writes, next to this script:

    NAME/                  config.json and model.safetensors
    golden.safetensors     NAME.tokens [tokens], NAME.logits [tokens, vocab] (float64 arithmetic), and for some quantized
                           matrices NAME/MODULE: [out_features, in_features] in the type of the reference

The reference is the library of the scheme where it runs on a CPU: compressed-tensors, bitsandbytes, MLX, and
`Fp8Dequantize` of transformers 5 (its few lines are repeated here, since transformers 4 is loaded). AutoAWQ and
GPTQModel need a GPU to be built: for them the reference is an implementation with torch by the documented layout.

Weights are random, so nothing here is anyone's model.
"""

import json
import shutil
from pathlib import Path

import bitsandbytes.functional as bnb
import mlx.core as mx
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).resolve().parent
VOCAB, TOKENS = 32, 12
SHAPE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
# FP8 in blocks: rows and columns that are no whole blocks.
BLOCK = [24, 20]
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# The matrices whose weights are kept; the logits depend on all of them.
KEPT = ("k_proj", "down_proj", "embed_tokens")


def linears(model):
    return [name for name, _ in model.named_modules() if name.split(".")[-1] in LINEARS]


# --- compressed-tensors ---------------------------------------------------------------------------------------------


def compressed(format, bits=8, type="int", dtype=torch.bfloat16, **weights):
    """A case of compressed-tensors: its own compressor packs the weights, and dequantizes them."""
    args = QuantizationArgs(num_bits=bits, type=type, **weights)
    stated = {"num_bits": bits, "type": type, "symmetric": True, "dynamic": False} | weights
    # Activations that a configuration quantizes too.
    inputs = {"num_bits": 8, "type": type, "symmetric": True, "dynamic": True, "strategy": "token"}

    def quantize(module, weight):
        weight = weight.to(dtype)
        out, columns = weight.shape
        strategy, size = weights["strategy"], weights.get("group_size")
        shape = {"tensor": (1, 1, columns * out), "channel": (out, 1, columns)}.get(strategy)
        if strategy == "group":
            shape = (out, columns // size, size)
        if strategy == "block":
            rows, width = weights["block_structure"]
            grid = (-(-out // rows), -(-columns // width))
            scale = torch.rand(grid) * 0.002 + 0.001
            low = torch.zeros(grid)
        else:
            groups = weight.float().reshape(shape)
            low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
            top = {"int": 2 ** (bits - 1) - 1, "float": 448}[type]
            scale = (high - low) / (2**bits - 1) if not weights.get("symmetric", True) else torch.maximum(-low, high) / top
        scale = scale.to(dtype)
        state = {"weight": weight, "weight_scale": scale.reshape(1) if strategy == "tensor" else scale}
        if not weights.get("symmetric", True):
            zero = torch.round(-(2 ** (bits - 1)) - low / scale.float()).clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            state["weight_zero_point"] = zero.to(torch.int8)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry(format)
        packed = compressor.compress(state, scheme)
        plain = compressor.decompress(dict(packed), scheme)["weight"]
        return {f"{module}.{name}": value for name, value in packed.items()}, plain

    config = {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": stated, "output_activations": None,
            "input_activations": inputs if format != "pack-quantized" else None,
        }},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "global_compression_ratio": None,
    }
    return {"quantization_config": config}, quantize, dtype


# --- FP8 ------------------------------------------------------------------------------------------------------------


def fp8(scale_name, scale_dtype=torch.float32, block=None, by_row=False, method="fp8"):
    def quantize(module, weight):
        out, columns = weight.shape
        rows, width = block or ((1 if by_row else out), columns)
        scale = torch.empty(-(-out // rows), -(-columns // width))
        for row in range(scale.shape[0]):
            for column in range(scale.shape[1]):
                part = weight[row * rows : (row + 1) * rows, column * width : (column + 1) * width]
                scale[row, column] = part.abs().max() / 448
        scale = scale.to(scale_dtype)
        spread = scale.float().repeat_interleave(rows, 0)[:out].repeat_interleave(width, 1)[:, :columns]
        codes = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        # As `Fp8Dequantize` of transformers 5: the product in f32, rounded to the type of the model.
        plain = (codes.to(torch.float32) * spread).to(torch.bfloat16)
        stored = scale if block or by_row else scale.reshape(())
        tensors = {f"{module}.weight": codes, f"{module}.{scale_name}": stored}
        if not block:
            tensors[f"{module}.input_scale"] = torch.tensor(0.5)
        return tensors, plain

    config = {"quant_method": method, "modules_to_not_convert": ["lm_head"]}
    if method == "fp8":
        config |= {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block}
    return {"quantization_config": config}, quantize, torch.bfloat16


# --- GPTQ and AWQ, by the documented layouts ------------------------------------------------------------------------


def pack(codes, bits):
    """Packs integers along the last dimension, the first in the lowest bits."""
    per_word = 32 // bits
    words = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, per_word)
    words = (words << (bits * torch.arange(per_word))).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def grouped(weight, bits, size, symmetric):
    """Returns codes [out, in], zero points and scales [out, groups]."""
    out, columns = weight.shape
    groups = weight.reshape(out, -1, size)
    most = 2**bits - 1
    if symmetric:
        scale = groups.abs().amax(-1) * 2 / most
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = (high - low) / most
        zero = torch.round(-low / scale).clamp(1, most)
    scale = scale.to(torch.float16)
    codes = torch.round(groups / scale.float()[..., None] + zero[..., None]).clamp(0, most)
    return codes.reshape(out, columns), zero, scale


def gptq(bits, size=32, symmetric=True, act_order=False, version="gptq"):
    def quantize(module, weight):
        out, columns = weight.shape
        group = columns if size == -1 else size
        order = torch.randperm(columns) if act_order else torch.arange(columns)
        index = torch.empty(columns, dtype=torch.int64)
        index[order] = torch.arange(columns) // group
        codes, zero, scale = grouped(weight[:, order], bits, group, symmetric)
        codes = codes[:, torch.argsort(order)]
        plain = scale[:, index] * (codes - zero[:, index]).to(torch.float16)
        stored = zero - 1 if version == "gptq" else zero
        tensors = {
            f"{module}.qweight": pack(codes, bits).T.contiguous(),
            f"{module}.qzeros": pack(stored.T.contiguous(), bits),
            f"{module}.scales": scale.T.contiguous(),
        }
        if act_order or version == "gptq":
            tensors[f"{module}.g_idx"] = index.to(torch.int32)
        return tensors, plain

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": act_order, "sym": symmetric,
        "checkpoint_format": version, "damp_percent": 0.01, "true_sequential": True, "pack_dtype": "int32",
    }
    return {"quantization_config": config}, quantize, torch.float16


def awq(size=32):
    def quantize(module, weight):
        codes, zero, scale = grouped(weight, 4, size, False)
        index = torch.arange(weight.shape[1]) // size
        plain = (codes - zero[:, index]).to(torch.float16) * scale[:, index]
        # Eight output features in a word, in this order from the lowest bits.
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        words = lambda it: pack(it.T.reshape(it.shape[1], -1, 8)[..., order].reshape(it.shape[1], -1), 4)
        return {
            f"{module}.qweight": words(codes), f"{module}.qzeros": words(zero),
            f"{module}.scales": scale.T.contiguous(),
        }, plain

    config = {
        "quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None,
    }
    return {"quantization_config": config}, quantize, torch.float16


# --- bitsandbytes ---------------------------------------------------------------------------------------------------


def bits_and_bytes(kind, nested=False, dtype=torch.bfloat16):
    def quantize(module, weight):
        weight = weight.to(dtype)
        if kind == "int8":
            codes, scale, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
            plain = bnb.int8_vectorwise_dequant(codes, scale)
            return {
                f"{module}.weight": codes, f"{module}.SCB": scale,
                f"{module}.weight_format": torch.tensor(0, dtype=torch.uint8),
            }, plain
        codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
        plain = bnb.dequantize_4bit(codes, state)
        parts = state.as_dict(packed=True)
        return {f"{module}.weight": codes} | {f"{module}.weight.{name}": part for name, part in parts.items()}, plain

    config = {
        "quant_method": "bitsandbytes", "load_in_4bit": kind != "int8", "load_in_8bit": kind == "int8",
        "llm_int8_threshold": 6.0, "llm_int8_skip_modules": ["lm_head"], "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
    }
    if kind != "int8":
        config |= {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    return {"quantization_config": config}, quantize, dtype


# --- MLX ------------------------------------------------------------------------------------------------------------


def to_mlx(tensor):
    return mx.array(tensor.float().numpy()).astype(mx.bfloat16 if tensor.dtype == torch.bfloat16 else mx.float16)


def from_mlx(array, dtype):
    return torch.from_numpy(np.array(array.astype(mx.float32))).to(dtype)


def mlx(bits, size=32, dtype=torch.float16, new=True, other=None):
    """`other` has other settings for single modules."""
    settings = {"group_size": size, "bits": bits} | ({"mode": "affine"} if new else {})
    other = other or {}

    def quantize(module, weight):
        of_module = other.get(module, settings)
        if of_module is False:
            return {f"{module}.weight": weight.to(dtype)}, None
        size, bits = of_module["group_size"], of_module["bits"]
        codes, scales, biases = mx.quantize(to_mlx(weight.to(dtype)), group_size=size, bits=bits)
        plain = from_mlx(mx.dequantize(codes, scales, biases, group_size=size, bits=bits), dtype)
        words = torch.from_numpy(np.array(codes).view(np.uint32))
        return {
            f"{module}.weight": words, f"{module}.scales": from_mlx(scales, dtype),
            f"{module}.biases": from_mlx(biases, dtype),
        }, plain

    config = {"quantization": settings | other}
    if new:
        config["quantization_config"] = settings | other
    return config, quantize, dtype


CASES = {
    # The kind of model, and the scheme.
    "ct-int8-channel": ("llama", compressed("int-quantized", strategy="channel")),
    "ct-int8-tensor": ("llama", compressed("int-quantized", strategy="tensor")),
    "ct-int8-asymmetric": ("llama", compressed("int-quantized", strategy="channel", symmetric=False)),
    "ct-int4-group": ("llama", compressed("pack-quantized", 4, strategy="group", group_size=32)),
    "ct-int4-zeros": ("llama", compressed("pack-quantized", 4, strategy="group", group_size=32, symmetric=False)),
    "ct-int4-channel": ("llama", compressed("pack-quantized", 4, strategy="channel", dtype=torch.float32)),
    "ct-int8-group": ("llama", compressed("pack-quantized", 8, strategy="group", group_size=32)),
    "ct-fp8-tensor": ("llama", compressed("float-quantized", type="float", strategy="tensor")),
    "ct-fp8-channel": ("qwen3", compressed("float-quantized", type="float", strategy="channel")),
    "ct-fp8-naive": ("llama", compressed("naive-quantized", type="float", strategy="channel", dtype=torch.float16)),
    "ct-fp8-block": ("llama", compressed("float-quantized", type="float", strategy="block", block_structure=BLOCK)),
    "fp8-block": ("qwen3", fp8("weight_scale_inv", block=BLOCK)),
    "fp8-block-bf16": ("llama", fp8("weight_scale_inv", torch.bfloat16, block=BLOCK)),
    "fp8-tensor": ("llama", fp8("weight_scale")),
    "fp8-row": ("llama", fp8("weight_scale", by_row=True, method="fbgemm_fp8")),
    "gptq-4": ("llama", gptq(4)),
    "gptq-4-asymmetric": ("llama", gptq(4, symmetric=False)),
    "gptq-4-act-order": ("llama", gptq(4, act_order=True)),
    "gptq-4-v2": ("llama", gptq(4, symmetric=False, version="gptq_v2")),
    "gptq-4-act-order-v2": ("llama", gptq(4, act_order=True, symmetric=False, version="gptq_v2")),
    "gptq-8": ("llama", gptq(8)),
    "gptq-8-channel": ("llama", gptq(8, size=-1)),
    "awq": ("qwen3", awq()),
    "bnb-nf4": ("llama", bits_and_bytes("nf4")),
    "bnb-nf4-nested": ("qwen3", bits_and_bytes("nf4", nested=True)),
    "bnb-fp4": ("llama", bits_and_bytes("fp4", dtype=torch.float16)),
    "bnb-fp4-nested": ("llama", bits_and_bytes("fp4", nested=True, dtype=torch.float32)),
    "bnb-int8": ("llama", bits_and_bytes("int8")),
    "mlx-4": ("qwen3", mlx(4)),
    "mlx-4-old": ("llama", mlx(4, dtype=torch.bfloat16, new=False)),
    "mlx-8": ("llama", mlx(8, size=32)),
    "mlx-mixed": ("llama", mlx(4, other={
        "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 8}, "model.layers.0.self_attn.k_proj": False,
    })),
}


def make(name, kind, scheme, seed):
    fields, quantize, dtype = scheme
    torch.manual_seed(seed)
    # Only MLX quantizes embeddings.
    of_all = name.startswith("mlx")
    config = AutoConfig.for_model(kind, **SHAPE, tie_word_embeddings=of_all)
    model = AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(1 + torch.randn_like(parameter) * 0.2 if "norm" in key else torch.randn_like(parameter) * 0.15)
    modules = linears(model) + (["model.embed_tokens"] if of_all else [])
    tensors, golden = {}, {}
    for module in modules:
        weight = model.get_submodule(module).weight
        parts, plain = quantize(module, weight.data.clone())
        tensors |= parts
        if plain is None:
            plain = parts[f"{module}.weight"]
        else:
            if module.endswith(KEPT):
                golden[f"{name}/{module}"] = plain.contiguous()
        weight.data = plain.to(torch.float32)
    for key, value in model.state_dict().items():
        if key.removesuffix(".weight") not in modules and not (key == "lm_head.weight" and of_all):
            tensors[key] = value.to(dtype)
            value.copy_(tensors[key].to(torch.float32))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    stated = config.to_dict()
    stated |= fields | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(stated, indent=1, default=str) + "\n")
    tokens = torch.randint(3, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model.to(torch.float64)(tokens[None]).logits[0]
    golden[f"{name}.tokens"] = tokens.to(torch.int32)
    golden[f"{name}.logits"] = logits.to(torch.float32)
    return golden


def main():
    golden = {}
    for seed, (name, (kind, scheme)) in enumerate(CASES.items()):
        print(name)
        golden |= make(name, kind, scheme, seed)
    save_file(golden, HERE / "golden.safetensors")


if __name__ == "__main__":
    main()
