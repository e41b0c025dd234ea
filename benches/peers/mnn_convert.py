"""Converts an F16 GGUF file for MNN: `mnn_convert.py MODEL.gguf FOLDER --bits 8|4 [--block N] [--symmetric]`.

MNN's own exporter, llmexport, traces a torch model only to learn the graph of it. The graph of a Llama or Qwen2 is known:
it is written here as the JSON that MNN's converter reads, in the form that MNN's optimizer brings such models to
(activations packed by channels all through a block, residual sums within the norms, SiLU within the product). Weights are
rounded as llmexport does: so that the smallest and the largest of a block are exact, or, symmetric, that zero is. The
latter makes prompts a tenth faster with INT8.

The folder gets `llm.mnn`, the graph; `llm.mnn.weight`, matrices; `embeddings.f16`, rows of the GGUF file's own numbers;
and `model.txt`, what `mnn_bench.cpp` has to know.
"""

import argparse
import json
import sys
from pathlib import Path

# Not MNN.tools.mnnconvert: its main function reports each conversion to a server.
import _tools
import gguf
import numpy


class Model:
    def __init__(self, file):
        self.reader = gguf.GGUFReader(file)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.architecture = self.field("general.architecture", "")
        if self.architecture not in ("llama", "qwen2"):
            sys.exit(f"error: no graph for {self.architecture}")
        self.hidden = self.field("embedding_length")
        self.blocks = self.field("block_count")
        self.heads = self.field("attention.head_count")
        self.kv_heads = self.field("attention.head_count_kv", default=self.heads)
        self.head_dim = self.hidden // self.heads
        self.epsilon = self.field("attention.layer_norm_rms_epsilon")
        self.rope_base = self.field("rope.freq_base", default=10000.0)

    def field(self, key, prefix=None, default=None):
        name = key if prefix == "" else f"{self.architecture}.{key}"
        return self.reader.fields[name].contents() if name in self.reader.fields else default

    def values(self, name):
        """Returns a tensor, or None if the model has none; heads of Llama's queries and keys in MNN's order for RoPE."""
        if name not in self.tensors:
            return None
        values = self.tensors[name].data
        part = name.split(".")[-2]
        if self.architecture == "llama" and part in ("attn_q", "attn_k"):
            # In GGUF files of Llama the pairs that are rotated together are neighbours; MNN has halves.
            heads = self.heads if part == "attn_q" else self.kv_heads
            pairs = values.reshape(heads, self.head_dim // 2, 2, -1)
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        return values


def quantized(matrix, bits, block, symmetric):
    """Weights as MNN stores them, and the floats of each block, zero and scale: value = (stored - half) * scale + zero.
    Symmetric ones have the scale alone, and a zero of 0."""
    rows, columns = matrix.shape
    block = block or columns
    largest, half = (1 << bits) - 1, 1 << (bits - 1)
    stored, floats = [], []
    # In parts: an output matrix has gigabytes in 32 bits.
    for start in range(0, rows, 8192):
        values = matrix[start : start + 8192].astype(numpy.float32).reshape(-1, columns // block, block)
        if symmetric:
            scale = numpy.abs(values).max(-1, keepdims=True) / (half - 1)
            low = -half * scale
        else:
            low = values.min(-1, keepdims=True)
            scale = (values.max(-1, keepdims=True) - low) / largest
        scale[scale == 0] = 1
        whole = numpy.clip(numpy.rint((values - low) / scale), 0, largest).astype(numpy.uint8).reshape(-1)
        stored.append(whole if bits == 8 else whole[::2] << 4 | whole[1::2])
        both = scale if symmetric else numpy.stack([low + scale * half, scale], -1)
        floats.append(both.astype(numpy.float32).reshape(-1))
    return numpy.concatenate(stored), numpy.concatenate(floats)


class Graph:
    """The operators in the order in which they run, and the file of matrices."""

    def __init__(self, model, weights, bits, block, symmetric):
        self.model, self.weights = model, weights
        self.bits, self.block, self.symmetric = bits, block, symmetric
        self.operators, self.tensors = [], []

    def add(self, kind, inputs, outputs, parameter=None, main=None, layout="NC4HW4"):
        """Adds an operator; returns the index of its only output, or of all. Inputs are indices, outputs names."""
        indices = list(range(len(self.tensors), len(self.tensors) + len(outputs)))
        self.tensors += outputs
        operator = {"type": kind, "name": outputs[0], "inputIndexes": inputs, "outputIndexes": indices}
        operator["defaultDimentionFormat"] = layout
        if parameter:
            operator |= {"main_type": parameter, "main": main}
        self.operators.append(operator)
        return indices[0] if len(indices) == 1 else indices

    def input(self, name, dims, kind="DT_FLOAT"):
        return self.add("Input", [], [name], "Input", {"dims": dims, "dtype": kind, "dformat": "NCHW"}, "NCHW")

    def convert(self, tensor, name, source, dest):
        return self.add("ConvertTensor", [tensor], [name], "TensorConvertInfo", {"source": source, "dest": dest})

    def norm(self, inputs, name, outputs):
        gamma = self.model.values(f"{name}.weight").astype(numpy.float32)
        main = {"axis": [-1], "epsilon": self.model.epsilon, "useRMSNorm": True}
        main |= {"gamma": gamma.tolist(), "beta": [0.0] * len(gamma)}
        return self.add("LayerNorm", inputs, outputs, "LayerNorm", main)

    def linear(self, tensor, name, matrix=None):
        matrix = self.model.values(f"{name}.weight") if matrix is None else matrix
        rows, columns = matrix.shape
        stored, floats = quantized(matrix, self.bits, self.block, self.symmetric)
        # MNN's weight format starts with the shape and the values of stored numbers.
        wide = max(rows, columns) > 65535
        values = range(-(1 << (self.bits - 1)), 1 << (self.bits - 1))
        header = b"\x02" + numpy.array([rows, columns], numpy.uint32 if wide else numpy.uint16).tobytes()
        header += bytes([len(values) % 256]) + numpy.array(values, numpy.int8).tobytes()
        parts = [header + stored.tobytes(), floats.tobytes(), b""]
        bias = self.model.values(f"{name}.bias")
        if bias is not None:
            parts[2] = bias.astype(numpy.float32).tobytes()
        main = {
            "common": {
                "kernelX": 1, "kernelY": 1, "strideX": 1, "strideY": 1, "dilateX": 1, "dilateY": 1, "padX": 0, "padY": 0,
                "group": 1, "padMode": "CAFFE", "outputCount": rows, "inputCount": columns,
            },
            "quanParameter": {
                "type": 1, "quantScale": 1.0, "shapeInt32": wide, "aMaxOrBits": self.bits,
                # Number of blocks with their own zero, and whether there are any.
                "readType": 0 if self.symmetric else len(floats) // 2,
                "aMin": int(not self.symmetric),
            },
            "external": [self.weights.tell(), *map(len, parts), 0],
        }  # fmt: skip
        for part in parts:
            self.weights.write(part)
        return self.add("Convolution", [tensor], [name], "Convolution2D", main)

    def binary(self, operation, inputs, name):
        return self.add("BinaryOp", inputs, [name], "BinaryOp", {"opType": operation, "T": "DT_FLOAT"})

    def build(self):
        model = self.model
        embedded = self.input("hidden", [-1, model.hidden, 1, 1])
        angles = [self.input(name, [-1, model.head_dim]) for name in ("cos", "sin")]
        last = self.input("last", [1], "DT_INT32")
        hidden = self.convert(embedded, "hidden.packed", "NCHW", "NC4HW4")
        rope = {"num_head": model.heads, "kv_num_head": model.kv_heads, "head_dim": model.head_dim}
        rope["rope_cut_head_dim"] = model.head_dim
        attention = {"kv_cache": True, "layer_index": -1, "kv_shared_layer_index": -1, "output_c4": True}
        added = None
        for name in (f"blk.{index}" for index in range(model.blocks)):
            if added is None:
                normed = self.norm([hidden], f"{name}.attn_norm", [f"{name}.attn_norm"])
            else:
                outputs = [f"{name}.hidden", f"{name}.attn_norm"]
                hidden, normed = self.norm([hidden, added], f"{name}.attn_norm", outputs)
            query, key, value = (self.linear(normed, f"{name}.attn_{part}") for part in "qkv")
            rotated = self.add("RoPE", [query, key, *angles], [f"{name}.query", f"{name}.key"], "RoPEParam", rope, "NHWC")
            mixed = self.add("Attention", [*rotated, value], [f"{name}.attention"], "AttentionParam", attention, "NHWC")
            added = self.linear(mixed, f"{name}.attn_output")
            outputs = [f"{name}.middle", f"{name}.ffn_norm"]
            hidden, normed = self.norm([hidden, added], f"{name}.ffn_norm", outputs)
            gate, up = (self.linear(normed, f"{name}.ffn_{part}") for part in ("gate", "up"))
            gated = self.binary("MUL_SILU", [up, gate], f"{name}.gated")
            added = self.linear(gated, f"{name}.ffn_down")
        hidden = self.binary("ADD", [hidden, added], "result")
        # Only the last token of a prompt needs logits.
        rows = self.convert(hidden, "result.rows", "NC4HW4", "NCHW")
        axis = {"dims": [], "dataFormat": "NCHW", "dataType": "DT_INT32", "int32s": [0]}
        axis = self.add("Const", [], ["axis"], "Blob", axis, "NCHW")
        row = self.add("GatherV2", [rows, last, axis], ["result.row"], layout="NCHW")
        row = self.convert(row, "result.packed", "NCHW", "NC4HW4")
        row = self.norm([row], "output_norm", ["output_norm"])
        tied = self.model.values("token_embd.weight") if "output.weight" not in model.tensors else None
        self.convert(self.linear(row, "output", tied), "logits", "NC4HW4", "NCHW")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, choices=[4, 8], default=8)
    parser.add_argument("--block", type=int, default=0, help="weights of a row that share a scale; 0 for all [0]")
    parser.add_argument("--symmetric", action="store_true", help="zero is exact, not the smallest and the largest weight")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(exist_ok=True)
    model = Model(arguments.source)
    with open(folder / "llm.mnn.weight", "wb") as weights:
        graph = Graph(model, weights, arguments.bits, arguments.block, arguments.symmetric)
        graph.build()
    net = {"oplists": graph.operators, "tensorName": graph.tensors, "outputName": ["logits"], "sourceType": "ONNX"}
    text = folder / "llm.mnn.json"
    text.write_text(json.dumps(net))
    _tools.mnnconvert(["mnnconvert", "-f", "JSON", "--modelFile", str(text), "--MNNModel", str(folder / "llm.mnn")])
    if not (folder / "llm.mnn").exists():
        sys.exit("error: MNN's converter wrote no model")
    text.unlink()
    embeddings = model.values("token_embd.weight").astype(numpy.float16)
    embeddings.tofile(folder / "embeddings.f16")
    (folder / "model.txt").write_text(f"{len(embeddings)} {model.hidden} {model.head_dim} {model.rope_base}\n")


main()
