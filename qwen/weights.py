"""A checkpoint on disk: its folder and its tensors.

Source: the layout of Hugging Face checkpoints of the Qwen3.5 family
(`config.json`, `*.safetensors`, `model.safetensors.index.json`).
"""

import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from qwen.config import Config, read_json

__all__ = ["Config", "find_model", "load_weights"]

BUNDLED = Path(__file__).parent / "tiny"


def find_model(name=None):
    """The folder of a model, as a Path.

    `name` is a folder, or `owner/name[@revision]` on the Hugging Face
    hub (from its cache when offline). None means $QWEN_MODEL, else the
    small model that ships with the package. Raises FileNotFoundError or
    ValueError.
    """
    name = str(name or os.environ.get("QWEN_MODEL") or BUNDLED)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(
            f"{name} is a file; a model is a folder with config.json and "
            "*.safetensors (GGUF and pickle files are not read)"
        )
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?", name):
        raise FileNotFoundError(f"no such model folder: {name}")
    from huggingface_hub import snapshot_download  # slow to import

    repo, _, revision = name.partition("@")
    patterns = ["*.safetensors", "*.json", "*.jinja"]
    try:
        return Path(
            snapshot_download(
                repo, revision=revision or None, allow_patterns=patterns
            )
        )
    except Exception as error:
        raise FileNotFoundError(
            f"no folder {name}, and the hub gave no such model "
            f"({type(error).__name__}; offline and not in its cache?)"
        ) from error


KEEP_FP32 = re.compile(r"A_log$|dt_bias$|conv1d\.weight$|norm\.weight$")
PREFIXES = re.compile(
    r"^(model\.language_model|language_model\.model|model"
    r"|language_model(?=\.lm_head))\."
)
SKIPPED = re.compile(r"mtp\.|(.*\.)?visual\.")


def load_weights(path, dtype=None, device="cpu"):
    """All text tensors of a checkpoint folder: {canonical name: tensor}.

    Canonical names have no prefix: `layers.0.mlp.up_proj.weight`,
    `embed_tokens.weight`, `norm.weight`, `lm_head.weight`. Tensors of
    the MTP head and the vision tower are skipped. dtype None keeps what
    is stored; any other keeps norms, the short convolution, A_log and
    dt_bias in fp32 all the same, as they are small and exact. Files are
    memory-mapped; nothing is unpickled. Raises FileNotFoundError or
    ValueError that names the file or tensor.
    """
    weights = {}
    for file, names in _shards(Path(path)).items():
        try:
            with safe_open(file, framework="pt") as f:
                held = set(f.keys())
            for name in sorted(held if names is None else names):
                if SKIPPED.match(name):
                    continue
                if name not in held:
                    raise ValueError(f"{file} lacks tensor {name}")
                short = PREFIXES.sub("", name)
                if short in weights:
                    raise ValueError(f"{file}: two tensors for {short}")
                # a mapping for each tensor: cast, its pages are let go
                with safe_open(file, framework="pt", device=str(device)) as f:
                    weights[short] = _cast(name, f.get_tensor(name), dtype)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} can't be read: {error}") from None
    return weights


def _cast(name, tensor, dtype):
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"tensor {name} is stored as {tensor.dtype}: quantised or "
            "unusual weights are not supported"
        )
    if dtype is None:
        return tensor
    return tensor.to(torch.float32 if KEEP_FP32.search(name) else dtype)


def _shards(path):
    """{file: the tensor names to take from it, or None for all}."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        file = path / "model.safetensors"
        if not file.exists():
            raise FileNotFoundError(
                f"no model.safetensors in {path} (GGUF and pickle files are "
                "not read)"
            )
        return {file: None}
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{index} has no weight_map")
    shards = {}
    for name, file in names.items():
        if SKIPPED.match(name):
            continue
        if not re.fullmatch(r"[^/\\\0]+\.safetensors", str(file)):
            raise ValueError(
                f"{index}: {file!r} is not a safetensors file of this folder"
            )
        shards.setdefault(path / file, []).append(name)
    for file in shards:
        if not file.exists():
            raise FileNotFoundError(f"shard {file} of {index.name} is missing")
    return shards
