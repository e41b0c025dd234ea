"""Times ONNX Runtime's INT8 matmul with constant weights: `onnxruntime_matmul.py THREADS ROWS DEPTHxCOLUMNS …`.

Prints JSON: for each shape the seconds of QLinearMatMul (INT8 result) and of MatMulInteger (i32 result), medians.
"""

import json
import statistics
import sys
import time

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

threads, rows = map(int, sys.argv[1:3])
random = numpy.random.default_rng(0)


def session(operator, depth, columns):
    weights = random.integers(-127, 128, (depth, columns)).astype(numpy.int8)
    constants = {
        "b": weights,
        "scale": numpy.float32(0.01),
        "zero": numpy.uint8(128),
        "b_zero": numpy.int8(0),
    }
    inputs, result = {
        "QLinearMatMul": (["a", "scale", "zero", "b", "scale", "b_zero", "scale", "zero"], TensorProto.UINT8),
        "MatMulInteger": (["a", "b", "zero", "b_zero"], TensorProto.INT32),
    }[operator]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"])],
        operator,
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [rows, depth])],
        [helper.make_tensor_value_info("y", result, [rows, columns])],
        [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items() if name in inputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def seconds(operator, depth, columns):
    model = session(operator, depth, columns)
    inputs = {"a": random.integers(0, 256, (rows, depth)).astype(numpy.uint8)}
    times = []
    for _ in range(30):
        started = time.perf_counter()
        model.run(None, inputs)
        times.append(time.perf_counter() - started)
    return statistics.median(times[5:])


print(
    json.dumps(
        {
            shape: {operator: seconds(operator, *map(int, shape.split("x"))) for operator in ("QLinearMatMul", "MatMulInteger")}
            for shape in sys.argv[3:]
        }
    )
)
