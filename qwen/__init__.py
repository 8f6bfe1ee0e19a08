"""A hybrid language model of the Qwen3.5 family, from scratch in PyTorch."""

import torch

from qwen.generation import generate
from qwen.model import Model
from qwen.tokenizer import Tokenizer
from qwen.weights import find_model

__all__ = ["generate", "load"]


def _usable(device=None):
    """A torch.device that works here; ValueError names one that doesn't."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {device} can't be used: {reason}") from None
    return torch.device(device)


def load(name=None, device=None, dtype=None):
    """name (see `find_model`) -> (model, tokenizer), ready to generate.

    `device` defaults to a GPU if there is one. `dtype` is the storage of
    the large matrices: by default fp32 on a CPU and on GPUs below compute
    capability 8.0, which have no bf16, else bf16. Raises ValueError or
    FileNotFoundError that names what can't be used.
    """
    path, device = find_model(name), _usable(device)
    if dtype is None:
        modern = device.type == "cuda" and torch.cuda.get_device_capability(
            device
        ) >= (8, 0)
        dtype = torch.bfloat16 if modern else torch.float32
    model = Model.from_pretrained(path, dtype, device)
    return model, Tokenizer.load(path)
