"""The gated delta rule on kernels, as other code calls it.

Signature, layouts and defaults are those of flash-linear-attention's
`chunk_gated_delta_rule` (Yang & Zhang 2024) and of transformers' hook.
"""

import warnings

import torch

from kernels.checks import capability, check, why_not
from kernels.launch import (
    launch_local,
    launch_recurrent,
    launch_state,
    tables,
)
from kernels.sizes import chunk_sizes
from kernels.stages import torch_rule


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    **kwargs,
):
    """The gated delta rule in chunks, for a prefill.

    q, k [B, T, Hk, dk], v [B, T, Hv, dv], all fp32, fp16 or bf16, with any
    strides; g (log decay) and beta [B, T, Hv]; value head j reads and
    writes with key head j // (Hv / Hk). `scale` of q is dk ** -0.5 by
    default. `cu_seqlens` [N + 1] (0, ..., T) packs N sequences in one row,
    empty ones too. `initial_state` [N, Hv, dk, dv] is never written; N is
    B without `cu_seqlens`. Other keywords are ignored, but `head_first`,
    another layout, is refused.

    Returns out [B, T, Hv, dv] in v's type and, if asked for, the final
    state [N, Hv, dk, dv] in fp32, else None. A ValueError names an argument
    that does not fit. Where no kernel can run, PyTorch computes the same,
    and one warning says why. Where the recurrent kernel has less to do, as
    below compute capability 8.0, it runs (see `chunk_sizes`).

    In fp16 the chunks' products read S and v - k S as fp16, which ends at
    65,504: beyond it they give inf or NaN. The recurrent kernel's sums are
    fp32.
    """
    return _rule(
        _chunked, q, k, v, g, beta, scale, initial_state,
        output_final_state, use_qk_l2norm_in_kernel, cu_seqlens, kwargs,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    **kwargs,
):
    """`chunk_gated_delta_rule` token by token, for a few of them."""
    return _rule(
        _recurrent, q, k, v, g, beta, scale, initial_state,
        output_final_state, use_qk_l2norm_in_kernel, cu_seqlens, kwargs,
    )  # fmt: skip


def recurrent_tables(q, k, v, g, beta, S=None):
    """The delta rule of chapter 6 that keeps the table after each token.

    Takes what `delta_rule` takes. Returns out [B, T, Hv, dv] in v's type
    and [B, T, Hv, dk, dv] fp32: what a speculative decoder rolls back to.
    """
    usable, _ = _checked(3, q, k, v, g, beta, S)
    (B, T, Hv, dv), dk = v.shape, k.shape[-1]
    if usable:
        spans = tables(B, T, None, 64, v.device)
        out, _, kept = launch_recurrent(
            q, k, v, g, beta, dk**-0.5, S, True, spans, every=True
        )
        return out, kept
    outs, kept = [v[:, :0]], [v.new_zeros(B, 0, Hv, dk, dv).float()]
    for t in range(T):
        piece = (x[:, t : t + 1] for x in (q, k, v, g, beta))
        out, S = torch_rule(*piece, dk**-0.5, S, True)
        outs.append(out)
        kept.append(S[:, None])
    return torch.cat(outs, dim=1), torch.cat(kept, dim=1)


def _rule(form, q, k, v, g, beta, scale, S, final, norm, cu_seqlens, other):
    if other.get("head_first"):
        raise ValueError("head_first is set, and heads come after tokens here")
    usable, ends = _checked(4, q, k, v, g, beta, S, cu_seqlens)
    scale = k.shape[-1] ** -0.5 if scale is None else float(scale)
    form = form if usable else torch_rule
    out, S = form(q, k, v, g, beta, scale, S, norm, ends)
    return out, S if final else None


def _checked(level, *arguments):
    """-> can kernels run, the ends of sequences; warns if they can't.

    The warning names the line `level` calls up, which is the user's.
    """
    ends = check(*arguments)
    reason = why_not([x for x in arguments[:6] if x is not None])
    if reason:
        text = f"{reason}: PyTorch runs in the kernels' place"
        warnings.warn(text, stacklevel=level)
    return reason is None and arguments[2].numel() > 0, ends


def _recurrent(q, k, v, g, beta, scale, S, norm, ends):
    spans = tables(*v.shape[:2], ends, 64, v.device)
    return launch_recurrent(q, k, v, g, beta, scale, S, norm, spans)[:2]


def _chunked(q, k, v, g, beta, scale, S, norm, ends):
    sizes = chunk_sizes(
        capability(q.device), q.dtype, k.shape[-1], v.shape[-1]
    )
    if sizes is None:
        return _recurrent(q, k, v, g, beta, scale, S, norm, ends)
    local_sizes, state_sizes = sizes
    spans = tables(*v.shape[:2], ends, local_sizes["C"], v.device)
    local = launch_local(q, k, g, beta, scale, norm, spans, local_sizes)
    return launch_state(q, k, v, local, S, spans, state_sizes)
