"""x @ weight.T, the product in which a model spends nearly all its time.

Source: oneDNN (github.com/uxlfoundation/oneDNN), which PyTorch brings along.
"""

import torch
from torch.nn import functional as F


def product(x, weight):
    """x [..., in], weight [out, in] -> [..., out], computed in x's type.

    `weight` may be stored in a smaller type than x. A product that needs
    no gradient takes the fastest way that a CPU has.
    """
    if x.device.type != "cpu" or x.requires_grad or weight.requires_grad:
        return F.linear(x, weight.to(x.dtype))
    if weight.dtype != x.dtype:
        # a stripe of rows is widened, and used while the cache holds it
        stripes = weight.split(1024)
        return torch.cat([product(x, s.to(x.dtype)) for s in stripes], dim=-1)
    large = x.dtype == torch.float32 and x.numel() * len(weight) >= 2**21
    if large and torch.backends.mkldnn.is_available():
        # oneDNN: on some CPUs twice as fast as the BLAS behind F.linear
        return F.linear(x.to_mkldnn(), weight).to_dense()
    return F.linear(x, weight)


def random_matrix(outputs, inputs):
    """What training starts from: [out, in], standard deviation 0.02."""
    matrix = torch.empty(outputs, inputs)
    # a model of shapes alone draws no numbers: that would import a lot
    return matrix if matrix.is_meta else torch.randn(outputs, inputs) * 0.02
