"""Gated softmax attention: the layer whose memory grows.

Source: Vaswani et al. 2017 (arXiv:1706.03762), grouped heads of Ainslie
et al. 2023 (arXiv:2305.13245), the output gate of Qiu et al. 2025
(arXiv:2505.06708); the layout is that of transformers' Qwen3.5.
"""

import torch
from torch import nn
from torch.nn import functional as F

from qwen.mlp import Linear
from qwen.norm import RMSNorm
from qwen.rope import apply_rope


def causal_mask(new, past=0, real=None, device=None):
    """Which columns each new token may read: bool [B or 1, 1, new, past+new].

    Token i stands in column `past + i` and reads the columns up to its
    own. `real` [B, past + new] marks the columns that are no padding; a
    pad reads itself, so that no row is empty and none turns into NaN.
    """
    columns = torch.arange(past + new, device=device)
    own = columns[past:, None]
    allowed = (columns <= own)[None, None]
    if real is not None:
        allowed = allowed & real[:, None, None] | (columns == own)
    return allowed


class Attention(nn.Module):
    """x [B, T, H] -> [B, T, H], each token reading those before it.

    `cos`, `sin` [B, T, rotary_dim / 2] hold the tokens' positions,
    `state` (an AttentionState) the keys and values of earlier calls, and
    `mask` [B, past + T] marks real columns; None means that all are.
    Query head j reads key head `j // (heads / kv_heads)`.
    """

    def __init__(self, config):
        super().__init__()
        c, self.head_dim = config, config.head_dim
        kv = c.num_key_value_heads * c.head_dim
        q = c.num_attention_heads * c.head_dim
        # per head: head_dim rows of query, then head_dim rows of gate
        self.q_proj = Linear(c.hidden_size, 2 * q)
        self.k_proj = Linear(c.hidden_size, kv)
        self.v_proj = Linear(c.hidden_size, kv)
        self.o_proj = Linear(q, c.hidden_size)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x, cos, sin, state=None, mask=None):
        d = self.head_dim
        q, gate = self.q_proj(x).unflatten(-1, (-1, 2 * d)).split(d, dim=-1)
        k = self.k_proj(x).unflatten(-1, (-1, d))
        v = self.v_proj(x).unflatten(-1, (-1, d)).transpose(1, 2)
        q = apply_rope(self.q_norm(q), cos, sin).transpose(1, 2)
        k = apply_rope(self.k_norm(k), cos, sin).transpose(1, 2)
        if state is not None:
            k, v = state.append(k, v)
        new, past = q.shape[2], k.shape[2] - q.shape[2]
        plain = mask is None and past == 0
        allowed = None if plain else causal_mask(new, past, mask, x.device)
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=allowed,
            is_causal=plain,
            enable_gqa=True,
        )
        out = out.transpose(1, 2) * torch.sigmoid(gate)
        return self.o_proj(out.flatten(-2))
