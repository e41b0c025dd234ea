#!/usr/bin/env python3
"""Makes tiny random checkpoints of models that read pictures, and what `transformers` computes with them.

    pip install torch transformers==4.57.6 safetensors gguf
    python tests/golden/pictures/make.py [NAME ...]

and again with transformers 5.24.0 for smolvlm and idefics3, whose positions version 4.57 moves by one, and for Gemma 4.

For each name in CASES this writes, next to this script:

    NAME/                 the checkpoint as `transformers` saves it
    NAME-mmproj.gguf      its encoder under llama.cpp's names, for the families that llama.cpp has
    golden.safetensors    of every case:
        NAME.pixels.V     view V, [3, height, width]
        NAME.rows         the rows of all views, [rows, hidden]; with deepstack, the rows for each layer follow in columns
        NAME.tokens       a prompt; -1 - V stands for the rows of view V, one token for each row
        NAME.logits       [tokens, vocab] of that prompt

Everything is computed in float64 (norms, softmax and RoPE stay in float32), before it is stored in float32. Weights are
random, so nothing here is anyone's model.
"""

import json
import math
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "reference"))

from doubled import in_float64

VOCAB = 128
IMAGE = 100
START = 101
TEXT = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
VISION = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2)
GEMMA4_TEXT = TEXT | dict(
    model_type="gemma4_text", head_dim=16, global_head_dim=24, sliding_window=8,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"], num_hidden_layers=4,
)
GEMMA4 = VISION | dict(
    model_type="gemma4_vision", num_key_value_heads=2, head_dim=12, patch_size=4, pooling_kernel_size=3,
    position_embedding_size=64,
)
QWEN = dict(depth=3, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2)


@dataclass
class Case:
    """A checkpoint and its views."""

    model_type: str
    text: dict
    vision: dict
    # Height and width of each view.
    views: list
    # Patches per side that become one row.
    merge: int = 1
    others: dict = field(default_factory=dict)
    # llama.cpp's name of the projector.
    projector: str | None = None


CASES = {
    "smolvlm": Case(
        "smolvlm", TEXT | dict(model_type="llama", rms_norm_eps=1e-5), VISION | dict(image_size=48, patch_size=8),
        views=[(48, 48), (48, 48)], merge=2, others=dict(scale_factor=2), projector="idefics3",
    ),
    "idefics3": Case(
        "idefics3", TEXT | dict(model_type="llama", rms_norm_eps=1e-5),
        VISION | dict(image_size=4 * 26, patch_size=4, num_hidden_layers=1), views=[(104, 104)], merge=2,
        others=dict(scale_factor=2),
    ),
    "gemma3": Case(
        "gemma3", TEXT | dict(
            model_type="gemma3_text", head_dim=16, sliding_window=8, query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        VISION | dict(model_type="siglip_vision_model", image_size=48, patch_size=4, vision_use_head=False),
        views=[(48, 48), (48, 48)], merge=3, others=dict(mm_tokens_per_image=16, tie_word_embeddings=True), projector="gemma3",
    ),
    # As the larger models: rows read each other in blocks with a window, and are standardized.
    "gemma4": Case(
        "gemma4", GEMMA4_TEXT | dict(hidden_size_per_layer_input=0, use_bidirectional_attention="vision"),
        GEMMA4 | dict(standardize=True), views=[(36, 48), (24, 36)], merge=3, others=dict(tie_word_embeddings=True),
        projector="gemma4v",
    ),
    # As the smaller models: the text model has an input by token in each block, linear layers of the encoder have bounds, and
    # there is an encoder of sound.
    "gemma4-inputs": Case(
        "gemma4", GEMMA4_TEXT | dict(hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=1),
        GEMMA4 | dict(use_clipped_linears=True), views=[(36, 48), (24, 36)], merge=3,
        others=dict(
            tie_word_embeddings=True,
            audio_config=dict(
                hidden_size=8, num_hidden_layers=1, num_attention_heads=2, subsampling_conv_channels=[4, 2],
                output_proj_dims=8, conv_kernel_size=3,
            ),
        ),
        projector="gemma4v",
    ),
    "llava": Case(
        "llava", TEXT | dict(model_type="llama"),
        VISION | dict(model_type="clip_vision_model", image_size=24, patch_size=4, projection_dim=16, num_hidden_layers=3),
        views=[(24, 24)], projector="mlp",
    ),
    "qwen2_vl": Case(
        "qwen2_vl", TEXT | dict(rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1])),
        QWEN | dict(embed_dim=24, hidden_size=32, mlp_ratio=2), views=[(24, 40), (16, 16)], merge=2,
        projector="qwen2vl_merger",
    ),
    "qwen2_5_vl": Case(
        "qwen2_5_vl", TEXT | dict(rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1])),
        QWEN | dict(hidden_size=24, intermediate_size=40, out_hidden_size=32, fullatt_block_indexes=[1], window_size=16),
        views=[(24, 40), (16, 16)], merge=2, projector="qwen2.5vl_merger",
    ),
    "qwen3_vl": Case(
        "qwen3_vl", TEXT | dict(
            head_dim=16, num_hidden_layers=4, rope_scaling=dict(rope_type="default", mrope_section=[4, 2, 2]),
        ),
        QWEN | dict(
            depth=4, hidden_size=24, intermediate_size=40, out_hidden_size=32, num_position_embeddings=25,
            deepstack_visual_indexes=[0, 2],
        ),
        views=[(24, 40), (16, 16)], merge=2, projector="qwen3vl_merger",
    ),
    "internvl": Case(
        "internvl", TEXT | dict(model_type="qwen2"),
        VISION | dict(image_size=[24, 24], patch_size=[4, 4], attention_bias=True), views=[(24, 24), (24, 24)], merge=2,
        projector="internvl",
    ),
    "lfm2_vl": Case(
        "lfm2_vl", TEXT | dict(
            model_type="lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], rope_theta=1e6,
            intermediate_size=64, block_multiple_of=16,
        ),
        VISION | dict(model_type="siglip2_vision_model", patch_size=4, num_patches=25, vision_use_head=False),
        views=[(16, 24), (32, 40)], merge=2, others=dict(projector_hidden_size=20, downsample_factor=2, tie_word_embeddings=True), projector="lfm2",
    ),
}


