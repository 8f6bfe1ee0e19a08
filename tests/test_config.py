# Run: python -m pytest tests/test_config.py
"""`config.json`: what is read from it, and what is refused by name."""

import json
from pathlib import Path

import pytest
from tiny_checkpoints import FULL, LINEAR, tiny_config, write_json

from qwen.config import Config, read_json

CONFIGS = Path(__file__).parent / "configs"
REAL = {"qwen3.5-0.8b": (1024, 3584), "qwen3.5-2b": (2048, 6144)}


def nested(**changes):
    """A config as checkpoints with a vision tower have it."""
    text = tiny_config(**changes)
    return {"model_type": "qwen3_5", "text_config": text, "vision_config": {}}


def rope(**changes):
    """Changes that leave no rope field but those given."""
    return {"rope_parameters": None} | changes


def refused(config, *words):
    with pytest.raises(ValueError) as caught:
        Config.from_dict(config)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", REAL)
def test_real_configs(name, tmp_path):
    text = (CONFIGS / f"{name}.json").read_text()
    (tmp_path / "config.json").write_text(text)
    assert Config.load(tmp_path) == Config(
        vocab_size=248320,
        hidden_size=REAL[name][0],
        intermediate_size=REAL[name][1],
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        layer_types=(LINEAR, LINEAR, LINEAR, FULL) * 6,
        rope_theta=1e7,
        partial_rotary_factor=0.25,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    assert Config.load(tmp_path).rotary_dim == 64


def test_flat_and_nested_are_alike():
    flat = Config.from_dict(tiny_config())
    assert Config.from_dict(nested()) == flat
    assert flat.rotary_dim == 4


def test_frozen():
    with pytest.raises(AttributeError):
        Config.from_dict(tiny_config()).hidden_size = 3


def test_unknown_fields_and_nulls_are_no_matter():
    more = {"use_cache": True, "quantization_config": None}
    config = tiny_config() | more | {"rope_scaling": None}
    assert Config.from_dict(config) == Config.from_dict(tiny_config())


THETA = {"rope_theta": 5e5, "partial_rotary_factor": 0.5}
SPELLINGS = [
    {"rope_parameters": {"rope_type": "default", **THETA}},
    {"rope_parameters": {"type": "default", **THETA}},
    {"rope_parameters": THETA, **THETA},
    rope(**THETA),
    rope(**THETA, rope_scaling={"type": "default", "mrope_section": [1]}),
    rope(rope_scaling=THETA),
    {"rope_parameters": {"partial_rotary_factor": 0.5}, "rope_theta": 500000},
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_rope(spelling):
    """C10: theta and the rotary part, wherever the file keeps them."""
    config = Config.from_dict(tiny_config(**spelling))
    assert (config.rope_theta, config.partial_rotary_factor) == (5e5, 0.5)


@pytest.mark.parametrize(
    "changes",
    [rope(), rope(rope_parameters={"partial_rotary_factor": 0.5}),
     {"rope_parameters": {}}],
)  # fmt: skip
def test_theta_nowhere(changes):
    """C10: no theta is an error, never a silent 10000."""
    refused(tiny_config(**changes), "rope_theta", "missing")


def test_theta_twice():
    """C10: a stale theta beside the right one is not chosen between."""
    refused(tiny_config(rope_theta=1e6), "rope_theta", "twice")


def test_rotary_part_defaults_to_a_quarter():
    config = tiny_config(**rope(rope_theta=1e4))
    assert Config.from_dict(config).partial_rotary_factor == 0.25


@pytest.mark.parametrize(
    "layers",
    [[LINEAR, LINEAR, FULL, LINEAR, LINEAR, LINEAR], [LINEAR] * 6],
)
def test_layer_types_beat_the_interval(layers):
    """C12: the list is obeyed as it stands."""
    changes = {"num_hidden_layers": 6, "full_attention_interval": 4}
    config = tiny_config(layer_types=layers, **changes)
    assert Config.from_dict(config).layer_types == tuple(layers)


@pytest.mark.parametrize(
    "every, full", [(4, {3}), (3, {2, 5}), (1, set(range(6))), (7, set())]
)
def test_interval_alone(every, full):
    config = tiny_config(
        layer_types=None, num_hidden_layers=6, full_attention_interval=every
    )
    types = Config.from_dict(config).layer_types
    assert {i for i, kind in enumerate(types) if kind == FULL} == full
    assert len(types) == 6


def test_neither_list_nor_interval():
    refused(tiny_config(layer_types=None), "full_attention_interval")


@pytest.mark.parametrize("layers", [[LINEAR] * 3, [LINEAR] * 5, [], "full", 4])
def test_layer_types_of_another_length(layers):
    """C12: as many types as layers."""
    refused(tiny_config(layer_types=layers), "layer_types", "4")


@pytest.mark.parametrize(
    "kind", ["sliding_attention", "full_atention", "FULL_ATTENTION", None, []]
)
def test_unknown_layer_type(kind):
    """C14: no type falls through to another."""
    types = [LINEAR, kind, LINEAR, FULL]
    refused(tiny_config(layer_types=types), "layer_types", repr(kind))


@pytest.mark.parametrize("top, text, tied", [
    (True, None, True), (None, True, True), (True, True, True),
    (False, None, False), (None, False, False), (None, None, False),
])  # fmt: skip
def test_tie_flag_at_either_level(top, text, tied):
    config = nested(tie_word_embeddings=text)
    if top is not None:
        config["tie_word_embeddings"] = top
    assert Config.from_dict(config).tie_word_embeddings is tied


@pytest.mark.parametrize("top", [True, False])
def test_tie_flags_that_disagree(top):
    config = nested(tie_word_embeddings=not top)
    refused(config | {"tie_word_embeddings": top}, "tie_word_embeddings")


UNSUPPORTED = [
    ("num_experts", 64, ""),
    ("num_local_experts", 8, ""),
    ("attention_bias", True, ""),
    ("hidden_act", "gelu", "gelu"),
    ("attn_output_gate", False, ""),
    ("model_type", "qwen3_5_moe_text", "qwen3_5_moe_text"),
    ("model_type", "qwen3_next", "qwen3_next"),
    ("model_type", "llama", "llama"),
    ("quantization_config", {"quant_method": "fp8"}, "fp8"),
    ("quantization_config", {"quant_method": "gptq", "bits": 4}, "gptq"),
    ("quantization_config", {"load_in_4bit": True}, "load_in_4bit"),
    ("compression_config", {"quant_method": "compressed-tensors"}, "compr"),
    ("rope_parameters", {"rope_type": "yarn", **THETA}, "yarn"),
    ("rope_parameters", {"rope_type": "default", "type": "yarn"}, "yarn"),
    ("rope_parameters", [1], ""),
    ("rope_scaling", {"type": "linear", "factor": 2.0}, "linear"),
    ("rope_scaling", {"rope_type": "dynamic"}, "dynamic"),
]


@pytest.mark.parametrize("field, value, word", UNSUPPORTED)
def test_unsupported(field, value, word):
    """C17 and its like: what the model can't do is named, not ignored."""
    refused(tiny_config(**{field: value}), field, word)
    refused(nested(**{field: value}), field, word)


def test_quantisation_outside_the_text_config():
    """C17: checkpoints with a vision tower keep it at the top."""
    config = nested() | {"quantization_config": {"quant_method": "fp8"}}
    refused(config, "quantization_config", "fp8")


COUNTS = [name for name, kind in Config.__annotations__.items() if kind is int]


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_checked(name):
    refused(tiny_config(**{name: None}), name, "missing")
    for value in (0, -4, 2.5, 16.0, "16", True, [16], float("nan")):
        refused(tiny_config(**{name: value}), name, repr(value))


@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta"])
def test_numbers_are_checked(name):
    changes = rope(rope_theta=1e4)
    bad = (0, -1e-6, float("nan"), float("inf"), True, "1e-6", [], 10**400)
    for value in bad:
        refused(tiny_config(**changes | {name: value}), name, "positive")


def test_the_tie_flag_is_checked():
    for value in (1, 0, "true", []):
        refused(tiny_config(tie_word_embeddings=value), "tie_word_embeddings")


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads"),
        ({"head_dim": 6}, "partial_rotary_factor"),  # 3 dimensions: no pairs
        ({"head_dim": 2}, "partial_rotary_factor"),
        (
            rope(rope_theta=1e4, partial_rotary_factor=1.5),
            "partial_rotary_factor",
        ),
    ],
)
def test_sizes_that_do_not_fit(changes, field):
    refused(tiny_config(**changes), field)


@pytest.mark.parametrize("value", [None, [], "text", 3, {"text_config": 3}])
def test_not_an_object(value):
    refused(value, "config")


BAD_JSON = ["", "{", "[1]", "3", "null", '"text"', "[" * 100_000, b"\xff{}"]


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_files_that_are_no_json_object(text, tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="config.json is not"):
        Config.load(tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json is missing"):
        Config.load(tmp_path)


def test_read_json(tmp_path):
    write_json(tmp_path / "a.json", {"ключ": [1, None]})
    assert read_json(tmp_path / "a.json") == {"ключ": [1, None]}
    assert read_json(str(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
