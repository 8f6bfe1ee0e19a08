"""How fast the kernels are, and how fast they could be.

    python -m kernels.bench

On a CUDA GPU: every size is first checked against the recurrence in
float64, then timed (medians of `triton.testing.do_bench`) beside the
PyTorch forms and, where it is installed, flash-linear-attention. Beside
each time stands the share of it that the chip needs at the least: the
larger of counted bytes over the bandwidth and counted operations over the
speed of products, both measured here on a large copy and a large product.
The last line is the same as JSON. Without a GPU only the counts are
printed. A run takes a few minutes.
"""

import argparse
import importlib.util
import json
import sys
from itertools import chain

import torch

from kernels.checks import capability, why_not
from kernels.launch import launch_local, launch_state, launches, tables
from kernels.rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)
from kernels.sizes import chunk_sizes
from qwen.chunk import chunked_delta_rule
from qwen.deltanet import delta_rule

LENGTHS = 4096, 8192, 16384, 32768
HEADS = (16, 16), (16, 32)  # key heads, value heads
DIM, CHUNK = 128, 64
BATCHES = 1, 16, 64  # of a decoding step


def counted(T, Hk, Hv, B=1, D=DIM, C=CHUNK):
    """What a prefill has to do: operations, bytes, and bytes of our tiles.

    In chunks, a token and head: four products with C tokens (K K^T, Q K^T,
    the solved writes, the scores' reads), three with S, and the inverse.
    Bytes: q, k, v, out of two each, g and beta of four. The tiles are what
    one of our kernels leaves for the other.
    """
    tokens = B * T * Hv
    chunked = tokens * (4 * 2 * C * D + 3 * 2 * D * D + C * C // 3)
    recurrence = tokens * 7 * D * D
    least = B * T * (Hk * 2 * D * 2 + Hv * (2 * D * 2 + 8))
    tiles = 2 * tokens * (2 * C * 2 + 16)
    return {
        "operations": chunked,
        "recurrence": recurrence,
        "bytes": least,
        "tiles": tiles,
    }


def inputs(B, T, Hk, Hv, dtype, device="cuda", D=DIM):
    """Random q, k, v, g, beta as a model has them, and S."""
    r = torch.Generator(device).manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=r, device=device)

    q, k, v = (normal(B, T, H, D).to(dtype) for H in (Hk, Hk, Hv))
    g = -torch.nn.functional.softplus(normal(B, T, Hv) - 3)
    return q, k, v, g, normal(B, T, Hv).sigmoid(), normal(B, Hv, D, D)


def recurrence64(q, k, v, g, beta, S):
    """The definition in float64 -> out, S."""
    q, k = (x.double() for x in (q, k))
    q, k = (x * (x.square().sum(-1, True) + 1e-6).rsqrt() for x in (q, k))
    group = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    v, decay, beta, S = v.double(), g.double().exp(), beta.double(), S.double()
    q, outs = q * q.shape[-1] ** -0.5, []
    for t in range(v.shape[1]):
        S = S * decay[:, t, :, None, None]
        seen = (k[:, t, :, None] @ S)[:, :, 0]
        change = beta[:, t, :, None] * (v[:, t] - seen)
        S = S + k[:, t, :, :, None] * change[:, :, None]
        outs.append((q[:, t, :, None] @ S)[:, :, 0])
    return torch.stack(outs, dim=1), S


def difference(got, want):
    return max(
        ((a.double() - b).norm() / b.norm()).item() for a, b in zip(got, want)
    )


def median(function):
    """Milliseconds of a call."""
    from triton.testing import do_bench

    return do_bench(function, warmup=25, rep=100, return_mode="median")


def times(ours, others):
    """Name -> milliseconds; None for a form of others that can't run."""
    found = {name: median(function) for name, function in ours.items()}
    for name, function in others.items():
        try:
            found[name] = median(function)
        except Exception as error:  # no memory, or a version that differs
            print(f"{name}: {str(error).splitlines()[:1]}", flush=True)
            found[name] = None
    return found


def peaks(dtype):
    """Bytes and operations a second that this GPU reaches."""
    x = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    bandwidth = 2 * x.nbytes / median(lambda: y.copy_(x)) * 1e3
    a = torch.randn(8192, 8192, device="cuda").to(dtype)
    return bandwidth, 2 * 8192**3 / median(lambda: a @ a) * 1e3


def our_forms(q, k, v, g, beta, S):
    """Name -> a call; the two kernels of a prefill also by themselves."""
    common = {"initial_state": S, "output_final_state": True}
    common["use_qk_l2norm_in_kernel"] = True
    args = q, k, v, g, beta
    forms = {
        "chunk": lambda: chunk_gated_delta_rule(*args, **common),
        "recurrent": lambda: fused_recurrent_gated_delta_rule(*args, **common),
    }
    dk, dv = k.shape[-1], v.shape[-1]
    sizes = chunk_sizes(capability(q.device), q.dtype, dk, dv)
    if sizes:
        spans = tables(*v.shape[:2], None, sizes[0]["C"], v.device)

        def local():
            scale = dk**-0.5
            return launch_local(q, k, g, beta, scale, True, spans, sizes[0])

        tiles = local()
        forms["local"] = local
        forms["state"] = lambda: launch_state(
            q, k, v, tiles, S, spans, sizes[1]
        )
    return forms


