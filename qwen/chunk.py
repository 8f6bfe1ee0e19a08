"""The delta rule in chunks: a loop over tokens becomes matrix products.

Source: Yang et al. 2024 (arXiv:2406.06484) for the form without gates,
Yang, Kautz & Hatamizadeh 2024 (arXiv:2412.06464) with them.
"""

import torch
from torch.nn import functional as F

from qwen.deltanet import delta_rule, prepare


def decay_matrix(G):
    """G [..., C], the cumulative log decay -> [..., C, C].

    Entry (i, j) is exp(G_i - G_j) for j <= i: what is left at token i of
    a write at token j. Above the diagonal the difference is positive and
    exp may overflow, so the mask comes first.
    """
    D = G[..., :, None] - G[..., None, :]
    future = torch.ones_like(D, dtype=torch.bool).triu(1)
    return D.masked_fill(future, -torch.inf).exp()


def chunked_delta_rule(q, k, v, g, beta, S=None, chunk_size=64):
    """`delta_rule` with the same arguments and results, in chunks.

    Inside a chunk the writes U solve (I + L) U = beta (V - decayed K S),
    where L is strictly lower triangular; only S passes from chunk to
    chunk. g below -100 counts as -100: both leave nothing in fp32.
    """
    (T, _, dv), dtype = v.shape[1:], v.dtype
    q, k, v, g, beta, S = prepare(q, k, v, g, beta, S)
    if T == 0:
        return v.to(dtype), S
    C = min(chunk_size, T)
    # [B, T, H, ...] -> [B, H, chunks, C, ...]; a pad decays and writes nothing
    q, k, v, g, beta = (
        F.pad(x, (0, 0) * (x.dim() - 2) + (0, -T % C))
        .unflatten(1, (-1, C))
        .movedim(3, 1)
        for x in (q, k, v, g, beta)
    )
    G = g.clamp(min=-100).cumsum(-1)
    D = decay_matrix(G)
    kept = G.exp()[..., None]
    L = (beta[..., None] * (k @ k.mT) * D).tril(-1)
    right = beta[..., None] * torch.cat([v, kept * k], dim=-1)
    U, W = torch.linalg.solve_triangular(
        L, right, upper=False, unitriangular=True
    ).split([dv, k.shape[-1]], dim=-1)
    A = (q @ k.mT) * D
    q_in = kept * q
    k_out = (G[..., -1:] - G).exp()[..., None] * k
    left = kept[..., -1:, :]
    reads = []
    for n in range(U.shape[2]):
        writes = U[:, :, n] - W[:, :, n] @ S
        reads.append(q_in[:, :, n] @ S + A[:, :, n] @ writes)
        S = left[:, :, n] * S + k_out[:, :, n].mT @ writes
    out = torch.cat(reads, dim=2)[:, :, :T].transpose(1, 2)
    return out.to(dtype), S


def auto_rule(q, k, v, g, beta, S=None):
    """The loop for a few tokens, chunks for more; arguments of both."""
    rule = delta_rule if v.shape[1] <= 2 else chunked_delta_rule
    return rule(q, k, v, g, beta, S)
