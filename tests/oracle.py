"""The gated delta rule in float64, written from its formula alone.

    S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - k_t^T exp(g_t) S_{t-1}))^T
    o_t = S_t^T q_t / sqrt(dk)

with k and q of unit length. One batch row and one value head at a time.
"""

import numpy as np
import torch


def oracle_rule(q, k, v, g, beta, S=None):
    """The arguments of `delta_rule` -> (out, S), both float64."""
    q, k, v, g, beta = (
        x.detach().double().numpy() for x in (q, k, v, g, beta)
    )
    B, T, Hk, dk = k.shape
    Hv, dv = v.shape[2:]
    out, final = np.zeros((B, T, Hv, dv)), np.zeros((B, Hv, dk, dv))
    if S is not None:
        final[:] = S.detach().double().numpy()
    for b in range(B):
        for j in range(Hv):
            key_head = j * Hk // Hv
            table = final[b, j]
            for t in range(T):
                query = unit(q[b, t, key_head]) / dk**0.5
                key = unit(k[b, t, key_head])
                table = np.exp(g[b, t, j]) * table
                error = v[b, t, j] - key @ table
                table = table + np.outer(key, beta[b, t, j] * error)
                out[b, t, j] = query @ table
            final[b, j] = table
    return torch.from_numpy(out), torch.from_numpy(final)


def unit(x):
    return x / np.sqrt(np.sum(x * x) + 1e-6)
