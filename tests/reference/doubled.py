"""Models of transformers in float64."""

import torch


def in_float64(model):
    """`model` in float64, and what its code keeps in float32, so that the two meet nowhere."""
    model.double()
    for module in model.modules():
        # Version 4 gives the router of ERNIE float32, whatever it is.
        if hasattr(module, "moe_statics") and isinstance(getattr(module, "gate", None), torch.nn.Linear):
            module.gate.float()
        # The router of GLM-4.5 returns weights in float32, whose type is that of the experts' sum.
        if type(module).__name__ == "Glm4MoeTopkRouter":
            module.register_forward_hook(lambda _module, _inputs, found: tuple(map(widened, found)))
    return model


def widened(value):
    return value.double() if value.is_floating_point() else value
