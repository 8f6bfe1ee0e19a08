"""Which kernels a chip runs, and with which tiles.

A tile lives in shared memory or in registers, and chips differ in how much
they have. `python -m kernels.aot` prints what these choices need.
"""

import torch


def power_of_two(n):
    """The smallest power of two that is n or more, and 16 or more."""
    return max(16, 1 << (n - 1).bit_length())


def recurrent_sizes(dk, dv):
    """Tiles of the recurrent kernel: one warp for 8 columns of S.

    A warp sums over dk without waiting for other warps, and many small
    programs keep more of the memory busy than few large ones.
    """
    return {"BK": power_of_two(dk), "BV": 8, "num_warps": 1, "num_stages": 1}


def chunk_sizes(capability, dtype, dk, dv):
    """Tiles of the two chunked kernels -> (local, state), or None.

    None below compute capability 8.0, where Triton multiplies tiles
    without the tensor cores. A chunk's products, 165,000 operations a token
    and head at dk = dv = 128, then go at the speed of the recurrence's
    115,000, so the recurrent kernel has less to do. It also fits: compiled
    for 7.5 it spills nothing, and the chunked kernels spill kilobytes, as
    they do on any chip for fp32 keys of more than 128: None there, too.
    """
    BK, wide = power_of_two(dk), dtype == torch.float32
    if capability < (8, 0) or (wide and BK > 128):
        return None
    C = 32 if wide or BK > 128 else 64
    local = {"C": C, "BK": min(32 if wide else 64, BK)}
    local |= {"num_warps": 4, "num_stages": 1}
    # These chips have 163 KiB or more, which hold two chunks of 16-bit
    # numbers: while one is computed the next is on its way
    roomy = capability == (8, 0) or capability[0] in (9, 10)
    state = {"C": C, "BK": BK, "BV": min(16 if wide else 32, power_of_two(dv))}
    state["num_stages"] = 2 if roomy and not wide else 1
    # on 9.0 and 10.0 products of bf16 read their tiles from shared memory;
    # else tiles pass through registers, and need those of eight warps
    bf16 = dtype == torch.bfloat16 and BK <= 128
    state["num_warps"] = 4 if bf16 and capability[0] in (9, 10) else 8
    return local, state
