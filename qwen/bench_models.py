"""What qwen.bench compares: one shape, random weights, and who holds them.

A runner has a `model`, and `read(ids, state)` that returns the state after.
"""

import json

import torch
from safetensors.torch import save_file

from qwen.cache import State
from qwen.config import Config
from qwen.model import Model
from qwen.packed import load_packed

# Source: text_config of config.json in Qwen/Qwen3.5-0.8B on the Hugging Face
# hub; what only names the vision tower and the MTP head is left out.
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
}
KINDS = "float32", "bfloat16", "packed"
PEER = "transformers float32"
SIZES = {"float32": 4, "bfloat16": 2, "packed": 2, PEER: 4}  # bytes a weight


class Ours:
    def __init__(self, folder, kind):
        if kind == "packed":
            self.model = load_packed(folder)
        else:
            self.model = Model.from_pretrained(folder, getattr(torch, kind))

    def read(self, ids, state=None):
        """ids [1, T] -> the state after them."""
        state = State(self.model) if state is None else state
        self.model(ids, state=state, logits_to_keep=1)
        return state

    def recompute(self, ids, logits_to_keep):
        self.model(ids, logits_to_keep=logits_to_keep)


class Theirs:
    """transformers, with the same three methods."""

    def __init__(self, folder):
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def read(self, ids, state=None):
        settings = {"use_cache": True, "logits_to_keep": 1}
        out = self.model(ids, past_key_values=state, **settings)
        return out.past_key_values


def make(name, folder):
    return Theirs(folder) if name == PEER else Ours(folder, name)


def write_checkpoint(config, folder):
    """A folder as on the hub, in bf16; returns the number of weights."""
    with torch.device("meta"):
        model = Model(Config.from_dict(config))
    weights = {}
    for name, p in model.named_parameters():
        w = torch.empty(p.shape, dtype=torch.bfloat16).normal_(0, 0.02)
        if name.endswith("linear_attn.norm.weight"):
            w += 1
        weights["model." + name] = w
    if "model.lm_head.weight" in weights:
        weights["lm_head.weight"] = weights.pop("model.lm_head.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return sum(w.numel() for w in weights.values())


def bytes_of_a_step(config, weights, name, pos):
    """What a step must read: each weight, and the state after `pos`."""
    c = Config.from_dict(config)
    if not c.tie_word_embeddings:  # the lookup reads one row of its table
        weights -= c.vocab_size * c.hidden_size
    full = c.layer_types.count("full_attention")
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    values = c.linear_num_value_heads * c.linear_value_head_dim
    window = (2 * keys + values) * (c.linear_conv_kernel_dim - 1)
    linear = values * c.linear_key_head_dim + window
    cached = 2 * pos * c.num_key_value_heads * c.head_dim
    state = full * cached + (c.num_hidden_layers - full) * linear
    return weights * SIZES[name] + state * 4
