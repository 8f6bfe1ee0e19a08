# Run: python -m pytest tests/test_faults.py
"""No check that can't fail: one fault at a time, and the chapter goes red.

A fault is put into a copy of the package *and* into the chapter's cells that
show it, so that comparing the two finds nothing: what must notice it is the
chapter's own naive code, its numbers by hand, or its slower oracle.
"""

import shutil

import pytest
from blank import LEFT_OUT, ROOT, grade

# (chapter, module of qwen/ or of kernels/, right text, faulty text)
# fmt: off
FAULTS = [
    (1, "config.py", 'text.get("rope_parameters"), ', ""),
    (1, "weights.py", "if SKIPPED.match(name):\n                    con",
     "if False:\n                    con"),
    (1, "weights.py", "if KEEP_FP32.search(name) else dtype",
     "if 0 else dtype"),
    (1, "tokenizer.py", "enable_thinking=think", "enable_thinking=not think"),
    (2, "embedding.py", "x = F.embedding(ids, self.weight)",
     "x = F.embedding(ids, self.weight.roll(1, 0))"),
    (2, "embedding.py", "return product(x, self.weight)",
     "return product(x, self.weight * 2)"),
    (2, "product.py", "weight.split(1024)", "weight.split(1024)[:1]"),
    (3, "norm.py", "mean(-1, keepdim=True) + eps", "mean(-1, keepdim=True)"),
    (3, "norm.py", "(1 + self.weight.float())", "self.weight.float()"),
    (3, "norm.py", "x * F.silu(z.float())", "x * z.float().sigmoid()"),
    (3, "norm.py",
     "y = y * torch.rsqrt(y.square().sum(-1, keepdim=True) + eps)",
     "y = F.normalize(y, dim=-1, eps=eps)"),
    (3, "mlp.py", "F.silu(self.gate_proj(x))", "F.gelu(self.gate_proj(x))"),
    (4, "rope.py", "b * cos + a * sin", "b * cos - a * sin"),
    (4, "rope.py", "angle = positions.float()",
     "angle = positions.bfloat16()"),
    (4, "rope.py", "a, b, rest = x[..., :half], x[..., half : 2 * half]",
     "a, b, rest = x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]"),
    (5, "attention.py", "q, gate = self", "gate, q = self"),
    (5, "attention.py", "apply_rope(self.q_norm(q), cos, sin)",
     "self.q_norm(apply_rope(q, cos, sin))"),
    (5, "attention.py", "own = columns[past:, None]",
     "own = columns[:new, None]"),
    (5, "attention.py", " | (columns == own)", ""),
    (5, "attention.py", "torch.sigmoid(gate)", "F.silu(gate)"),
    (6, "deltanet.py", "x.repeat_interleave(Hv // Hk, dim=2)",
     "x.repeat(1, 1, Hv // Hk, 1)"),
    (6, "deltanet.py", "predicted = (k[:, t, :, None] @ S)[:, :, 0]",
     "predicted = (k[:, t, :, None] @ S)[:, :, 0] / g[:, t, :, None].exp()"),
    (6, "deltanet.py", "q = l2norm(q.float()) * dk**-0.5",
     "q = l2norm(q.float())"),
    (6, "deltanet.py", "change = beta[:, t, :, None] * (v[:, t] - predicted)",
     "change = beta[:, t, :, None] * v[:, t]"),
    (7, "deltanet.py", "enumerate(taps)", "enumerate(reversed(taps))"),
    (7, "deltanet.py", "return y, seen[:, T:].clone()",
     "return y, seen[:, : width - 1].clone()"),
    (7, "deltanet.py", "F.softplus(a + self.dt_bias.float())",
     "F.softplus(a) + self.dt_bias.float()"),
    (7, "deltanet.py", "return -self.A_log.float().exp() * speed",
     "return -self.A_log.bfloat16().float().exp() * speed"),
    (8, "chunk.py", "steps.cumsum(-2).exp().tril()", "steps.cumsum(-2).exp()"),
    (8, "chunk.py", "left = kept[..., -1:, :]", "left = kept[..., :1, :]"),
    (8, "chunk.py", "k_out = D[..., -1, :, None] * k", "k_out = k"),
    (8, "chunk.py", "(k @ k.mT) * D).tril(-1)", "(k @ k.mT)).tril(-1)"),
    (9, "layer.py", "return x + self.mlp(", "return h + self.mlp("),
    (9, "model.py", "self.lm_head(self.norm(x[:, -logits_to_keep:]))",
     "self.lm_head(x[:, -logits_to_keep:])"),
    (9, "layer.py", "h = self.input_layernorm(x)", "h = x"),
    (10, "cache.py", "room = max(end, 2 * self.k_buffer.shape[2])",
     "room = end"),
    (10, "cache.py", "vars(state).update(old)", "pass"),
    (10, "model.py", "            state.mask = mask",
     "            state.mask = mask[:, :0]"),
    (10, "cache.py", "new.k_buffer, new.v_buffer = self.k[rows], self.v[rows]",
     "pass"),
    (11, "deltanet.py",
     "g, beta = g.masked_fill(pad, 0), beta.masked_fill(pad, 0)",
     "beta = beta.masked_fill(pad, 0)"),
    (11, "deltanet.py", "return y, take_columns(seen, ends)",
     "return y, seen[:, T:].clone()"),
    (11, "model.py", "mask = torch.cat([state.mask, mask], dim=1)",
     "mask = torch.cat([torch.ones_like(state.mask), mask], dim=1)"),
    (11, "cache.py", "DeltaState(self.conv[rows], self.S[rows])",
     "DeltaState(self.conv[rows], self.S[rows.sort()[0]])"),
    (12, "generation.py", "before = (p / p.sum()).cumsum(0)[:-1]",
     "before = p.cumsum(0)[:-1]"),
    (12, "generation.py", "        with state.unchanged_on_failure():",
     "        if True:"),
    (12, "generation.py", "if token in stop_ids:",
     "if stop_ids & {token, *seen}:"),
    (12, "tokenizer.py", "range(len(close) - 1, 0, -1)",
     "range(len(close) - 1, 1, -1)"),
    (16, "recurrent.py",
     "predicted = tl.sum(key[:, None] * S, axis=0) * k_size",
     "predicted = tl.sum(key[:, None] * S, axis=0)"),
    (16, "recurrent.py", "key_head = head // (Hv // Hk)",
     "key_head = head % Hk"),
    (16, "rule.py", "return reason is None and", "return True and"),
    (16, "launch.py",
     "return x if x[0, 0].is_contiguous() else x.contiguous()",
     "return x"),
    (17, "chunk.py",
     "(high[:, None] - high[None, :]) + (low[:, None] - low[None, :])",
     "high[:, None] - high[None, :]"),
    (17, "inverse.py", "return paste(A, tl.zeros_like(A), -below, B, SIZE)",
     "return paste(A, tl.zeros_like(A), below, B, SIZE)"),
    (17, "chunk.py", "writes = (writes * (k_size * to_end)[:, None]).to(DOT)",
     "writes = (writes * k_size[:, None]).to(DOT)"),
    (17, "model.py", "            layer.rule = layer.rule_before",
     "            pass"),
]
# fmt: on


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults") / "book"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "chapter, module, right, faulty",
    FAULTS,
    ids=[f"{c}-{m}-{n}" for n, (c, m, *_) in enumerate(FAULTS)],
)
def test_a_fault_makes_its_chapter_fail(copy, chapter, module, right, faulty):
    path = copy / ("kernels" if chapter > 15 else "qwen") / module
    text = path.read_text("utf-8")
    assert text.count(right) == 1, "the fault no longer fits the module"
    try:
        path.write_text(text.replace(right, faulty), "utf-8")
        assert grade(chapter, copy), "the chapter did not notice"
    finally:
        path.write_text(text, "utf-8")


def test_there_are_enough_faults():
    assert len(FAULTS) >= 25
