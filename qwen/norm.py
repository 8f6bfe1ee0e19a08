"""Normalisation: a vector's length is set, its direction kept.

Source: Zhang & Sennrich 2019 (arXiv:1910.07467) for RMSNorm; the gated
form and the 1 + w are those of transformers' Qwen3.5.
"""

import torch
from torch import nn
from torch.nn import functional as F


def rms(x, eps):
    """x [..., D] in fp32, divided by its root mean square."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """x [..., D] -> [..., D]: unit root mean square, times 1 + weight.

    `weight` [D] is centred on zero: zeros leave the gain at one.
    Computed in fp32, returned in x's type.
    """

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return (rms(x, self.eps) * (1 + self.weight.float())).to(x.dtype)


class GatedRMSNorm(nn.Module):
    """x, z [..., D] -> [..., D]: normalise x, times weight, times silu(z).

    `weight` [D] is the gain itself, not 1 + weight: zeros silence the
    output. Computed in fp32, returned in z's type.
    """

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x, z):
        x = rms(x, self.eps) * self.weight.float()
        return (x * F.silu(z.float())).to(z.dtype)


def l2norm(x, eps=1e-6):
    """x [..., D] -> [..., D] of length one, computed in fp32.

    eps stands inside the root, so that a zero vector stays zero and a
    tiny one stays short (not `x / max(|x|, eps)`).
    """
    y = x.float()
    y = y * torch.rsqrt(y.square().sum(-1, keepdim=True) + eps)
    return y.to(x.dtype)
