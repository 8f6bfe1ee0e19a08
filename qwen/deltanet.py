"""Gated DeltaNet: the layer whose memory is one table of fixed size.

Source: Yang, Kautz & Hatamizadeh 2024 (arXiv:2412.06464); the layout is
that of transformers' Qwen3.5.
"""

from math import log

import torch
from torch import nn
from torch.nn import functional as F

from qwen.mlp import Linear
from qwen.norm import GatedRMSNorm, l2norm


def prepare(q, k, v, g, beta, S=None):
    """What every form of the rule does first: check, normalise, pair heads.

    Takes the rule's arguments and returns them in fp32: q and k of unit
    length, q scaled by dk ** -0.5, both repeated so that value head j has
    key head `j // (Hv / Hk)`; S is zeros where it was None. Raises
    ValueError that names the argument whose shape does not fit.
    """
    for name, tensor in ("k", k), ("v", v):
        if tensor.dim() != 4:
            shape = tuple(tensor.shape)
            raise ValueError(f"{name} is {shape}, not [B, T, heads, size]")
    B, T, Hk, dk = k.shape
    Hv, dv = v.shape[2:]
    if Hv % Hk:
        raise ValueError(f"v has {Hv} heads, no multiple of k's {Hk}")
    want = {"q": (q, (B, T, Hk, dk)), "v": (v, (B, T, Hv, dv))}
    want |= {"g": (g, (B, T, Hv)), "beta": (beta, (B, T, Hv))}
    if S is not None:
        want["S"] = S, (B, Hv, dk, dv)
    for name, (tensor, shape) in want.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, not {shape}")
    q = l2norm(q.float()) * dk**-0.5
    k = l2norm(k.float())
    q, k = (x.repeat_interleave(Hv // Hk, dim=2) for x in (q, k))
    S = v.new_zeros(B, Hv, dk, dv, dtype=torch.float32) if S is None else S
    return q, k, v.float(), g.float(), beta.float(), S.float()


def delta_rule(q, k, v, g, beta, S=None):
    """The gated delta rule, one token at a time: the definition.

    q, k [B, T, Hk, dk] raw, v [B, T, Hv, dv], g [B, T, Hv] the log of
    the decay, beta [B, T, Hv] the strength of the write, S [B, Hv, dk,
    dv] fp32 the table left by earlier tokens (None: zeros). Returns
    (out [B, T, Hv, dv] in v's type, the new S); S itself is not written.
    Each token decays the table, predicts its value from it, writes the
    difference, and reads.
    """
    dtype = v.dtype
    q, k, v, g, beta, S = prepare(q, k, v, g, beta, S)
    reads = []
    for t in range(v.shape[1]):
        S = S * g[:, t, :, None, None].exp()
        predicted = (k[:, t, :, None] @ S)[:, :, 0]
        change = beta[:, t, :, None] * (v[:, t] - predicted)
        S = S + k[:, t, :, :, None] * change[:, :, None]
        reads.append((q[:, t, :, None] @ S)[:, :, 0])
    out = torch.stack(reads, dim=1) if reads else v
    return out.to(dtype), S


class ShortConv(nn.Module):
    """A causal depthwise convolution: each channel looks back a few tokens.

    x [B, T, C], window [B, width - 1, C] (the inputs before x; None: zeros)
    -> (y [B, T, C], the new window), all fp32. The last tap of `weight`
    [C, 1, width] multiplies the newest token. `counts` [B] says how many
    of x's tokens are real, pads standing last; the window ends there.
    """

    def __init__(self, channels, width):
        super().__init__()
        bound = width**-0.5
        start = torch.empty(channels, 1, width).uniform_(-bound, bound)
        self.weight = nn.Parameter(start)

    def forward(self, x, window=None, counts=None):
        (B, T, C), width = x.shape, self.weight.shape[-1]
        x = x.float()
        if window is None:
            window = x.new_zeros(B, width - 1, C)
        seen = torch.cat([window, x], dim=1)
        taps = self.weight.float()[:, 0].unbind(-1)
        y = torch.zeros_like(x)
        for j, tap in enumerate(taps):
            y += tap * seen[:, j : j + T]
        if counts is None:
            return y, seen[:, T:].clone()  # a view would keep all of seen
        ends = counts[:, None] + torch.arange(width - 1, device=x.device)
        return y, take_columns(seen, ends)


def take_columns(x, columns):
    """x [B, T, C], columns [B, N] -> [B, N, C]: row b's own columns."""
    return x.gather(1, columns[:, :, None].expand(-1, -1, x.shape[-1]))


class GatedDeltaNet(nn.Module):
    """x [B, T, H] -> [B, T, H] through a memory table for each head.

    `state` (a DeltaState) holds what earlier calls left, `mask` [B, past
    + T] marks real columns (None: all). A pad changes neither the table
    nor the convolution's window. `rule` is any form of the delta rule.
    """

    def __init__(self, config):
        super().__init__()
        c = config
        self.key_dim = c.linear_num_key_heads * c.linear_key_head_dim
        self.value_dim = c.linear_num_value_heads * c.linear_value_head_dim
        self.dk, self.dv = c.linear_key_head_dim, c.linear_value_head_dim
        heads, channels = c.linear_num_value_heads, 2 * self.key_dim
        channels += self.value_dim
        self.in_proj_qkv = Linear(c.hidden_size, channels)
        self.in_proj_z = Linear(c.hidden_size, self.value_dim)
        self.in_proj_b = Linear(c.hidden_size, heads)
        self.in_proj_a = Linear(c.hidden_size, heads)
        self.conv1d = ShortConv(channels, c.linear_conv_kernel_dim)
        # softplus(dt_bias) starts between 0.001 and 0.1, as in Mamba-2:
        # most heads forget slowly, and learn to forget faster
        rate = torch.empty(heads).uniform_(1, 16)
        step = torch.empty(heads).uniform_(log(0.001), log(0.1))
        if not step.is_meta:  # else only the shapes are wanted
            rate, step = rate.log(), step.exp().expm1().log()
        self.A_log, self.dt_bias = nn.Parameter(rate), nn.Parameter(step)
        self.norm = GatedRMSNorm(self.dv, c.rms_norm_eps)
        self.out_proj = Linear(self.value_dim, c.hidden_size)
        self.rule = delta_rule

    def gates(self, x):
        """x [B, T, H] -> g (log decay, <= 0), beta (0..1), [B, T, Hv]."""
        a, b = self.in_proj_a(x).float(), self.in_proj_b(x).float()
        speed = F.softplus(a + self.dt_bias.float())
        return -self.A_log.float().exp() * speed, torch.sigmoid(b)

    def forward(self, x, state=None, mask=None):
        order = counts = None
        if mask is not None:  # real tokens first: pads then come too late
            real = mask[:, mask.shape[1] - x.shape[1] :]
            order = real.int().argsort(dim=1, descending=True, stable=True)
            counts = real.sum(1)
            x = take_columns(x, order)
        g, beta = self.gates(x)
        if mask is not None:
            pad = ~real.gather(1, order)[:, :, None]
            g, beta = g.masked_fill(pad, 0), beta.masked_fill(pad, 0)
        conv, S = (None, None) if state is None else (state.conv, state.S)
        mixed, conv = self.conv1d(self.in_proj_qkv(x), conv, counts)
        q, k, v = F.silu(mixed).split(
            [self.key_dim, self.key_dim, self.value_dim], dim=-1
        )
        q, k = (y.unflatten(-1, (-1, self.dk)) for y in (q, k))
        v = v.unflatten(-1, (-1, self.dv))
        out, S = self.rule(q, k, v, g, beta, S)
        if state is not None:
            state.conv, state.S = conv, S
        z = self.in_proj_z(x).unflatten(-1, (-1, self.dv))
        y = self.out_proj(self.norm(out, z).flatten(-2))
        return y if order is None else take_columns(y, order.argsort(dim=1))
