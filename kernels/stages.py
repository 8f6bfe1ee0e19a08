"""The same stages in PyTorch: what the kernels are checked against.

And what runs in their place where they can't: this form needs no GPU, and
it has gradients.
"""

import torch
from torch.nn import functional as F

from qwen.chunk import decay_matrix


def unit_factors(x):
    """x [..., D] -> [..., 1]: 1 / |x|, as `l2norm` has it."""
    return torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def local_stage(q, k, g, beta, scale, norm):
    """What `chunk_local_kernel` computes, for [..., C, dk] and [..., C].

    Returns solve, scores [..., C, C], factors [..., 4, C], left [...].
    """
    q_size = scale * unit_factors(q) if norm else scale + 0 * q[..., :1]
    k_size = unit_factors(k) if norm else 1 + 0 * k[..., :1]
    decay = decay_matrix(g)
    L = (k @ k.mT) * decay * (beta[..., None] * k_size) * k_size.mT
    solve = torch.linalg.solve_triangular(
        L.tril(-1), torch.diag_embed(beta), upper=False, unitriangular=True
    )
    scores = (q @ k.mT) * decay * q_size * k_size.mT
    kept, to_end = g.cumsum(-1).exp(), decay[..., -1, :]
    q_size, k_size = q_size[..., 0], k_size[..., 0]
    factors = [k_size, kept, to_end, q_size * kept]
    return solve, scores, torch.stack(factors, dim=-2), kept[..., -1]


def state_stage(q, k, v, solve, scores, factors, left, S, dot=torch.matmul):
    """What `chunk_state_kernel` computes, for [B, H, chunks, C, ...].

    Returns out [B, H, chunks, C, dv] and the new S [B, H, dk, dv]. `dot`
    may be a product that rounds as some hardware does.
    """
    reads = []
    for n in range(v.shape[2]):
        k_size, kept, to_end, q_size = factors[:, :, n, :, :, None].unbind(2)
        wrong = v[:, :, n] - dot(k[:, :, n], S) * k_size * kept
        writes = dot(solve[:, :, n], wrong)
        read = dot(q[:, :, n], S) * q_size + dot(scores[:, :, n], writes)
        S = left[:, :, n, None, None] * S
        S = S + dot(k[:, :, n].mT, writes * k_size * to_end)
        reads.append(read)
    return torch.stack(reads, dim=2), S


def in_chunks(x, C):
    """x [B, T, H, ...] -> [B, H, chunks, C, ...] in fp32, zeros behind T."""
    pad = (0, 0) * (x.dim() - 2) + (0, -x.shape[1] % C)
    return F.pad(x.float(), pad).unflatten(1, (-1, C)).movedim(3, 1)


def torch_rule(q, k, v, g, beta, scale, S, norm, ends=None, C=64):
    """The whole rule: arguments as the launchers have them, S or None.

    Returns out [B, T, Hv, dv] in v's type and the new S, fp32.
    """
    (Hk, dk), (B, T, Hv, dv) = k.shape[2:], v.shape
    N = B if ends is None else len(ends) - 1
    S = v.new_zeros(N, Hv, dk, dv) if S is None else S
    S = S.float()
    if ends is not None:
        outs, states = [v[:, :0]], [S[:0]]
        for n, (a, b) in enumerate(zip(ends, ends[1:])):
            piece = (x[:, a:b] for x in (q, k, v, g, beta))
            out, left = torch_rule(*piece, scale, S[n : n + 1], norm)
            outs.append(out)
            states.append(left)
        return torch.cat(outs, dim=1), torch.cat(states)
    if v.numel() == 0:
        return v.clone(), S.clone()
    q, k = (x.repeat_interleave(Hv // Hk, dim=2) for x in (q, k))
    q, k, values, g, beta = (
        in_chunks(x, min(C, T)) for x in (q, k, v, g, beta)
    )
    local = local_stage(q, k, g, beta, scale, norm)
    out, S = state_stage(q, k, values, *local, S)
    return out.flatten(2, 3)[:, :, :T].transpose(1, 2).to(v.dtype), S
