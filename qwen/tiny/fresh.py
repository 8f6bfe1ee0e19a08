"""The small model before training: its sizes and its fresh weights."""

from itertools import cycle

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
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "linear_num_key_heads": 4,
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
# What a head of a linear layer finds at first: the token so many places
# after (or, with a minus, before) the last one like this. By turns.
NEAR = (1, 3, -1, -3), (1, 2, -2, -3)
OUTPUTS = "o_proj.weight", "out_proj.weight", "down_proj.weight"


def new_model(seed, config=CONFIG, mimetic=True):
    """Fresh weights: nearly all layers add nothing yet to a token's vector.

    A deviation of 0.02, right for a width of thousands, learns no recall
    at 128; three times that does. `mimetic` weights already search.
    """
    torch.manual_seed(seed)
    model = Model(Config.from_dict(config))
    for name, parameter in model.named_parameters():
        if name.endswith(OUTPUTS):
            torch.nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.06)
    near = cycle(NEAR)
    for layer in model.layers if mimetic else ():
        if layer.full:
            look_sharply(layer.self_attn)
        else:
            find_neighbours(layer.linear_attn, next(near))
    if mimetic and model.layers[-1].full:
        copy_what_is_read(model.layers[-1].self_attn)
    return model


# From a wholly random start nothing is found, and nothing improves for
# hundreds of steps. "Mimetic" weights begin with a use that trained ones end
# in (Trockman et al. 2024, arXiv:2410.11135).


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
def look_sharply(attention):
    """Longer queries and keys than norms of 1 would leave them.

    A head must tell one of 150 tokens from the others, and from short ones
    it learns to read them all.
    """
    attention.q_norm.weight.fill_(0.5)
    attention.k_norm.weight.fill_(0.5)


@torch.no_grad()
def copy_what_is_read(attention):
    """A head writes back the word that it reads, whichever word it is.

    So one lesson on where to look serves every word; a map from each word
    to itself would be learnt word by word. The last layer only: where an
    early one copies, words are answered before it is known whose they are.
    """
    value = attention.v_proj.weight.unflatten(0, (-1, attention.head_dim))
    out = attention.o_proj.weight
    heads = out.shape[1] // attention.head_dim
    read = value.repeat_interleave(heads // len(value), dim=0)
    out.copy_(0.2 * read.flatten(0, 1).T)


@torch.no_grad()
def find_neighbours(net, places):
    """Each table keeps a token's neighbour under the token.

    `places` are those of NEAR, one a key head. The convolution delays the
    keys, to find what followed, or the values, to find what came before.
    What belongs together stands together: `key in the drawer`, `red key`.
    The tables decay slowly, by 1e-4 to 1e-2 a token.
    """
    keys, dk, dv = net.key_dim, net.dk, net.dv
    weight, taps = net.in_proj_qkv.weight, net.conv1d.weight[:, 0]
    weight[keys : 2 * keys] = weight[:keys]
    taps *= 0.2
    taps[:keys, -1] += 1
    share = len(net.dt_bias) // len(places) * dv
    for head, place in enumerate(places):
        k, v = keys + head * dk, 2 * keys + head * share
        taps[k : k + dk, -1 - max(place, 0)] += 1
        taps[v : v + share, -1 + min(place, 0)] += 1
    net.A_log.zero_()
    speed = torch.logspace(-4, -2, len(net.dt_bias))
    net.dt_bias.copy_(speed.expm1().log())


@torch.no_grad()
def copy_neighbours(model):
    """The first layer, if linear, writes the neighbours that it finds.

    Every token gets the same part `always`, which holds the layer's output
    gates open: at random they would scramble what is read. For the embedding
    it is one more dimension that says nothing.
    """
    if model.layers[0].full:
        return
    table, net = model.embed_tokens.weight, model.layers[0].linear_attn
    always = torch.nn.functional.normalize(torch.randn(table.shape[1]), dim=0)
    table += 0.3 * table.norm(dim=1).mean() * always
    net.in_proj_z.weight.mul_(0.3).add_(0.6 * always)
    values = net.in_proj_qkv.weight[-net.value_dim :]
    net.out_proj.weight.copy_(0.2 * values.T)
