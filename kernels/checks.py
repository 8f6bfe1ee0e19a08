"""What is asked before a kernel is launched: does it fit, can it run here.

A kernel gets addresses. If a shape does not fit it reads what lies beside
a tensor, and says nothing.
"""

import importlib.util

import torch

DTYPES = torch.float32, torch.float16, torch.bfloat16
LARGEST = 256  # dk and dv: a tile of this many rows still fits


def check(q, k, v, g, beta, initial_state=None, cu_seqlens=None):
    """Raise a ValueError that names the first argument that does not fit.

    Returns the ends of packed sequences as a tuple, None without them.
    (Reading cu_seqlens waits for a GPU that it lies on; on the CPU it is
    free.)
    """
    for name, x in ("k", k), ("v", v):
        if x.dim() != 4:
            raise ValueError(f"{name} is {list(x.shape)}, not [B, T, H, size]")
    B, T, Hk, dk = k.shape
    Hv, dv = v.shape[2:]
    if Hk == 0 or Hv % Hk:
        raise ValueError(f"v has {Hv} heads, no multiple of k's {Hk}")
    ends, N = None, B
    if cu_seqlens is not None:
        ends = _ends(cu_seqlens, B, T)
        N = len(ends) - 1
    want = {"q": (q, (B, T, Hk, dk)), "v": (v, (B, T, Hv, dv))}
    want |= {"k": (k, k.shape), "g": (g, (B, T, Hv))}
    want |= {"beta": (beta, (B, T, Hv))}
    if initial_state is not None:
        want["initial_state"] = initial_state, (N, Hv, dk, dv)
    for name, (x, shape) in want.items():
        if x.shape != shape:
            raise ValueError(f"{name} is {list(x.shape)}, not {list(shape)}")
        if x.device != v.device:
            raise ValueError(f"{name} is on {x.device}, v on {v.device}")
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} is {x.dtype}, not one of {DTYPES}")
        if name in "qk" and x.dtype != v.dtype:
            raise ValueError(f"{name} is {x.dtype}, v is {v.dtype}")
    return ends


def _ends(cu_seqlens, B, T):
    """cu_seqlens [N + 1] -> a tuple 0, ..., T that never falls."""
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise ValueError(
            f"cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}, "
            "not int32 or int64 [N + 1]"
        )
    if B != 1:
        raise ValueError(f"cu_seqlens packs one row, but there are {B}")
    ends = cu_seqlens.tolist()
    if not ends or ends[0] != 0 or ends[-1] != T or ends != sorted(ends):
        raise ValueError(f"cu_seqlens must rise from 0 to {T}, not {ends}")
    return tuple(ends)


def interpreting():
    """Does Triton run kernels in Python, on the CPU?

    It decided that when it was imported, from TRITON_INTERPRET; a variable
    that is set later changes nothing.
    """
    import triton

    return not isinstance(triton.language.sum, triton.JITFunction)


def capability(device):
    """(major, minor) of a GPU; the interpreter stands for (9, 0)."""
    if interpreting():
        return 9, 0
    return torch.cuda.get_device_capability(device)


def why_not(tensors):
    """Why no kernel can run on these (q, k, v, ...), None if one can."""
    q, _, v = tensors[:3]
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if q.device.type != "cuda" and not interpreting():
        return f"the tensors are on {q.device}, not on a CUDA GPU"
    if capability(q.device) < (7, 5):
        return "the GPU is older than compute capability 7.5"
    bf16 = any(x.dtype == torch.bfloat16 for x in tensors)
    if bf16 and capability(q.device) < (8, 0):
        return "below compute capability 8.0 there is no bf16"
    if max(q.shape[-1], v.shape[-1]) > LARGEST:
        return f"a head is larger than {LARGEST}"
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    parts = map(torch.autograd.forward_ad.unpack_dual, tensors)
    if wanted or any(tangent is not None for _, tangent in parts):
        return "a gradient is wanted, and the kernels have none"
    return None
