"""The hybrid language model: ids in, logits out.

Source: transformers' Qwen3.5 text model.
"""

import torch
from torch import nn

from qwen.embedding import Embedding, LMHead
from qwen.layer import DecoderLayer
from qwen.norm import RMSNorm
from qwen.rope import rope_tables
from qwen.weights import Config, find_model, load_weights


class Model(nn.Module):
    """ids [B, T] -> logits [B, T, V].

    `state` (a State) holds the tokens of earlier calls: the new ids
    continue them, and the state moves on. With a state no gradients are
    kept. `mask` [B, T] marks real tokens, in any pattern; logits at pads
    are finite and mean nothing. `logits_to_keep=n` computes the last n
    positions only, 0 all. If a call fails or is interrupted, the state
    is as it was before. Raises ValueError for ids that are not int32 or
    int64 and within 0..V-1, and for shapes that do not fit.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, kind) for kind in config.layer_types
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = LMHead(config.vocab_size, config.hidden_size)
        self.tie()

    def tie(self):
        """Tied models have one table: the head reads the embedding's."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @classmethod
    def from_pretrained(cls, path=None, dtype=torch.float32, device="cpu"):
        """The model of a checkpoint folder (see `find_model`).

        `dtype` is the storage of the large matrices. Raises ValueError
        that names any tensor that is missing, unknown or misshapen.
        """
        path = find_model(path)
        config = Config.load(path)
        with torch.device("meta"):
            model = cls(config)
        weights = load_weights(path, dtype, device)
        if config.tie_word_embeddings:
            # whatever the files call a head: it is the embedding
            weights["lm_head.weight"] = weights.get("embed_tokens.weight")
        check_weights(model, weights)
        model.load_state_dict(weights, assign=True)
        model.tie()  # assigning made two parameters of the one
        return model.eval().requires_grad_(False)

    def forward(self, ids, state=None, mask=None, logits_to_keep=0):
        self.check_ids(ids, state, mask)
        if logits_to_keep < 0:
            raise ValueError(f"logits_to_keep is {logits_to_keep}")
        if ids.shape[1] == 0:
            return self.lm_head(self.embed_tokens(ids)).detach()
        if state is None:
            return self.run(ids, None, mask, logits_to_keep)
        with torch.no_grad(), state.unchanged_on_failure():
            return self.run(ids, state, mask, logits_to_keep)

    def run(self, ids, state, mask, logits_to_keep):
        mask = torch.ones_like(ids) if mask is None else mask
        whole = state is None or ids.device.type != "cpu"
        # on their way, pieces need less memory than a long prompt
        size = ids.shape[1] if whole else 256
        pieces = zip(ids.split(size, dim=1), mask.split(size, dim=1))
        x = torch.cat([self.read(i, state, m) for i, m in pieces], dim=1)
        return self.lm_head(self.norm(x[:, -logits_to_keep:]))

    def read(self, ids, state, mask):
        """All layers but the head: ids, mask [B, T] -> [B, T, H]."""
        c, T = self.config, ids.shape[1]
        mask, layers = mask.bool(), [None] * len(self.layers)
        if state is not None:
            mask = torch.cat([state.mask, mask], dim=1)
            layers = state.layers
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -T:]
        cos, sin = rope_tables(positions, c.rotary_dim, c.rope_theta)
        real = None if mask.all() else mask
        x = self.embed_tokens(ids)
        for layer, layer_state in zip(self.layers, layers, strict=True):
            x = layer(x, cos, sin, layer_state, real)
        if state is not None:
            state.mask = mask
        return x

    def check_ids(self, ids, state=None, mask=None):
        if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                "ids must be int64 or int32 of shape [B, T], not "
                f"{ids.dtype} of shape {list(ids.shape)}"
            )
        if ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.config.vocab_size:
                bad = low if low < 0 else high
                raise ValueError(
                    f"id {bad} is outside 0..{self.config.vocab_size - 1}"
                )
        if mask is not None and mask.shape != ids.shape:
            raise ValueError("mask must have the shape of ids")
        if mask is not None and not ((mask == 0) | (mask == 1)).all():
            # one that is to be added, 0 and -inf, would be read inside out
            raise ValueError("mask must be of 0 and 1, or False and True")
        if state is not None and state.config != self.config:
            raise ValueError("the state belongs to a model of another config")
        if state is not None and len(state.mask) != len(ids):
            raise ValueError(
                f"{len(ids)} rows of ids, {len(state.mask)} in the state"
            )


def check_weights(model, weights):
    """Every tensor there, none too many, each of the right shape."""
    want = {name: p.shape for name, p in model.state_dict().items()}
    for name in want:
        if name not in weights:
            raise ValueError(f"the checkpoint has no tensor {name}")
    for name, tensor in weights.items():
        if name not in want:
            raise ValueError(f"unknown tensor {name} in the checkpoint")
        if tensor.shape != want[name]:
            raise ValueError(
                f"tensor {name} is {list(tensor.shape)}, "
                f"not {list(want[name])}"
            )
