"""The two memories of a conversation: one that grows, one that does not.

An attention layer keeps the keys and values of every token; a linear
layer keeps one table and the last few inputs of its convolution.
"""

from contextlib import contextmanager

import torch


class AttentionState:
    """Keys and values of all tokens so far, [B, kv_heads, pos, head_dim].

    `k` and `v` are views of buffers with room to spare: a full buffer is
    replaced by one twice as long, so that a step copies one token only.
    """

    def __init__(self, batch, kv_heads, head_dim, dtype, device):
        shape = batch, kv_heads, 0, head_dim
        self.k_buffer = torch.empty(shape, dtype=dtype, device=device)
        self.v_buffer = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def k(self):
        return self.k_buffer[:, :, : self.length]

    @property
    def v(self):
        return self.v_buffer[:, :, : self.length]

    def append(self, k, v):
        """Add k, v [B, kv_heads, T, head_dim]; return all that is held."""
        start, end = self.length, self.length + k.shape[2]
        if end > self.k_buffer.shape[2]:
            room = max(end, 2 * self.k_buffer.shape[2])
            self.k_buffer = _grown(self.k, room)
            self.v_buffer = _grown(self.v, room)
        self.k_buffer[:, :, start:end] = k
        self.v_buffer[:, :, start:end] = v
        self.length = end
        return self.k, self.v


def _grown(used, room):
    """A buffer [B, heads, room, D] that begins with `used`."""
    B, heads, length, D = used.shape
    buffer = used.new_empty(B, heads, room, D)
    buffer[:, :, :length] = used
    return buffer


class DeltaState:
    """What a linear layer keeps, however many tokens there were.

    `conv` [B, width - 1, channels]: the convolution's last inputs.
    `S` [B, Hv, dk, dv]: the memory table. Both are fp32, and both are
    replaced by new tensors at each call, never written in place.
    """

    def __init__(self, conv, S):
        self.conv, self.S = conv, S


class State:
    """The memory of `batch` conversations that a model reads in step.

    `layers` has an AttentionState or a DeltaState for each layer of
    `model`, `mask` [B, pos] says which columns were real tokens, `pos`
    counts the columns, pads included.
    """

    def __init__(self, model, batch=1):
        weight = model.embed_tokens.weight
        on_cpu = weight.device.type == "cpu"
        place = {"device": weight.device}
        self.layers = []
        for layer in model.layers:
            if layer.full:
                c = model.config
                dtype = torch.float32 if on_cpu else weight.dtype
                heads, dim = c.num_key_value_heads, c.head_dim
                state = AttentionState(batch, heads, dim, dtype, **place)
            else:
                net = layer.linear_attn
                heads = net.A_log.shape[0]
                channels, _, width = net.conv1d.weight.shape
                conv = torch.zeros(batch, width - 1, channels, **place)
                S = torch.zeros(batch, heads, net.dk, net.dv, **place)
                state = DeltaState(conv, S)
            self.layers.append(state)
        self.mask = torch.empty(batch, 0, dtype=torch.bool, **place)

    @property
    def pos(self):
        return self.mask.shape[1]

    @property
    def nbytes(self):
        """Bytes allocated, the room for tokens to come included."""
        return sum(
            t.nbytes
            for layer in self.layers
            for t in vars(layer).values()
            if torch.is_tensor(t)
        )

    def megabytes(self):
        """Bytes in use, divided by 2 ** 20."""
        used = 0
        for layer in self.layers:
            if isinstance(layer, AttentionState):
                used += layer.k.nbytes + layer.v.nbytes
            else:
                used += layer.conv.nbytes + layer.S.nbytes
        return used / 2**20

    @contextmanager
    def unchanged_on_failure(self):
        """Whatever stops the block, even Ctrl-C, undoes its writes.

        Old tensors are never written in place (keys and values only
        beyond `length`), so that references are enough.
        """
        mask, kept = self.mask, [vars(s).copy() for s in self.layers]
        try:
            yield
        except BaseException:
            self.mask = mask
            for state, old in zip(self.layers, kept, strict=True):
                vars(state).update(old)
            raise
