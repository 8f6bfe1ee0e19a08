"""The delta rule in chunks: a loop over tokens becomes matrix products.

Source: Yang et al. 2024 (arXiv:2406.06484) for the form without gates,
Yang, Kautz & Hatamizadeh 2024 (arXiv:2412.06464) with them; the sums of
decays as in Dao & Gu 2024 (arXiv:2405.21060).
"""

import torch
from torch.nn import functional as F

from qwen.deltanet import delta_rule, prepare


def decay_matrix(g):
    """g [..., C], the log decay of each token -> [..., C, C].

    Entry (i, j) is exp(g_j+1 + ... + g_i) for j <= i: what is left at
    token i of a write at token j; above the diagonal it is 0. Each sum is
    taken by itself. As the difference of two running totals it would lose
    its digits behind a strong decay, be -inf - -inf behind a full one,
    and overflow exp above the diagonal.
    """
    steps = g[..., None].expand(*g.shape, g.shape[-1]).tril(-1)
    return steps.cumsum(-2).exp().tril()


def chunked_delta_rule(q, k, v, g, beta, S=None, chunk_size=64):
    """`delta_rule` with the same arguments and results, in chunks.

    Inside a chunk the writes solve (I + L) writes = beta (V - decayed K S),
    where L is strictly lower triangular: U - W S. Only S passes from chunk
    to chunk. Raises ValueError for a `chunk_size` below 1.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}")
    dtype = v.dtype
    q, k, v, g, beta, S = prepare(q, k, v, g, beta, S)
    T, dk, dv = v.shape[1], k.shape[-1], v.shape[-1]
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
    D = decay_matrix(g)
    kept = g.cumsum(-1).exp()[..., None]
    L = (beta[..., None] * (k @ k.mT) * D).tril(-1)
    right = beta[..., None] * torch.cat([v, kept * k], dim=-1)
    U, W = torch.linalg.solve_triangular(
        L, right, upper=False, unitriangular=True
    ).split([dv, dk], dim=-1)
    scores = (q @ k.mT) * D
    q_in = kept * q
    k_out = D[..., -1, :, None] * k
    left = kept[..., -1:, :]
    reads = []
    chunks = (x.unbind(2) for x in (U, W, q_in, scores, left, k_out))
    for u, w, q_n, scores_n, left_n, k_n in zip(*chunks, strict=True):
        writes = u - w @ S
        reads.append(q_n @ S + scores_n @ writes)
        S = left_n * S + k_n.mT @ writes
    out = torch.cat(reads, dim=2)[:, :, :T].transpose(1, 2)
    return out.to(dtype), S


def auto_rule(q, k, v, g, beta, S=None):
    """The loop for a few tokens, chunks for more; arguments of both."""
    rule = delta_rule if v.shape[1] <= 2 else chunked_delta_rule
    return rule(q, k, v, g, beta, S)
