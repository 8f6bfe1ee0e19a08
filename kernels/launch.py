"""From tensors to grids: how each kernel is launched, and how often.

The functions take arguments that `check` has seen.
"""

from functools import lru_cache

import torch

from kernels.checks import interpreting
from kernels.sizes import power_of_two, recurrent_sizes

_launched = 0


def launches():
    """How many kernels this process has launched so far."""
    return _launched


def _launch(kernel, grid, *arguments, **options):
    global _launched
    # the device of the tensors, not the current one; fused multiply-adds
    # are asked for, since Triton's default differs between versions
    with torch.cuda.device_of(arguments[0]):
        kernel[grid](*arguments, enable_fp_fusion=True, **options)
    _launched += 1


@lru_cache(maxsize=64)
def tables(B, T, ends, C, device):
    """Where sequences and chunks lie -> two int32 tables for the kernels.

    [N, 4]: row, first token, length and first chunk of each sequence;
    [chunks, 3]: row, first token and length of each chunk. `ends`, a tuple
    0, ..., T, packs N sequences in one row; None: each row is one. Kept,
    since all layers of a model ask for the same.
    """
    sequences, chunks = [], []
    spans = [(b, 0, T) for b in range(B)]
    if ends is not None:
        spans = [(0, *span) for span in zip(ends, ends[1:])]
    for row, first, end in spans:
        sequences.append((row, first, end - first, len(chunks)))
        for start in range(first, end, C):
            chunks.append((row, start, min(C, end - start)))
    return tuple(
        torch.tensor(table, dtype=torch.int32, device=device)
        for table in (sequences, chunks)
    )


def _tokens(x):
    """x [B, T, ...], or a copy of it, whose tokens are whole pieces.

    Kernels take any strides of row and token, so that a slice of a
    projection's output is read where it is.
    """
    return x if x[0, 0].is_contiguous() else x.contiguous()


def _strides(*tensors):
    return [s for x in tensors for s in x.stride()[:2]]


def launch_recurrent(q, k, v, g, beta, scale, S, norm, spans, every=False):
    """-> out [B, T, Hv, dv], final S, with `every` the S after each token.

    `spans` are the `tables`; S is None or [N, Hv, dk, dv].
    """
    from kernels.recurrent import recurrent_kernel

    q, k, v, g, beta = (_tokens(x) for x in (q, k, v, g, beta))
    (B, T, Hk, dk), (Hv, dv), N = k.shape, v.shape[2:], len(spans[0])
    sizes = recurrent_sizes(dk, dv)
    if interpreting():  # a program costs time there, and no registers
        sizes["BV"] = min(64, power_of_two(dv))
    out = torch.empty(B, T, Hv, dv, dtype=v.dtype, device=v.device)
    place = {"dtype": torch.float32, "device": v.device}
    final = torch.empty(N, Hv, dk, dv, **place)
    kept = torch.empty(B, T, Hv, dk, dv, **place) if every else None
    grid = (N * Hv * -(-dv // sizes["BV"]),)
    _launch(
        recurrent_kernel, grid, q, k, v, g, beta, out,
        _table(S), final, kept, spans[0], scale,
        *_strides(q, k, v, g, beta), T, Hk, Hv, dk, dv,
        NORM=norm, **sizes,
    )  # fmt: skip
    return out, final, kept


def launch_local(q, k, g, beta, scale, norm, spans, sizes):
    """-> solve, scores, factors, left (see `chunk_local_kernel`)."""
    from kernels.chunk import chunk_local_kernel

    q, k, g, beta = (_tokens(x) for x in (q, k, g, beta))
    (Hk, dk), Hv, C, chunks = k.shape[2:], g.shape[2], sizes["C"], spans[1]
    dot = _dot_type(q.dtype)
    place = {"dtype": torch.float32, "device": q.device}
    solve = torch.empty(len(chunks), Hv, C, C, dtype=dot, device=q.device)
    scores = torch.empty_like(solve)
    factors = torch.empty(len(chunks), Hv, 4, C, **place)
    left = torch.empty(len(chunks), Hv, **place)
    _launch(
        chunk_local_kernel, (len(chunks), Hv), q, k, g, beta,
        solve, scores, factors, left, chunks, scale,
        *_strides(q, k, g, beta), Hk, Hv, dk,
        NORM=norm, DOT=triton_type(dot), **sizes,
    )  # fmt: skip
    return solve, scores, factors, left


def launch_state(q, k, v, local, S, spans, sizes):
    """`launch_local`'s results -> out [B, T, Hv, dv], final S."""
    from kernels.chunk import chunk_state_kernel

    q, k, v = (_tokens(x) for x in (q, k, v))
    (B, T, Hk, dk), (Hv, dv), N = k.shape, v.shape[2:], len(spans[0])
    out = torch.empty(B, T, Hv, dv, dtype=v.dtype, device=v.device)
    shape = N, Hv, dk, dv
    final = torch.empty(shape, dtype=torch.float32, device=v.device)
    grid = (N * Hv * -(-dv // sizes["BV"]),)
    _launch(
        chunk_state_kernel, grid, q, k, v, out, *local,
        _table(S), final, spans[0], *_strides(q, k, v), T, Hk, Hv, dk, dv,
        DOT=triton_type(local[0].dtype), **sizes,
    )  # fmt: skip
    return out, final


def _table(S):
    return None if S is None else S.float().contiguous()


def _dot_type(dtype):
    """The type that tiles are multiplied in.

    The interpreter keeps bf16 as integers and multiplies those.
    """
    bf16 = dtype == torch.bfloat16
    return torch.float32 if bf16 and interpreting() else dtype


def triton_type(dtype):
    """torch.float16 -> tl.float16, and so on."""
    import triton.language as tl

    return getattr(tl, str(dtype).removeprefix("torch."))
