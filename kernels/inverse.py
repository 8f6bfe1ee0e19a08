"""The inverse of a chunk's triangular system, in blocks of 16, 32, 64.

The system is I + L with L strictly lower triangular. Three ways to invert
it don't serve. A substitution over 64 rows is 63 steps in a row, each
waiting for the one before. The power series I - L + L^2 - ... is all
matrix products, but with keys that are nearly the same its terms grow to
10^17 before they cancel. And a library routine can't be called from inside
a kernel. So: 15 steps of substitution, in all 16 x 16 blocks of the
diagonal at once, and then matrix products that join two blocks into one.

For two blocks A and B on the diagonal and N below A, left of B,

    [ A   ]^-1    [  A^-1               ]
    [ N B ]     = [ -B^-1 N A^-1   B^-1 ].
"""

import triton
import triton.language as tl


@triton.jit
def multiply(a, b):
    """a @ b on the tensor cores, summed in fp32.

    They take fp16 and bf16 as they are. Of an fp32 number they read eleven
    bits ("tf32"), which is too few here. "tf32x3" splits it in two numbers
    and adds three products: nearly exact, and still on the tensor cores.
    """
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def cut(L, SIZE: tl.constexpr):
    """L [2 SIZE, 2 SIZE] -> its quarters: above left and right, below."""
    parts = tl.reshape(L, [2, SIZE, 2, SIZE])
    left, right = tl.split(tl.permute(parts, [1, 3, 0, 2]))
    a, c = tl.split(left)
    b, d = tl.split(right)
    return a, b, c, d


@triton.jit
def paste(a, b, c, d, SIZE: tl.constexpr):
    """Four quarters [SIZE, SIZE] -> [2 SIZE, 2 SIZE], the reverse of `cut`."""
    parts = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(tl.permute(parts, [2, 0, 3, 1]), [2 * SIZE, 2 * SIZE])


@triton.jit
def substitute(L):
    """L [16, 16, n] -> [16, 16, n]: the n inverses of I + L[:, :, n].

    Row t of an inverse X is e_t - sum over j < t of L[t, j] X[j], so the
    rows come one after another, those of all n systems together.
    """
    i = tl.arange(0, 16)
    one = (i[:, None] == i[None, :]).to(tl.float32)
    X = tl.broadcast_to(one[:, :, None], L.shape)
    for t in range(1, 16):
        here = i[:, None, None] == t
        row = tl.sum(tl.where(here, L, 0.0), axis=0)
        known = tl.sum(row[:, None, :] * X, axis=0)
        X = tl.where(here, X - known[None, :, :], X)
    return X


@triton.jit
def join_inverses(A, B, N, SIZE: tl.constexpr):
    """A^-1, B^-1, N [SIZE, SIZE] -> the inverse of [[A, 0], [N, B]]."""
    below = multiply(B, multiply(N, A))
    return paste(A, tl.zeros_like(A), -below, B, SIZE)


@triton.jit
def inverse_32(L):
    """L [32, 32] fp32, zero on and above its diagonal -> (I + L)^-1."""
    a, _, n, b = cut(L, 16)
    A, B = tl.split(substitute(tl.join(a, b)))
    return join_inverses(A, B, n, 16)


@triton.jit
def inverse_64(L):
    """The same for [64, 64]."""
    top, _, N, bottom = cut(L, 32)
    a, _, n, b = cut(top, 16)
    c, _, m, d = cut(bottom, 16)
    blocks = tl.join(tl.join(a, b), tl.join(c, d))
    blocks = substitute(tl.reshape(blocks, [16, 16, 4]))
    first, second = tl.split(tl.reshape(blocks, [16, 16, 2, 2]))
    A, B = tl.split(first)
    C, D = tl.split(second)
    top, bottom = join_inverses(A, B, n, 16), join_inverses(C, D, m, 16)
    return join_inverses(top, bottom, N, 32)


@triton.jit
def unit_lower_inverse(L, C: tl.constexpr):
    """(I + L)^-1 in fp32 for a chunk of C = 32 or 64 tokens."""
    if C == 32:
        return inverse_32(L)
    else:
        return inverse_64(L)
