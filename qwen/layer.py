"""One layer: a mixer that looks back, then an MLP that does not.

Source: transformers' Qwen3.5.
"""

from torch import nn

from qwen.attention import Attention
from qwen.chunk import auto_rule
from qwen.deltanet import GatedDeltaNet
from qwen.mlp import MLP
from qwen.norm import RMSNorm


class DecoderLayer(nn.Module):
    """x [B, T, H] -> [B, T, H]: x + mixer(norm(x)), then x + mlp(norm(x)).

    `kind` is "full_attention" or "linear_attention"; `cos`, `sin`,
    `state` and `mask` are the mixer's (see Attention, GatedDeltaNet).
    """

    def __init__(self, config, kind):
        super().__init__()
        c = config
        self.full = kind == "full_attention"
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        if self.full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
            self.linear_attn.rule = auto_rule
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)

    def forward(self, x, cos, sin, state=None, mask=None):
        h = self.input_layernorm(x)
        if self.full:
            x = x + self.self_attn(h, cos, sin, state, mask)
        else:
            x = x + self.linear_attn(h, state, mask)
        return x + self.mlp(self.post_attention_layernorm(x))
