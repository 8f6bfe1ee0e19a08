"""The chunked kernels: two of them, with one boundary.

In a chunk of C tokens the writes solve a triangular system, whose inverse
needs keys and gates only; the table S passes from chunk to chunk. So:

1. `chunk_local_kernel` computes whatever does not need S. Its programs, one
   for each chunk and head, know nothing of each other and all run at once.
2. `chunk_state_kernel` carries S from chunk to chunk, one program for some
   columns of one head's table, and writes the outputs on the way.

The boundary stands where work that waits for nothing ends and the chain
over the chunks begins. All that crosses it, a chunk and head, are two C x C
tiles and four factors a token. The outputs need no third kernel: they need
S before each chunk, which the second has in registers, and a third would
have to write it to memory, 64 KiB a chunk and head, and read it again.
"""

import triton
import triton.language as tl

from kernels.inverse import multiply, unit_lower_inverse
from kernels.recurrent import own_part


@triton.jit
def gate_sums(g):
    """g [C], log decays -> their running sum and their sum, in fp64.

    A gate below -128 leaves nothing: exp(-128) is 0 in fp32. Cutting it
    there changes no result, and -inf - -inf, which is NaN, can't arise.
    fp64, since what counts are differences: behind a strong decay the sums
    are large, and fp32 would have no digits left for the weak ones.
    """
    g = tl.where(g < -128.0, -128.0, g).to(tl.float64)
    return tl.cumsum(g, axis=0), tl.sum(g, axis=0)


@triton.jit
def decay_tile(total, C: tl.constexpr):
    """`gate_sums`'s running sum -> [C, C]: `decay_matrix` of chapter 8.

    Two fp32 numbers, high and low part, hold what one fp64 holds, and their
    differences are quick on any GPU. The mask comes before exp: above the
    diagonal exp may be inf, and inf times 0 is NaN.
    """
    high = total.to(tl.float32)
    low = (total - high.to(tl.float64)).to(tl.float32)
    i = tl.arange(0, C)
    sums = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    return tl.exp(tl.where(i[:, None] >= i[None, :], sums, float("-inf")))


