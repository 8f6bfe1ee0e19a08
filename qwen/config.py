"""What `config.json` says, read strictly.

Source: the configuration files of the Qwen3.5 family, and Hugging Face
transformers' `Qwen3_5TextConfig` for the defaults.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from sys import float_info

LAYER_TYPES = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class Config:
    """The fields of `config.json` that the text model needs.

    Names are the checkpoint's own. `layer_types` has one entry a layer;
    `rope_theta` and `partial_rotary_factor` are taken from wherever the
    file keeps them. Build it with `load` or `from_dict`: both raise
    ValueError that names the field which is missing, wrong, or asks for
    something this model does not do.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    layer_types: tuple[str, ...]
    rope_theta: float
    partial_rotary_factor: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def rotary_dim(self):
        """How many of a head's dimensions RoPE turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    @classmethod
    def load(cls, path):
        """Read `config.json` in the folder `path`."""
        return cls.from_dict(read_json(Path(path) / "config.json"))

    @classmethod
    def from_dict(cls, d):
        """From the parsed JSON, flat or with a nested `text_config`."""
        text = d.get("text_config", d) if isinstance(d, dict) else None
        if not isinstance(text, dict):
            raise ValueError("config: not a JSON object")
        _refuse_unsupported(d, text)
        rope = [text.get("rope_parameters"), text.get("rope_scaling"), text]
        sizes = {
            name: _count(text, name)
            for name, kind in cls.__annotations__.items()
            if kind is int
        }
        config = cls(
            **sizes,
            layer_types=_layer_types(text, sizes["num_hidden_layers"]),
            rope_theta=_number("rope_theta", rope),
            # transformers falls back to a quarter too; theta: to nothing
            partial_rotary_factor=_number("partial_rotary_factor", rope, 0.25),
            rms_norm_eps=_number("rms_norm_eps", [text], 1e-6),
            tie_word_embeddings=_one("tie_word_embeddings", [d, text], False),
        )
        _check_shapes(config)
        return config


def _one(name, places, default=None):
    """The one value that `name` has in all the places that state it."""
    found = [p[name] for p in places if p and p.get(name) is not None]
    if any(value != found[0] for value in found[1:]):
        raise ValueError(f"config: {name} is stated twice, as {found}")
    value = found[0] if found else default
    if value is None:
        raise ValueError(f"config: {name} is missing")
    if default is False and not isinstance(value, bool):
        raise ValueError(f"config: {name} is {value!r}, not true or false")
    return value


def _count(text, name):
    value = _one(name, [text])
    if type(value) is not int or value < 1:
        raise ValueError(f"config: {name} is {value!r}, not a count")
    return value


def _number(name, places, default=None):
    value = _one(name, places, default)
    # the largest float bounds whole numbers too: JSON's have no limit
    if type(value) not in (int, float) or not 0 < value <= float_info.max:
        raise ValueError(f"config: {name} is {value!r}, not a positive number")
    return float(value)


def _refuse_unsupported(d, text):
    kind = text.get("model_type", "qwen3_5_text")
    if kind not in ("qwen3_5_text", "qwen3_5"):
        raise ValueError(f"config: model_type {kind!r} is not supported")
    for name in ("quantization_config", "compression_config"):
        how = d.get(name) or text.get(name)
        if how:
            if isinstance(how, dict):
                how = how.get("quant_method", how)
            raise ValueError(f"config: {name}: {how} is not supported")
    for name in ("num_experts", "num_local_experts", "attention_bias"):
        if text.get(name):
            raise ValueError(f"config: {name} is not supported")
    wanted = {"hidden_act": "silu", "attn_output_gate": True}
    for name, value in wanted.items():
        if text.get(name, value) != value:
            raise ValueError(f"config: {name} {text[name]!r} is not supported")
    for group in ("rope_parameters", "rope_scaling"):
        rope = text.get(group) or {}
        if not isinstance(rope, dict):
            raise ValueError(f"config: {group} is not an object")
        for name in ("rope_type", "type"):
            if rope.get(name) not in (None, "default"):
                raise ValueError(
                    f"config: {group}: {name} {rope[name]!r} is not supported"
                )


def _layer_types(text, layers):
    """One type a layer; the list beats `full_attention_interval`."""
    types = text.get("layer_types")
    if types is None:
        every = _count(text, "full_attention_interval")
        full = [(i + 1) % every == 0 for i in range(layers)]
        return tuple(LAYER_TYPES[is_full] for is_full in full)
    if not isinstance(types, list | tuple) or len(types) != layers:
        raise ValueError(f"config: layer_types must name {layers} layers")
    for kind in types:
        if kind not in LAYER_TYPES:
            raise ValueError(f"config: layer_types: unknown type {kind!r}")
    return tuple(types)


def _check_shapes(c):
    if c.num_attention_heads % c.num_key_value_heads:
        raise ValueError(
            "config: num_attention_heads is not a multiple of "
            "num_key_value_heads"
        )
    if c.linear_num_value_heads % c.linear_num_key_heads:
        raise ValueError(
            "config: linear_num_value_heads is not a multiple of "
            "linear_num_key_heads"
        )
    if c.rotary_dim % 2 or not 2 <= c.rotary_dim <= c.head_dim:
        raise ValueError(
            f"config: partial_rotary_factor turns {c.rotary_dim} of "
            f"{c.head_dim} dimensions; it must be an even number of them"
        )


def read_json(path):
    """The object in a JSON file; ValueError names the file if it is bad."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a JSON object")
    return value
