"""Rotary position embedding: a score that depends on distance alone.

Source: Su et al. 2021 (arXiv:2104.09864); half-split pairs and partial
rotation as in transformers' Qwen3.5. For text the three position axes of
its "mrope" are equal, which makes it this plain form.
"""

import torch


def rope_tables(positions, rotary_dim, theta):
    """positions [B, T] -> cos, sin, each [B, T, rotary_dim / 2] in fp32.

    Pair i turns by `position * theta ** (-2 i / rotary_dim)` radians.
    """
    pairs = torch.arange(0, rotary_dim, 2, device=positions.device)
    frequency = theta ** -(pairs.float() / rotary_dim)
    angle = positions.float()[..., None] * frequency
    return angle.cos(), angle.sin()


def apply_rope(x, cos, sin):
    """Turn the first `rotary_dim` dimensions of x [B, T, heads, D].

    cos, sin [B, T, rotary_dim / 2]. Pair i is made of dimensions i and
    i + rotary_dim / 2; the other dimensions pass unchanged.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, :, None].to(x.dtype), sin[:, :, None].to(x.dtype)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
