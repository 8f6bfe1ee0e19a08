"""The small model before training: its sizes and its fresh weights."""

import torch

from qwen.config import Config
from qwen.model import Model

LINEAR, FULL = "linear_attention", "full_attention"
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 1344,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 2,
    "dtype": "float32",
}
OUTPUTS = "o_proj.weight", "out_proj.weight", "down_proj.weight"


def new_model(seed, config=CONFIG, mimetic=True):
    """Fresh weights: layers that add nothing yet to the token's vector.

    A deviation of 0.02, right for a width of thousands, learns no recall
    at 128; three times that does.
    """
    torch.manual_seed(seed)
    model = Model(Config.from_dict(config))
    for name, parameter in model.named_parameters():
        if name.endswith(OUTPUTS):
            torch.nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.06)
    for layer in model.layers if mimetic else ():
        if layer.full:
            find_equals(layer.self_attn)
        else:
            find_followers(layer.linear_attn)
    return model


# Queries and keys that start independent find nothing, and nothing improves
# for hundreds of steps. "Mimetic" weights begin with a use that trained ones
# end in (Trockman et al. 2024, arXiv:2410.11135).


@torch.no_grad()
def spell_alike(table, tokenizer):
    """The tokens of one word, `Mia`, ` Mia`, ` mia`, begin as near vectors.

    `table` [V, H] is the embedding. An answer begins with a capital and no
    space, and what it repeats stood in the middle of a sentence.
    """
    words = {}
    for token in range(tokenizer.core.get_vocab_size()):
        word = tokenizer.decode([token]).strip().lower()
        if word.isalpha():
            words.setdefault(word, []).append(token)
    for tokens in words.values():
        first, others = table[tokens[0]], tokens[1:]
        table[others] = 0.75**0.5 * first + 0.5 * table[others]


@torch.no_grad()
def find_equals(attention):
    """Equal queries and keys: a token reads earlier tokens like itself."""
    d = attention.head_dim
    k = attention.k_proj.weight.unflatten(0, (-1, d))
    q = attention.q_proj.weight.unflatten(0, (-1, 2 * d))
    q[:, :d] = k.repeat_interleave(len(q) // len(k), dim=0)


@torch.no_grad()
def find_followers(net):
    """The table's first key head keeps each token under the one before.

    So a token reads what followed it the last time; through the other key
    heads, where it stood. The last value head keeps the token before. The
    table decays slowly: by a thousandth to a thirtieth a token.
    """
    keys, dk = net.key_dim, net.dk
    weight, taps = net.in_proj_qkv.weight, net.conv1d.weight[:, 0]
    weight[keys : 2 * keys] = weight[:keys]
    taps *= 0.2
    before = torch.zeros(len(taps), dtype=torch.bool)
    before[keys : keys + dk] = before[-net.dv :] = True
    taps[before, -2] += 1
    taps[~before, -1] += 1
    net.A_log.zero_()
    speed = torch.logspace(-3, -1.5, len(net.dt_bias))
    net.dt_bias.copy_(speed.expm1().log())
