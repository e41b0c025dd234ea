"""Converts an F16 GGUF file for OpenVINO: `openvino_convert.py MODEL.gguf FOLDER`.

GenAI reads GGUF itself and writes what it made of it, tokenizer included, next to the file. NNCF then compresses the
weights to INT8 per channel, as `optimum-cli export openvino --weight-format int8` does: both are equally fast, and
this way needs no torch.
"""

import sys
from pathlib import Path

import nncf
import openvino
import openvino_genai

source, folder = map(Path, sys.argv[1:])
openvino_genai.LLMPipeline(source, "CPU", enable_save_ov_model=True)
for file in source.parent.glob("openvino_*tokenizer.*"):
    file.rename(folder / file.name)
wide = source.parent / "openvino_model.xml"
model = openvino.Core().read_model(wide)
model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
openvino.save_model(model, folder / wide.name, compress_to_fp16=False)