@triton.jit(do_not_specialize=["g_row", "beta_row"])
def chunk_local_kernel(
    q, k, g, beta,
    solve, scores, factors, left, chunks, scale,
    q_row, q_token, k_row, k_token, g_row, g_token, beta_row, beta_token,
    Hk, Hv, dk,
    NORM: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """What one chunk and head can know without S.

    `chunks` [chunks, 3] holds row, first token and length of each chunk.
    solve, scores [chunks, Hv, C, C] in type DOT: (I + L)^-1 diag(beta), and
    decayed q k^T. factors [chunks, Hv, 4, C] fp32, for each token: 1 / |k|;
    the decay since the chunk began; the decay until it ends; and the first
    decay times scale / |q|. left [chunks, Hv] fp32 is what the chunk leaves
    of an older S. q and k stay as they are, and their lengths are divided
    out of the products, so that the tensor cores get exact numbers.
    Rows behind a short chunk's end are zeros and do nothing.
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(chunks + chunk * 3).to(tl.int64)
    first = tl.load(chunks + chunk * 3 + 1).to(tl.int64)
    length = tl.load(chunks + chunk * 3 + 2)

    i, d = tl.arange(0, C), tl.arange(0, BK)
    i_ok, token = i < length, first + i
    gate = tl.load(g + row * g_row + token * g_token + head, i_ok, 0.0)
    strength = beta + row * beta_row + token * beta_token + head
    strength = tl.load(strength, i_ok, 0.0).to(tl.float32)

    L, A = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    q_sum, k_sum = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    tile = head // (Hv // Hk) * dk + d[None, :]
    for start in range(0, dk, BK):  # BK of the dk numbers of a key
        tile_ok = i_ok[:, None] & (start + d < dk)[None, :]
        q_at = q + row * q_row + token[:, None] * q_token + tile + start
        k_at = k + row * k_row + token[:, None] * k_token + tile + start
        Q = tl.load(q_at, tile_ok, 0.0).to(DOT)
        K = tl.load(k_at, tile_ok, 0.0).to(DOT)
        A += multiply(Q, tl.trans(K))
        L += multiply(K, tl.trans(K))
        Q, K = Q.to(tl.float32), K.to(tl.float32)
        q_sum += tl.sum(Q * Q, axis=1)
        k_sum += tl.sum(K * K, axis=1)
    q_size = tl.full([C], scale, tl.float32)
    k_size = tl.full([C], 1.0, tl.float32)
    if NORM:
        q_size *= tl.rsqrt(q_sum + 1e-6)
        k_size *= tl.rsqrt(k_sum + 1e-6)

    total, last = gate_sums(gate.to(tl.float32))
    pair = chunk * Hv + head
    kept = tl.exp(total.to(tl.float32))
    to_end = tl.exp((last - total).to(tl.float32))
    vector = factors + pair * 4 * C + i
    tl.store(vector, k_size)
    tl.store(vector + C, kept)
    tl.store(vector + 2 * C, to_end)
    tl.store(vector + 3 * C, q_size * kept)
    tl.store(left + pair, tl.exp(last.to(tl.float32)))

    square = pair * C * C + i[:, None] * C + i[None, :]
    pairs = decay_tile(total, C) * k_size[None, :]
    A *= pairs * q_size[:, None]
    tl.store(scores + square, A.to(DOT))
    L *= pairs * (strength * k_size)[:, None]
    L = tl.where(i[:, None] > i[None, :], L, 0.0)
    X = unit_lower_inverse(L, C) * strength[None, :]
    tl.store(solve + square, X.to(DOT))


@triton.jit(do_not_specialize=["out_row"])
def chunk_state_kernel(
    q, k, v, out,
    solve, scores, factors, left, initial, final, sequences,
    q_row, q_token, k_row, k_token, v_row, v_token, out_row,
    Hk, Hv, dk, dv,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The chain over a sequence's chunks, for BV columns of a head's table.

    Five products a chunk, in fp32 sums: what the keys read, the solved
    writes, what the queries read of S and of the chunk's own writes, and
    the writes into S. `sequences` [N, 4] holds row, first token, length
    and first chunk of each sequence; the rest is as in
    `chunk_local_kernel` and `recurrent_kernel`.
    """
    n, row, first, length, head, e = own_part(sequences, Hv, dv, BV)
    chunk = tl.load(sequences + n * 4 + 3).to(tl.int64)

    i, d = tl.arange(0, C), tl.arange(0, BK)
    d_ok, e_ok = d < dk, e < dv
    table = (n * Hv + head) * dk * dv + d[:, None] * dv + e[None, :]
    table_ok = d_ok[:, None] & e_ok[None, :]
    S = tl.zeros([BK, BV], tl.float32)
    if initial is not None:
        S = tl.load(initial + table, table_ok, 0.0)

    tile = head // (Hv // Hk) * dk + d[None, :]
    for start in range(0, length, C):
        i_ok, token = start + i < length, (first + start + i)[:, None]
        tile_ok = i_ok[:, None] & d_ok[None, :]
        value_ok = i_ok[:, None] & e_ok[None, :]
        k_at = k + row * k_row + token * k_token + tile
        q_at = q + row * q_row + token * q_token + tile
        v_at = v + row * v_row + token * v_token + head * dv + e[None, :]
        K = tl.load(k_at, tile_ok, 0.0).to(DOT)
        Q = tl.load(q_at, tile_ok, 0.0).to(DOT)
        V = tl.load(v_at, value_ok, 0.0).to(tl.float32)
        pair = (chunk + start // C) * Hv + head
        square = pair * C * C + i[:, None] * C + i[None, :]
        vector = factors + pair * 4 * C + i
        X, A = tl.load(solve + square), tl.load(scores + square)
        k_size, kept = tl.load(vector), tl.load(vector + C)
        to_end, q_size = tl.load(vector + 2 * C), tl.load(vector + 3 * C)
        stays = tl.load(left + pair)

        if DOT == tl.float16:
            # its range is short: a write divided by |k| may leave it
            K = (K.to(tl.float32) * k_size[:, None]).to(DOT)
            k_size = 1.0 + 0.0 * k_size

        old = S.to(DOT)
        wrong = V - multiply(K, old) * (k_size * kept)[:, None]
        writes = multiply(X, wrong.to(DOT))
        read = multiply(Q, old) * q_size[:, None]
        read += multiply(A, writes.to(DOT))
        writes = (writes * (k_size * to_end)[:, None]).to(DOT)
        S = S * stays + multiply(tl.trans(K), writes)

        out_at = ((row * out_row + token) * Hv + head) * dv + e[None, :]
        tl.store(out + out_at, read, value_ok)
    tl.store(final + table, S, table_ok)
