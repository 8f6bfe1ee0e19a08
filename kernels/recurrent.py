"""The recurrent kernel: one token after another, the table in registers.

It serves decoding and the few tokens of a speculative check. The table S
is by far the largest thing that a step touches (64 KiB a head at 128 x 128,
against less than 1 KiB of q, k, v in bf16), so the kernel reads it once,
keeps it in registers while it goes over all tokens, and writes it once.
Whatever else a token needs, gates and unit lengths, is computed on the way:
a kernel of its own would cost a launch and a trip through memory.

A column of S never meets another: decay, prediction, write and read treat
each by itself. So the columns are cut into blocks, and each block of each
head of each sequence is one program. Rows can't be cut: the prediction sums
over them.
"""

import triton
import triton.language as tl


@triton.jit
def unit_factor(x, axis: tl.constexpr):
    """1 / |x| along an axis, with 1e-6 inside the root as in `l2norm`."""
    return tl.rsqrt(tl.sum(x * x, axis=axis) + 1e-6)


@triton.jit
def own_part(sequences, Hv, dv, BV: tl.constexpr):
    """What this program works on, of a grid of N x Hv x blocks of columns.

    Returns n, the sequence; its row, first token and length; the value head;
    and e [BV], the columns. Programs that share a table are neighbours.
    """
    program, blocks = tl.program_id(0), tl.cdiv(dv, BV)
    head, n = program // blocks % Hv, (program // blocks // Hv).to(tl.int64)
    row = tl.load(sequences + n * 4).to(tl.int64)
    first = tl.load(sequences + n * 4 + 1).to(tl.int64)
    length = tl.load(sequences + n * 4 + 2)
    e = program % blocks * BV + tl.arange(0, BV)
    return n, row, first, length, head, e


@triton.jit(do_not_specialize=["g_row", "beta_row", "out_row"])
def recurrent_kernel(
    q, k, v, g, beta, out,
    initial, final, tables, sequences, scale,
    q_row, q_token, k_row, k_token, v_row, v_token,
    g_row, g_token, beta_row, beta_token, out_row,
    Hk, Hv, dk, dv,
    NORM: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """All tokens of one sequence, for BV columns of one head's table.

    q, k, v, g, beta, out point at [B, T, heads, size] with the strides of
    row and token given. initial and final [N, Hv, dk, dv] are the tables
    before (None: zeros) and after, `tables` [B, T, Hv, dk, dv] those after
    each token (None: they aren't kept). `sequences` [N, 4] holds row, first
    token and length of each sequence. BK and BV are powers of two; BK covers
    dk. Strides that follow T are not specialised: one compilation serves
    every T.
    """
    n, row, first, length, head, e = own_part(sequences, Hv, dv, BV)

    d = tl.arange(0, BK)
    d_ok, e_ok = d < dk, e < dv
    tile = d[:, None] * dv + e[None, :]
    tile_ok = d_ok[:, None] & e_ok[None, :]
    S = tl.zeros([BK, BV], tl.float32)
    if initial is not None:
        S = tl.load(initial + (n * Hv + head) * dk * dv + tile, tile_ok, 0.0)

    key_head = head // (Hv // Hk)
    for t in range(0, length):
        at = first + t
        q_at = q + row * q_row + at * q_token + key_head * dk + d
        k_at = k + row * k_row + at * k_token + key_head * dk + d
        v_at = v + row * v_row + at * v_token + head * dv + e
        query = tl.load(q_at, d_ok, 0.0).to(tl.float32)
        key = tl.load(k_at, d_ok, 0.0).to(tl.float32)
        value = tl.load(v_at, e_ok, 0.0).to(tl.float32)
        gate = tl.load(g + row * g_row + at * g_token + head)
        strength = tl.load(beta + row * beta_row + at * beta_token + head)
        q_size, k_size = scale, 1.0
        if NORM:
            q_size *= unit_factor(query, 0)
            k_size *= unit_factor(key, 0)

        S *= tl.exp(gate.to(tl.float32))
        predicted = tl.sum(key[:, None] * S, axis=0) * k_size
        change = strength.to(tl.float32) * (value - predicted)
        S += key[:, None] * (change * k_size)[None, :]
        read = tl.sum(query[:, None] * S, axis=0) * q_size

        token = row * out_row + at
        tl.store(out + (token * Hv + head) * dv + e, read, e_ok)
        if tables is not None:
            after = tables + (token * Hv + head) * dk * dv + tile
            tl.store(after, S, tile_ok)
    tl.store(final + (n * Hv + head) * dk * dv + tile, S, tile_ok)
