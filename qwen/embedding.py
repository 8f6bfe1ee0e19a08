"""From ids to vectors and back: two readings of one table."""

from torch import nn
from torch.nn import functional as F

from qwen.product import product, random_matrix


class Embedding(nn.Module):
    """ids [B, T] -> vectors [B, T, H]: row `id` of `weight` [V, H].

    On a CPU the vectors are fp32 whatever the weights' storage; from
    here on every activation has the type that this lookup gave it.
    """

    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.weight = nn.Parameter(random_matrix(vocab_size, hidden_size))

    def forward(self, ids):
        x = F.embedding(ids, self.weight)
        return x.float() if x.device.type == "cpu" else x


class LMHead(nn.Module):
    """vectors [B, T, H] -> logits [B, T, V]: a product with each row.

    With tied weights `weight` [V, H] is the embedding's own parameter.
    """

    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.weight = nn.Parameter(random_matrix(vocab_size, hidden_size))

    def forward(self, x):
        return product(x, self.weight)