def other_forms(q, k, v, g, beta, S):
    """PyTorch's, and flash-linear-attention's if it is there."""
    args = q, k, v, g, beta, S
    forms = {"torch chunk": lambda: chunked_delta_rule(*args)}
    if v.shape[1] <= LENGTHS[0]:
        forms["torch loop"] = lambda: delta_rule(*args)
    if importlib.util.find_spec("fla"):
        from fla.ops import gated_delta_rule as fla

        forms["fla chunk"] = lambda: fla.chunk_gated_delta_rule(
            q, k, v, g, beta, initial_state=S, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        forms["fla recurrent"] = lambda: fla.fused_recurrent_gated_delta_rule(
            q, k, v, g, beta=beta, initial_state=S, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
    return forms


def checked(forms, args):
    """Errors of our two forms; RuntimeError if one is not right."""
    want, errors = recurrence64(*args), {}
    for name in ("chunk", "recurrent"):
        before = launches()
        errors[name] = difference(forms[name](), want)
        if errors[name] > 1e-2 or launches() == before:
            raise RuntimeError(f"{name}: error {errors[name]:.1e}")
    return errors


@torch.no_grad()
def prefill(dtype, speed):
    """Check and time every length and number of heads."""
    for T in LENGTHS:
        for Hk, Hv in HEADS:
            args = inputs(1, T, Hk, Hv, dtype)
            ours = our_forms(*args)
            row = {"T": T, "Hk": Hk, "Hv": Hv}
            row["errors"] = checked(ours, args)
            row["ms"] = times(ours, other_forms(*args))
            work = counted(T, Hk, Hv)
            row["floor_ms"] = 1e3 * max(
                work["bytes"] / speed[0], work["operations"] / speed[1]
            )
            yield row


@torch.no_grad()
def decode(dtype, speed):
    """One token for each of B sequences: the table is read and written."""
    for B in BATCHES:
        args = inputs(B, 1, 16, 32, dtype)
        ours = our_forms(*args)
        row = {"T": 1, "B": B, "Hk": 16, "Hv": 32}
        row["errors"] = checked(ours, args)
        others = other_forms(*args)
        row["ms"] = times(
            {"recurrent": ours["recurrent"]},
            {n: f for n, f in others.items() if "chunk" not in n},
        )
        row["floor_ms"] = 1e3 * 2 * args[-1].nbytes / speed[0]
        yield row


def show(row):
    sizes = " ".join(f"{k} {row[k]}" for k in ("B", "T", "Hv") if k in row)
    worst = max(row["errors"].values())
    print(f"{sizes}: error {worst:.1e}, floor {row['floor_ms']:.3f} ms")
    for name, ms in row["ms"].items():
        if ms is None:
            print(f"    {name:14} can't run")
            continue
        share = row["floor_ms"] / ms
        print(f"    {name:14} {ms:9.3f} ms  {share:6.1%} of the roofline")
    sys.stdout.flush()


def show_counts():
    print("Counted, a prefill with heads of 128 in bf16:")
    print("    T      Hv  Gflop  recurrence  MB  MB between our kernels")
    for T in LENGTHS:
        for Hk, Hv in HEADS:
            c = counted(T, Hk, Hv)
            print(
                f"{T:6} {Hv:6} {c['operations'] / 1e9:6.1f} "
                f"{c['recurrence'] / 1e9:11.1f} {c['bytes'] / 1e6:5.0f} "
                f"{c['tiles'] / 1e6:6.0f}"
            )


def main():
    description = "Check and time the kernels on a GPU."
    argparse.ArgumentParser(description=description).parse_args()
    show_counts()
    result = {"counted": counted(1, 16, 32)}
    if not torch.cuda.is_available():
        print("There is no CUDA GPU here: nothing was timed.")
        print(json.dumps(result))
        return
    chip = torch.cuda.get_device_capability()
    dtype = torch.bfloat16 if chip >= (8, 0) else torch.float16
    reason = why_not(inputs(1, 1, 16, 32, dtype))
    if reason:
        sys.exit(f"The kernels can't run: {reason}.")
    speed = peaks(dtype)
    result |= {"device": torch.cuda.get_device_name(), "chip": chip}
    result |= {"torch": torch.__version__, "bytes_per_s": speed[0]}
    result |= {"operations_per_s": speed[1], "type": str(dtype)}
    print(
        f"{result['device']}: {speed[0] / 1e12:.2f} TB/s, "
        f"{speed[1] / 1e12:.0f} TFLOP/s in {dtype}"
    )
    result["rows"] = []
    for row in chain(decode(dtype, speed), prefill(dtype, speed)):
        show(row)
        result["rows"].append(row)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
