#!/usr/bin/env python3
"""Draws pictures, and writes what Pillow and the processors of `transformers` make of them.

    pip install torch torchvision transformers==5.24.0 pillow num2words
    python tests/golden/pictures/processors.py

Next to this script it writes

- `files/`: the pictures, in all formats, with transparency, palettes, 16 bits, rotations;
- `decoded.json`: for each picture its size as `load_image` returns it, and the SHA-256 of its colors. Of pictures that two
  decoders may read differently there are the means of 64 cells in place of the hash;
- `processors/*/`: the files of each processor, as models publish them;
- `prepared.json`: for each processor and picture the sizes of the views, the SHA-256 of their floats `[3][height][width]`,
  and the text that stands for the picture, with `{n}` for n rows.
"""

import hashlib
import io
import json
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import AutoImageProcessor
from transformers.image_utils import load_image, load_image_as_tensor
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

HERE = Path(__file__).resolve().parent
FILES, PROCESSORS = HERE / "files", HERE / "processors"
HALF, ONE_255 = [0.5, 0.5, 0.5], 0.00392156862745098
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
# Cells of a picture's means.
CELLS = 8


def drawn(width, height, seed=0):
    """A gradient with shapes and words: smooth parts, edges and thin lines."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    colors = np.stack([255 * x, 255 * y, 255 * (1 - x) * y], -1) * 0.6 + 40 * (seed % 5)
    picture = Image.fromarray(np.clip(colors, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    random = np.random.default_rng(seed)
    for index in range(8):
        a, b = np.sort(random.random((2, 2)), axis=0) * [width, height]
        color = tuple(int(c) for c in random.integers(0, 256, 3))
        box = [*a, *b]
        [draw.rectangle, draw.ellipse, draw.line][index % 3](box, **({"fill": color} if index % 3 else {"outline": color}))
    draw.text((width * 0.1, height * 0.4), "Settings 12:30", fill=(255, 255, 255))
    return picture


def alpha(picture):
    """The picture with transparency that rises from left to right."""
    width, height = picture.size
    mask = np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))
    picture.putalpha(Image.fromarray(mask))
    return picture


def encoded(picture, form, **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def png(array, kind, bits=16):
    """A PNG file of `array`, `[height][width][channels]`, in forms that Pillow does not write."""
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    height, width = array.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2" if bits == 16 else np.uint8).tobytes() for row in array)
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def rotated(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def xmp(orientation):
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def pictures():
    """The files, by their names; those with `~` may be decoded differently, for the reason that the test names."""
    sizes = [(1, 1), (1, 2), (2, 1), (3, 3), (5, 4), (7, 64), (64, 7), (28, 28), (31, 33), (64, 64), (99, 101), (120, 80), (80, 120),
             (150, 1), (1, 150), (200, 10), (10, 200), (255, 257), (256, 256), (300, 150), (333, 777), (540, 1200), (640, 480), (1200, 540)]
    for seed, size in enumerate(sizes):
        yield f"{size[0]}x{size[1]}.png", encoded(drawn(*size, seed), "PNG", optimize=True)
    base = drawn(96, 64, 3)
    gray = base.convert("L")
    deep = np.asarray(base).astype(np.uint16) * 251 + 99
    yield "rgba.png", encoded(alpha(base.copy()), "PNG")
    yield "gray.png", encoded(gray, "PNG")
    yield "gray-alpha.png", encoded(alpha(gray.copy()), "PNG")
    yield "palette.png", encoded(base.quantize(40), "PNG")
    yield "palette-4-bits.png", encoded(base.quantize(11), "PNG", bits=4)
    yield "palette-transparent.png", encoded(base.quantize(40), "PNG", transparency=3)
    yield "black-and-white.png", encoded(base.convert("1"), "PNG")
    yield "rgb-transparent.png", encoded(base, "PNG", transparency=base.getpixel((5, 5)))
    yield "gray-16~.png", png(deep[..., :1], 0)
    yield "rgb-16.png", png(deep, 2)
    yield "rgba-16.png", png(np.dstack([deep, deep[..., :1]]), 6)
    yield "gray-alpha-16.png", png(deep[..., :2], 4)
    yield "exif-6.png", encoded(base, "PNG", exif=rotated(6))
    for orientation in range(1, 9):
        yield f"exif-{orientation}~.jpg", encoded(base, "JPEG", quality=92, exif=rotated(orientation))
    yield "xmp-3~.jpg", encoded(base, "JPEG", quality=92, xmp=xmp(3))
    yield "444~.jpg", encoded(base, "JPEG", quality=95, subsampling=0)
    yield "420~.jpg", encoded(base, "JPEG", quality=80, subsampling=2)
    yield "422~.jpg", encoded(base, "JPEG", quality=80, subsampling=1)
    yield "progressive~.jpg", encoded(base, "JPEG", quality=80, progressive=True)
    yield "gray~.jpg", encoded(gray, "JPEG", quality=80)
    yield "cmyk~.jpg", encoded(base.convert("CMYK"), "JPEG", quality=92)
    yield "lossless.webp", encoded(base, "WebP", lossless=True)
    yield "alpha.webp", encoded(alpha(base.copy()), "WebP", lossless=True, exact=True)
    yield "lossy.webp", encoded(base, "WebP", quality=80)
    yield "exif-8.webp", encoded(base, "WebP", lossless=True, exif=rotated(8))
    yield "animated.webp", encoded(base, "WebP", lossless=True, save_all=True, append_images=[drawn(96, 64, 4)], duration=100)
    yield "still.gif", encoded(base.quantize(60), "GIF")
    yield "animated.gif", encoded(base.quantize(60), "GIF", save_all=True, append_images=[drawn(96, 64, 4).quantize(60)], duration=100)
    yield "transparent.gif", encoded(base.quantize(60), "GIF", transparency=2)
    yield "24.bmp", encoded(base, "BMP")
    yield "palette.bmp", encoded(base.quantize(40), "BMP")
    yield "gray.bmp", encoded(gray, "BMP")


CLIP = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}
COMMON = {"do_normalize": True, "do_rescale": True, "do_resize": True, "rescale_factor": ONE_255}
LFM2 = {"do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True, "downsample_factor": 2,
        "encoder_patch_size": 16, "image_mean": HALF, "image_std": HALF, "image_processor_type": "Lfm2VlImageProcessorFast",
        "max_image_tokens": 256, "max_num_patches": 1024, "max_pixels_tolerance": 2.0, "max_tiles": 10, "min_image_tokens": 64, "min_tiles": 2,
        "processor_class": "Lfm2VlProcessor", "resample": 2, "rescale_factor": ONE_255, "return_row_col_info": False, "size": {"height": 512, "width": 512},
        "tile_size": 512, "use_thumbnail": True}
SMOLVLM = {**COMMON, "do_convert_rgb": True, "do_image_splitting": True, "do_pad": True, "image_mean": HALF, "image_processor_type": "Idefics3ImageProcessor",
           "image_std": HALF, "max_image_size": {"longest_edge": 512}, "processor_class": "Idefics3Processor", "resample": 1, "size": {"longest_edge": 2048}}
GEMMA3 = {**COMMON, "do_convert_rgb": None, "do_pan_and_scan": None, "image_mean": HALF, "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 256,
          "image_std": HALF, "pan_and_scan_max_num_crops": None, "pan_and_scan_min_crop_size": None, "pan_and_scan_min_ratio_to_activate": None,
          "processor_class": "Gemma3Processor", "resample": 2, "size": {"height": 896, "width": 896}}
LLAVA = {**COMMON, **CLIP, "crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "do_convert_rgb": True, "image_processor_type": "CLIPImageProcessor",
         "processor_class": "LlavaProcessor", "resample": 3, "size": {"shortest_edge": 336}}
LLAVA_WORDS = {"image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 14, "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default"}
QWEN2 = {**CLIP, "image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 12845056, "merge_size": 2, "min_pixels": 3136, "patch_size": 14,
         "processor_class": "Qwen2_5_VLProcessor", "temporal_patch_size": 2}
QWEN3 = {"image_mean": HALF, "image_std": HALF, "image_processor_type": "Qwen2VLImageProcessorFast", "merge_size": 2, "patch_size": 16, "processor_class": "Qwen3VLProcessor",
         "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "temporal_patch_size": 2}
INTERNVL = {**COMMON, "crop_size": None, "crop_to_patches": False, "data_format": "channels_first", "default_to_square": True, "device": None, "do_center_crop": None,
            "do_convert_rgb": True, "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "GotOcr2ImageProcessorFast", "image_std": [0.229, 0.224, 0.225],
            "input_data_format": None, "max_patches": 12, "min_patches": 1, "processor_class": "InternVLProcessor", "resample": 3, "return_tensors": None,
            "size": {"height": 448, "width": 448}}
GEMMA4 = {"do_convert_rgb": True, "do_normalize": False, "do_rescale": True, "do_resize": True, "image_mean": [0.0, 0.0, 0.0], "image_processor_type": "Gemma4ImageProcessor",
          "image_seq_length": 280, "image_std": [1.0, 1.0, 1.0], "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3, "resample": 3, "rescale_factor": ONE_255}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14}
IDEFICS3 = {**SMOLVLM, "max_image_size": {"longest_edge": 364}, "size": {"longest_edge": 4 * 364}}
LLAVA_SIGLIP = {**COMMON, "image_mean": HALF, "image_processor_type": "SiglipImageProcessor", "image_std": HALF, "processor_class": "LlavaProcessor", "resample": 3,
                "size": {"height": 384, "width": 384}}


def config(model_type, hidden, vision, **more):
    """Returns the sizes that config.json of a published model states."""
    return {"model_type": model_type, **more, "text_config": {"hidden_size": hidden}, "vision_config": vision}


# For each name: config.json, the image processor's file, processor_config.json (with `nested`, the image processor is in it).
MODELS = {
    "smolvlm": (config("idefics3", 576, {"image_size": 512, "hidden_size": 768, "patch_size": 16}, scale_factor=4),
                SMOLVLM, {"image_seq_len": 64, "processor_class": "Idefics3Processor"}),
    # 384 pixels are 27 patches and 6 pixels that no patch has.
    "smolvlm-2.2b": (config("idefics3", 2048, {**SIGLIP, "image_size": 384}, scale_factor=3),
                     {**SMOLVLM, "max_image_size": {"longest_edge": 384}, "size": {"longest_edge": 1536}}, {"image_seq_len": 81, "processor_class": "Idefics3Processor"}),
    "idefics3": (config("idefics3", 4096, {**SIGLIP, "image_size": 364}, scale_factor=2), IDEFICS3, {"image_seq_len": 169, "processor_class": "Idefics3Processor"}),
    "gemma3": (config("gemma3", 2560, {**SIGLIP, "image_size": 896, "model_type": "siglip_vision_model"}, mm_tokens_per_image=256), GEMMA3, {"image_seq_length": 256}),
    "llava": (config("llava", 4096, {"hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model", "num_attention_heads": 16,
                                     "num_hidden_layers": 24, "patch_size": 14}), LLAVA, LLAVA_WORDS),
    "llava-siglip": (config("llava", 1024, {**SIGLIP, "image_size": 384, "model_type": "siglip_vision_model", "num_hidden_layers": 26},
                            vision_feature_layer=-1, vision_feature_select_strategy="full"),
                     LLAVA_SIGLIP, {**LLAVA_WORDS, "num_additional_image_tokens": 0, "vision_feature_select_strategy": "full"}),
    "qwen2-vl": (config("qwen2_vl", 1536, {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2}),
                 QWEN2, None),
    "qwen2.5-vl": (config("qwen2_5_vl", 2048, {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 14,
                                               "spatial_merge_size": 2, "window_size": 112}), QWEN2, None),
    "qwen3-vl": (config("qwen3_vl", 2048, {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
                                           "num_position_embeddings": 2304, "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2}), QWEN3, None),
    "internvl3": (config("internvl", 896, {"hidden_size": 1024, "image_size": [448, 448], "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
                                           "patch_size": [14, 14]}, downsample_ratio=0.5), INTERNVL, {"image_seq_length": 256, "processor_class": "InternVLProcessor"}),
    "lfm2-vl": (config("lfm2_vl", 1024, {"hidden_size": 768, "model_type": "siglip2_vision_model", "num_patches": 256, "patch_size": 16}, downsample_factor=2),
                LFM2, {"processor_class": "Lfm2VlProcessor"}),
    "gemma4": (config("gemma4", 2560, {"head_dim": 64, "hidden_size": 768, "intermediate_size": 3072, "model_type": "gemma4_vision", "num_attention_heads": 12,
                                       "num_hidden_layers": 16, "num_key_value_heads": 12, "patch_size": 16, "pooling_kernel_size": 3,
                                       "position_embedding_size": 10240}), GEMMA4, {"nested": True, "image_seq_length": 280}),
    # The same with smaller sizes, and with other fields.
    "small-smolvlm": ({"model_type": "smolvlm", "scale_factor": 2, "vision_config": {"patch_size": 8}},
                      {**SMOLVLM, "max_image_size": {"longest_edge": 48}, "size": {"longest_edge": 160}, "image_processor_type": "SmolVLMImageProcessor"}, {"nested": True, "image_seq_len": 9}),
    "small-smolvlm-whole": ({"model_type": "smolvlm", "scale_factor": 2, "vision_config": {"patch_size": 8}},
                            {**SMOLVLM, "do_image_splitting": False, "max_image_size": {"longest_edge": 48}, "size": {"longest_edge": 160}}, {"image_seq_len": 9}),
    "small-gemma3": ({"model_type": "gemma3"}, {**GEMMA3, "size": {"height": 56, "width": 64}}, {"image_seq_length": 16}),
    "small-llava": ({"model_type": "llava"}, {**LLAVA, "crop_size": {"height": 60, "width": 50}, "size": {"shortest_edge": 56}}, LLAVA_WORDS),
    "small-llava-pad": ({"model_type": "llava"}, {**LLAVA, "do_center_crop": False, "do_pad": True, "image_processor_type": "LlavaImageProcessor", "size": {"height": 56, "width": 56}},
                        {**LLAVA_WORDS, "vision_feature_select_strategy": "full"}),
    "small-qwen2-vl": ({"model_type": "qwen2_vl"}, {**QWEN2, "max_pixels": 20000, "min_pixels": 3136}, None),
    "small-qwen3-vl": ({"model_type": "qwen3_vl"}, {**QWEN3, "size": {"longest_edge": 40000, "shortest_edge": 4096}}, {"nested": True}),
    "small-internvl3": ({"model_type": "internvl"}, {**INTERNVL, "max_patches": 6, "size": {"height": 56, "width": 56}}, {"image_seq_length": 4}),
    "small-lfm2-vl": ({"model_type": "lfm2_vl"}, {**LFM2, "encoder_patch_size": 8, "max_image_tokens": 16, "min_image_tokens": 4, "tile_size": 64, "max_tiles": 6}, {"nested": True}),
    "small-gemma4": ({"model_type": "gemma4"}, {**GEMMA4, "max_soft_tokens": 70, "patch_size": 4}, None),
}
# Pictures for processors of a model's own sizes.
FEW = ["64x64.png", "333x777.png", "540x1200.png", "1200x540.png"]


def write(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def saved(name):
    """Writes the files of a processor and loads it from them."""
    config, image, processor = MODELS[name]
    folder = PROCESSORS / name
    folder.mkdir(parents=True)
    write(folder / "config.json", config)
    processor = dict(processor or {})
    if processor.pop("nested", False):
        write(folder / "processor_config.json", {**processor, "image_processor": image})
    else:
        write(folder / "preprocessor_config.json", image)
        if processor:
            write(folder / "processor_config.json", processor)
    return config, AutoImageProcessor.from_pretrained(folder), processor


def words(kind, image_processor, attributes, **more):
    """A processor of class `kind` without a tokenizer, which its texts need only for names."""
    processor = object.__new__(kind)
    values = {"image_token": "<image>", "image_processor": image_processor, **attributes, **more}
    for name, value in values.items():
        setattr(processor, name, value)
    return processor


def unpatched(patches, rows, columns, patch, merge=1, channels_last=False, frames=1):
    """`[3][height][width]` of flat patches."""
    array = patches[: rows * columns].numpy()
    if channels_last:
        array = array.reshape(rows, columns, patch, patch, 3).transpose(4, 0, 2, 1, 3)
    else:
        array = array.reshape(rows // merge, columns // merge, merge, merge, 3, frames, patch, patch)
        assert (array == array[:, :, :, :, :, :1]).all()
        array = array[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6)
    return array.reshape(3, rows * patch, columns * patch)


def prepared(name, config, image, attributes, picture):
    """The views and the text of one picture."""
    kind = config["model_type"]
    if kind in ("idefics3", "smolvlm"):
        out = image([picture], return_tensors="pt", return_row_col_info=True)
        processor = words(SmolVLMProcessor, image, attributes, fake_image_token="<fake_token_around_image>", global_image_token="<global-img>")
        views = list(out["pixel_values"][0].numpy())
    elif kind == "gemma3":
        out = image([[picture]], return_tensors="pt", **Gemma3Processor.images_kwargs)
        row = "<image_soft_token>"
        text = f"\n\n<start_of_image>{row * attributes['image_seq_length']}<end_of_image>\n\n"
        processor = words(Gemma3Processor, image, attributes, image_token=row, full_image_sequence=text)
        views = list(out["pixel_values"].numpy())
    elif kind == "gemma4":
        out = image([picture], return_tensors="pt")
        processor = words(Gemma4Processor, image, {}, image_token="<|image|>", boi_token="<|image>", eoi_token="<image|>")
        positions = out["image_position_ids"][0]
        columns, rows = (int(count) + 1 for count in positions.max(0).values)
        views = [unpatched(out["pixel_values"][0], rows, columns, image.patch_size, channels_last=True)]
    elif kind == "internvl":
        out = image([picture], return_tensors="pt", **InternVLProcessor.images_kwargs)
        processor = words(InternVLProcessor, image, attributes, image_token="<IMG_CONTEXT>", start_image_token="<img>", end_image_token="</img>")
        views = list(out["pixel_values"].numpy())
    elif kind == "lfm2_vl":
        out = image([picture], return_tensors="pt", return_row_col_info=True)
        processor = words(Lfm2VlProcessor, image, attributes, image_start_token="<|image_start|>", image_end_token="<|image_end|>", image_thumbnail_token="<|img_thumbnail|>")
        shapes = out["spatial_shapes"].tolist()
        views = [unpatched(values, *shape, image.encoder_patch_size, channels_last=True) for values, shape in zip(out["pixel_values"], shapes)]
    elif kind == "llava":
        out = image([picture], return_tensors="pt")
        processor = words(LlavaProcessor, image, attributes)
        views = list(out["pixel_values"].numpy())
    else:
        out = image([picture], return_tensors="pt")
        processor = words(Qwen2VLProcessor, image, attributes, image_token="<|image_pad|>")
        _, rows, columns = out["image_grid_thw"][0].tolist()
        views = [unpatched(out["pixel_values"], rows, columns, image.patch_size, image.merge_size, frames=image.temporal_patch_size)]
    more = {"use_image_special_tokens": True} if kind == "lfm2_vl" else {}
    text = processor.replace_image_token(out, 0, **more)
    text = re.sub(f"(?:{re.escape(processor.image_token)})+", lambda run: f"{{{len(run[0]) // len(processor.image_token)}}}", text)
    digest = hashlib.sha256()
    for view in views:
        digest.update(np.ascontiguousarray(view, dtype="<f4").tobytes())
    return {"processor": name, "views": [list(view.shape[1:]) for view in views], "sha256": digest.hexdigest(), "text": text}


def main():
    for folder in (FILES, PROCESSORS):
        shutil.rmtree(folder, ignore_errors=True)
    FILES.mkdir()
    decoded = []
    for name, content in pictures():
        (FILES / name).write_bytes(content)
        picture = load_image(str(FILES / name))
        colors = np.asarray(picture)
        line = {"file": name, "size": list(picture.size)}
        if "~" in name:
            cells = colors.reshape(CELLS, picture.height // CELLS, CELLS, picture.width // CELLS, 3).mean((1, 3))
            line["means"] = cells.reshape(-1).round(2).tolist()
        else:
            line["sha256"] = hashlib.sha256(colors.tobytes()).hexdigest()
        decoded.append(line)
    assert len(decoded) >= 60, len(decoded)
    lines = []
    for name in MODELS:
        config, image, attributes = saved(name)
        for line in decoded:
            file = line["file"]
            if "~" in file or (not name.startswith("small") and file not in FEW):
                continue
            # As a tensor: an image of Pillow would keep the transparent color of a palette, which is blended then.
            picture = load_image_as_tensor(load_image(str(FILES / file)))
            lines.append({"file": file, **prepared(name, config, image, attributes, picture)})
    for path, entries in (("decoded.json", decoded), ("prepared.json", lines)):
        (HERE / path).write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
    print(len(decoded), "pictures,", len(lines), "prepared,", sum(file.stat().st_size for file in FILES.iterdir()), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