def randomize(model):
    """Weights, exact in bf16, that make every part matter: norms are not 1, biases not 0."""
    generator = torch.Generator().manual_seed(0)
    is_gemma = type(model).__name__.startswith("Gemma")
    has_offset = is_gemma and not type(model).__name__.startswith("Gemma4")
    for name, parameter in sorted(model.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            norm = ("norm" in name or "ln_q" in name or "layrnorm" in name) and name.endswith("weight")
            less_one = has_offset and ("language_model" in name or "soft_emb" in name)
            one = norm and not less_one or "lambda" in name
            values = 0.3 * values + (1.0 if one else 0.0)
            if is_gemma and not has_offset and ("q_norm" in name or "k_norm" in name):
                # The scores of Gemma 4 have no other factor.
                values *= parameter.shape[0] ** -0.25
        elif "embed_tokens" in name:
            values *= 1.0 / math.sqrt(parameter.shape[1]) if is_gemma else 1.0
        elif "position" in name or "pos_embed" in name or "cls_token" in name:
            values *= 0.5
        else:
            inputs = parameter[0].numel() if "mm_input_projection" not in name else parameter.shape[0]
            gain = 1.5 if any(part in name for part in ("q_proj", "k_proj", "qkv")) else 1.0
            values *= gain / math.sqrt(inputs)
        parameter.data.copy_(values.to(torch.bfloat16))
    for name, buffer in sorted(model.named_buffers()):
        # Those of Gemma 4: query and key have the same bounds of their input in some blocks, in others they have not.
        if "vision_tower" in name and name.split(".")[-1] in BUFFERS:
            end = name.split(".")[-1]
            low, high = BUFFERS[end]
            apart = 0.25 if ".layers.1." in name and "k_proj" in name else 0.0
            buffer.copy_((low + (high - low) * torch.rand(buffer.shape, generator=generator) + apart).to(torch.bfloat16))
        elif name.endswith("layer_scalar"):
            buffer.fill_(0.75)


# The ranges of buffers. Bounds cut some values off in each layer.
BUFFERS = {
    "std_bias": (-0.5, 0.5), "std_scale": (0.5, 1.5), "input_min": (-1.25, -1.25), "input_max": (1.5, 1.5),
    "output_min": (-2.0, -1.0), "output_max": (1.0, 2.0),
}


def build(case):
    outside = dict(image_token_id=IMAGE, image_token_index=IMAGE, video_token_id=VOCAB - 1, tie_word_embeddings=False)
    outside |= dict(vision_start_token_id=START, vision_end_token_id=START + 1) if "qwen" in case.model_type else {}
    outside |= case.others
    text, vision = json.loads(json.dumps(case.text)), json.loads(json.dumps(case.vision))
    config = AutoConfig.for_model(case.model_type, text_config=text, vision_config=vision, **outside)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomize(model)
    return model.eval()


def pixels(case):
    generator = torch.Generator().manual_seed(2)
    # Gemma 4 reads numbers from 0 to 1.
    low = 0 if case.model_type == "gemma4" else -1
    smooth = [torch.rand(3, h // 4 + 1, w // 4 + 1, generator=generator) * (1 - low) + low for h, w in case.views]
    return [
        torch.nn.functional.interpolate(small[None], size=size, mode="bilinear")[0] for small, size in zip(smooth, case.views)
    ]


def patches(case, view):
    """Qwen's order: cells of merge × merge patches, each patch [3, 2, side, side] with the picture twice."""
    side, merge = case.vision["patch_size"], case.merge
    channels, height, width = view.shape
    high, wide = height // side, width // side
    cut = view.reshape(channels, high // merge, merge, side, wide // merge, merge, side)
    cut = cut.permute(1, 4, 2, 5, 0, 3, 6)
    cut = cut.reshape(high * wide, channels, 1, side, side).expand(-1, -1, 2, -1, -1)
    return cut.reshape(high * wide, -1), (1, high, wide)


def padded_patches(case, view, most):
    """LFM2-VL's order: rows of patches, each patch [side, side, 3]."""
    side = case.vision["patch_size"]
    channels, height, width = view.shape
    high, wide = height // side, width // side
    cut = view.reshape(channels, high, side, wide, side).permute(1, 3, 2, 4, 0).reshape(high * wide, -1)
    mask = torch.arange(most) < high * wide
    return torch.nn.functional.pad(cut, (0, 0, 0, most - high * wide)), mask.long(), (high, wide)


def inputs(case, views):
    if case.model_type == "gemma4":
        most = max(view.shape[1] * view.shape[2] // case.vision["patch_size"] ** 2 for view in views)
        cut = [padded_patches(case, view, most) for view in views]
        places = []
        for _, _, (high, wide) in cut:
            of_view = torch.tensor([[x, y] for y in range(high) for x in range(wide)])
            places.append(torch.nn.functional.pad(of_view, (0, 0, 0, most - high * wide), value=-1))
        return dict(
            pixel_values=torch.stack([one for one, _, _ in cut]).double(), image_position_ids=torch.stack(places),
        )
    if case.model_type == "lfm2_vl":
        most = max(view.shape[1] * view.shape[2] // case.vision["patch_size"] ** 2 for view in views)
        cut = [padded_patches(case, view, most) for view in views]
        return dict(
            pixel_values=torch.stack([one for one, _, _ in cut]).double(),
            pixel_attention_mask=torch.stack([mask for _, mask, _ in cut]),
            spatial_shapes=torch.tensor([shape for _, _, shape in cut]),
        )
    if case.model_type.startswith("qwen"):
        cut = [patches(case, view) for view in views]
        return dict(
            pixel_values=torch.cat([one for one, _ in cut]).double(),
            image_grid_thw=torch.tensor([grid for _, grid in cut]),
        )
    stacked = torch.stack(views).double()
    return dict(pixel_values=stacked[None] if case.model_type in ("smolvlm", "idefics3") else stacked)


def rows_of(case, size):
    side = case.vision["patch_size"]
    side = side[0] if isinstance(side, list) else side
    return (size[0] // side // case.merge) * (size[1] // side // case.merge)


def prompt(case):
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(3, IMAGE, (64,), generator=generator).tolist()
    ids, at = text[:5], 5
    # Qwen finds pictures by the token before them.
    [before, after] = [[START], [START + 1]] if case.model_type.startswith("qwen") else [[], []]
    for index, size in enumerate(case.views):
        ids += before + [-1 - index] * rows_of(case, size) + after + text[at : at + 4]
        at += 4
    return ids + text[at : at + 6]


@torch.no_grad()
def compute(case, model):
    views, ids = pixels(case), prompt(case)
    model = in_float64(model)
    given = inputs(case, views)
    seen = []
    language = model.model.language_model if hasattr(model.model, "language_model") else model.model.text_model
    hook = language.register_forward_pre_hook(lambda _module, _args, named: seen.append(named), with_kwargs=True)
    tokens = torch.tensor([[IMAGE if token < 0 else token for token in ids]])
    extra = {}
    if case.model_type == "gemma3":
        extra["token_type_ids"] = (tokens == IMAGE).long()
    if case.model_type == "gemma4":
        extra["mm_token_type_ids"] = (tokens == IMAGE).long()
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **given, **extra).logits[0]
    hook.remove()
    places = torch.tensor(ids) < 0
    rows = seen[0]["inputs_embeds"][0][places]
    deep = seen[0].get("deepstack_visual_embeds") or []
    rows = torch.cat([rows, *deep], dim=1)
    return views, rows, ids, logits


BLOCK_NAMES = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "norm1": "ln1", "norm2": "ln2", "layernorm_before": "ln1",
    "layernorm_after": "ln2", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "attention.q_proj": "attn_q", "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v", "attention.projection_layer": "attn_out", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down", "lambda_1": "ls1.weight",
    "lambda_2": "ls2.weight",
}
GEMMA4_NAMES = {
    "input_layernorm": "ln1", "pre_feedforward_layernorm": "ln2", "post_attention_layernorm": "attn_post_norm",
    "post_feedforward_layernorm": "ffn_post_norm", "self_attn.o_proj": "attn_out", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
NAMES = {
    "embeddings.patch_embedding": "v.patch_embd", "embeddings.position_embedding": "v.position_embd",
    "embeddings.class_embedding": "v.class_embd", "pre_layrnorm": "v.pre_ln", "post_layernorm": "v.post_ln",
    "patch_embed.proj": "v.patch_embd", "pos_embed": "v.position_embd", "merger.ln_q": "v.post_ln",
    "merger.norm": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2", "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2", "modality_projection.proj": "mm.model.fc", "mm_soft_emb_norm": "mm.soft_emb_norm",
    "mm_input_projection_weight": "mm.input_projection.weight", "embeddings.cls_token": "v.class_embd",
    "patch_embedder.input_proj": "v.patch_embd", "patch_embedder.position_embedding_table": "v.position_embd.weight",
    "std_bias": "v.std_bias", "std_scale": "v.std_scale", "embedding_projection": "mm.input_projection",
    "embeddings.position_embeddings": "v.position_embd.weight", "embeddings.patch_embeddings.projection": "v.patch_embd",
}
PROJECTORS = {
    "mlp": {"linear_1": "mm.0", "linear_2": "mm.2"},
    "internvl": {"layer_norm": "mm.model.mlp.0", "linear_1": "mm.model.mlp.1", "linear_2": "mm.model.mlp.3"},
    "lfm2": {"layer_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"},
}


def renamed(case, name):
    """llama.cpp's name of a tensor of the encoder; None if the file does not have it."""
    parts = ("vision_model.", "vision_tower.", "visual.", "connector.", "multi_modal_projector.", "embed_vision.")
    if not any(part in name for part in parts):
        return None
    for part in ("model.", *parts, "vision_model."):
        name = name.split(part, 1)[1] if name.startswith(part) else name
    ends = ("weight", "bias", "input_min", "input_max", "output_min", "output_max")
    stem, end = (name, "") if name.split(".")[-1] not in ends else name.rsplit(".", 1)
    end = f".{end}" if end else ""
    for prefix in ("encoder.layers.", "encoder.layer.", "blocks."):
        if stem.startswith(prefix):
            number, layer = stem[len(prefix) :].split(".", 1)
            names = BLOCK_NAMES | (GEMMA4_NAMES if case.model_type == "gemma4" else {})
            return f"v.blk.{number}.{names[layer.removesuffix('.linear')]}{end}"
    if stem.startswith("deepstack_merger_list."):
        number, layer = stem.split(".")[1:]
        block = case.vision["deepstack_visual_indexes"][int(number)]
        return f"v.deepstack.{block}.{layer.removeprefix('linear_')}{end}"
    found = PROJECTORS.get(case.projector, {}).get(stem) or NAMES[stem]
    return "v.class_embd" if found == "v.class_embd" else found + end


def write_mmproj(path, case, model):
    """The encoder as llama.cpp's converter writes it, with all weights in float32 so that no rounding is in the way."""
    config = model.config.vision_config
    one = lambda value: value[0] if isinstance(value, (list, tuple)) else value
    hidden = getattr(config, "embed_dim", None) or config.hidden_size
    blocks = getattr(config, "num_hidden_layers", None) or config.depth
    inner = getattr(config, "intermediate_size", None) or hidden * config.mlp_ratio
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    has_sound = getattr(model.config, "audio_config", None) is not None
    writer.add_string("clip.vision.projector_type" if has_sound else "clip.projector_type", case.projector)
    if has_sound:
        writer.add_bool("clip.has_audio_encoder", True)
        writer.add_string("clip.audio.projector_type", "gemma4a")
        writer.add_tensor("mm.a.input_projection.weight", np.zeros((4, 4), np.float32))
        writer.add_tensor("a.blk.0.ln1.weight", np.zeros(4, np.float32))
    side = one(getattr(config, "image_size", 0)) or case.views[0][0]
    blocks = blocks - 1 if case.projector == "mlp" else blocks
    fields = dict(
        image_size=side, patch_size=one(config.patch_size), embedding_length=hidden, feed_forward_length=inner,
        block_count=blocks, projection_dim=32,
    )
    for key, value in fields.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    heads = getattr(config, "num_attention_heads", None) or config.num_heads
    writer.add_uint32("clip.vision.attention.head_count", heads)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", getattr(config, "layer_norm_eps", 1e-6))
    is_gemma4 = case.projector == "gemma4v"
    writer.add_array("clip.vision.image_mean", [0.0 if is_gemma4 else 0.5] * 3)
    writer.add_array("clip.vision.image_std", [1.0 if is_gemma4 else 0.5] * 3)
    if not is_gemma4:
        writer.add_bool("clip.use_gelu", config.hidden_act.startswith("gelu"))
        writer.add_bool("clip.use_silu", config.hidden_act == "silu")
    if case.projector in ("idefics3", "internvl", "gemma3", "lfm2"):
        writer.add_uint32("clip.vision.projector.scale_factor", case.merge)
    if case.projector.startswith("qwen"):
        writer.add_uint32("clip.vision.spatial_merge_size", case.merge)
    if case.projector == "qwen2.5vl_merger":
        writer.add_uint32("clip.vision.n_wa_pattern", 2)
        writer.add_uint32("clip.vision.window_size", config.window_size)
    if case.projector == "qwen3vl_merger":
        deep = config.deepstack_visual_indexes
        writer.add_array("clip.vision.is_deepstack_layers", [block in deep for block in range(blocks)])
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.split(".")[-1] in BUFFERS and "audio" not in name]
    for name, parameter in sorted([*model.named_parameters(), *buffers]):
        target, values = renamed(case, name), parameter.detach().float().numpy()
        if target is None or target.startswith(f"v.blk.{blocks}.") or case.projector == "mlp" and "post_ln" in target:
            continue
        if target == "mm.soft_emb_norm.weight":
            values = values + 1
        if values.ndim == 0:
            values = values.reshape(1)
        if target in ("v.class_embd", "v.position_embd.weight") and not is_gemma4:
            values = values.reshape(-1, values.shape[-1]) if "position" in target else values.reshape(-1)
        if target == "v.patch_embd.weight" and values.ndim == 5:
            writer.add_tensor("v.patch_embd.weight.1", np.ascontiguousarray(values[:, :, 1]))
            values = np.ascontiguousarray(values[:, :, 0])
        if case.projector in ("lfm2", "gemma4v") and target == "v.patch_embd.weight":
            side = config.patch_size
            values = np.ascontiguousarray(values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))
        if "attn_qkv" in target and case.projector != "qwen3vl_merger":
            for part, third in zip("qkv", np.split(values, 3)):
                writer.add_tensor(target.replace("attn_qkv", f"attn_{part}"), np.ascontiguousarray(third))
            continue
        writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    version = int(transformers.__version__.split(".")[0])
    newer = ("smolvlm", "idefics3", "gemma4", "gemma4-inputs")
    names = sys.argv[1:] or [name for name in CASES if (version >= 5) == (name in newer)]
    path = HERE / "golden.safetensors"
    golden = load_file(path) if path.exists() else {}
    for name in names:
        case = CASES[name]
        torch.manual_seed(0)
        model = build(case)
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        model = build(case)
        if case.projector:
            write_mmproj(HERE / f"{name}-mmproj.gguf", case, model)
        views, rows, ids, logits = compute(case, model)
        golden = {key: value for key, value in golden.items() if not key.startswith(f"{name}.")}
        for index, view in enumerate(views):
            golden[f"{name}.pixels.{index}"] = view.numpy()
        golden[f"{name}.rows"] = rows.float().numpy()
        golden[f"{name}.tokens"] = np.array(ids, dtype=np.int32)
        golden[f"{name}.logits"] = logits.float().numpy()
        print(name, "rows", tuple(rows.shape), float(rows.abs().max()), "logits", tuple(logits.shape), float(logits.abs().max()))
        save_file(dict(sorted(golden.items())), path)


if __name__ == "__main__":
    main()
