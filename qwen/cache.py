"""The two memories of a conversation: one that grows, one that does not.

An attention layer keeps the keys and values of every token; a linear
layer keeps one table and the last few inputs of its convolution.
"""

from contextlib import contextmanager
from copy import copy

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
            # both or none, should memory run out
            k_v = _grown(self.k, room), _grown(self.v, room)
            self.k_buffer, self.v_buffer = k_v
        self.k_buffer[:, :, start:end] = k
        self.v_buffer[:, :, start:end] = v
        self.length = end
        return self.k, self.v

    def select(self, rows):
        """A copy of these rows (an int64 tensor)."""
        new = copy(self)
        new.k_buffer, new.v_buffer = self.k[rows], self.v[rows]
        return new

    @staticmethod
    def concat(states):
        """All rows in one; shorter ones get columns of zeros on the left."""
        new = copy(states[0])
        new.length = max(state.length for state in states)
        new.k_buffer = _join([state.k for state in states], dim=2)
        new.v_buffer = _join([state.v for state in states], dim=2)
        return new


def _grown(used, room):
    """A buffer [B, heads, room, D] that begins with `used`."""
    B, heads, length, D = used.shape
    # one made in inference mode could not be written outside it
    with torch.inference_mode(False):
        buffer = used.new_empty(B, heads, room, D)
    buffer[:, :, :length] = used
    return buffer


def _join(parts, dim):
    """All rows in one tensor; where one is shorter, zeros come first."""
    longest, rows = max(part.shape[dim] for part in parts), []
    for part in parts:
        shape = list(part.shape)
        shape[dim] = longest - part.shape[dim]
        rows.append(torch.cat([part.new_zeros(shape), part], dim))
    return torch.cat(rows)


class DeltaState:
    """What a linear layer keeps, however many tokens there were.

    `conv` [B, width - 1, channels]: the convolution's last inputs.
    `S` [B, Hv, dk, dv]: the memory table. Both are fp32, and both are
    replaced by new tensors at each call, never written in place.
    """

    def __init__(self, conv, S):
        self.conv, self.S = conv, S

    def select(self, rows):
        """A copy of these rows (an int64 tensor)."""
        return DeltaState(self.conv[rows], self.S[rows])

    @staticmethod
    def concat(states):
        """All rows in one."""
        conv = torch.cat([state.conv for state in states])
        return DeltaState(conv, torch.cat([state.S for state in states]))


class State:
    """The memory of `batch` conversations that a model reads in step.

    `layers` has an AttentionState or a DeltaState for each layer of
    `model`, `mask` [B, pos] says which columns were real tokens, `pos`
    counts the columns, pads included. Only a model of the same `config`
    can go on from it.
    """

    def __init__(self, model, batch=1):
        self.config = model.config
        weight = model.embed_tokens.weight
        on_cpu = weight.device.type == "cpu"
        place = {"device": weight.device}
        fp32 = place | {"dtype": torch.float32}
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
                conv = torch.zeros(batch, width - 1, channels, **fp32)
                S = torch.zeros(batch, heads, net.dk, net.dv, **fp32)
                state = DeltaState(conv, S)
            self.layers.append(state)
        self.mask = torch.empty(batch, 0, dtype=torch.bool, **place)

    @property
    def pos(self):
        return self.mask.shape[1]

    def select(self, rows):
        """A State of these rows, in this order; the old one stays as is.

        `rows`: ints (a row may come twice, [] is an empty batch), or a
        bool for each row: whether it stays. Nothing is shared, so that
        both go on independently. Raises ValueError for any other row.
        """
        batch = len(self.mask)
        try:
            rows = torch.as_tensor(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"rows can't be {rows!r}: {error}") from None
        if rows.dtype == torch.bool and rows.shape == (batch,):
            rows = rows.nonzero()[:, 0]
        if rows.numel() == 0 and rows.is_floating_point():
            rows = rows.long()  # torch takes [] for floats
        if rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"rows must be ints, or {batch} bools, not "
                f"{rows.dtype} of shape {list(rows.shape)}"
            )
        for row in rows.tolist():
            if not 0 <= row < batch:
                raise ValueError(f"no row {row} in a batch of {batch}")
        new, rows = copy(self), rows.to(self.mask.device)
        new.mask = self.mask[rows]
        new.layers = [layer.select(rows) for layer in self.layers]
        return new

    @staticmethod
    def concat(states):
        """The rows of all `states` in one State, sharing nothing with them.

        Where `pos` differs the shorter ones get masked columns on the
        left. Raises ValueError for no states, or for states of models
        that differ in their config.
        """
        states = list(states)
        if not states:
            raise ValueError("no states to concatenate")
        new = copy(states[0])
        if any(state.config != new.config for state in states):
            raise ValueError("the states are those of different models")
        new.mask = _join([state.mask for state in states], dim=1)
        new.layers = [
            type(parts[0]).concat(parts)
            for parts in zip(*(state.layers for state in states))
        ]
        return new

    def clone(self):
        """A copy that shares nothing with this one."""
        return self.select(range(len(self.mask)))

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
