"""The delta rule as Triton kernels, read line by line in chapters 16, 17.

    from kernels import chunk_gated_delta_rule, use_kernels

Importing this package needs neither a GPU nor Triton; a call without them
says what is missing. It has no version attribute: Hugging Face has a
package of the same name, and transformers, when it meets ours on the path,
must see that it is not that one.
"""

from kernels.launch import launches
from kernels.model import use_kernels
from kernels.rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)

__all__ = [
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "launches",
    "use_kernels",
]
