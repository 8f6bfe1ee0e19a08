# Run with: python -m pytest tests/test_numerics.py
"""Layout and arithmetic of each part, with values worked out by hand."""

from math import exp, log1p

import pytest
import torch
from oracle import oracle_rule
from tiny_checkpoints import FULL, LINEAR
from torch.nn import functional as F
from toy import random_ids, toy_config, toy_model

from qwen.attention import Attention, causal_mask
from qwen.cache import AttentionState, DeltaState, State
from qwen.chunk import chunked_delta_rule
from qwen.deltanet import GatedDeltaNet, ShortConv
from qwen.embedding import Embedding, LMHead
from qwen.layer import DecoderLayer
from qwen.mlp import MLP
from qwen.norm import GatedRMSNorm, RMSNorm, l2norm
from qwen.rope import apply_rope, rope_tables

HALVES = torch.float16, torch.bfloat16


# norms


def test_rmsnorm_adds_one():
    """C01, C02: zeros are a gain of one, -0.02 is one of 0.98."""
    norm, x = RMSNorm(2, eps=0.0), torch.tensor([[3.0, 4.0]])
    unit = x / 12.5**0.5
    torch.testing.assert_close(norm(x), unit)
    norm.weight.data = torch.tensor([-0.02, 1.0])
    want = unit * torch.tensor([0.98, 2.0])
    torch.testing.assert_close(norm(x), want)


def test_gated_norm_does_not():
    """C02: normalise, times w, then times silu(z)."""
    norm, x = GatedRMSNorm(2, eps=0.0), torch.tensor([[3.0, 4.0]])
    z = torch.tensor([[1.0, -2.0]])
    want = x / 12.5**0.5 * torch.tensor([1 / (1 + exp(-1)), -2 / (1 + exp(2))])
    torch.testing.assert_close(norm(x, z), want)
    norm.weight.data = torch.tensor([0.5, -3.0])
    torch.testing.assert_close(norm(x, z), want * norm.weight)
    # before the gate: scaling z does not go through the normalisation
    assert norm(x, 40 * z)[0, 0] > 10 * norm(x, z)[0, 0]
    assert not norm(100 * x, z).allclose(100 * norm(x, z))


@torch.no_grad()
def test_which_gain_is_which():
    """C02: all norms at zero but the gated one at one: every gain is 1."""
    model, ids = toy_model(), random_ids(1, 9)
    norms = {n: p for n, p in model.named_parameters() if "norm" in n}
    assert len(norms) == 4 * 2 + 2 + 3 + 1
    for name, p in norms.items():
        p.fill_(1.0 if "linear_attn" in name else 0.0)
    want = model(ids)
    gains = []

    def gain(norm, args, out):
        x = args[0].double()
        unit = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        if isinstance(norm, GatedRMSNorm):
            unit = unit * F.silu(args[1].double())
        gains.append((out - unit).abs().max())

    for module in model.modules():
        if isinstance(module, RMSNorm | GatedRMSNorm):
            module.register_forward_hook(gain)
    assert torch.equal(model(ids), want)
    assert len(gains) == len(norms) and max(gains) <= 1e-5
    # zeros in the gated norm silence the layer instead
    net = model.layers[0].linear_attn
    net.norm.weight.zero_()
    assert net(torch.randn(1, 5, 32)).eq(0).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_in_halves(dtype):
    """Squares of 300 overflow in half; the arithmetic is fp32."""
    x = torch.full((3, 128), 300.0, dtype=dtype)
    out = RMSNorm(128).to(dtype)(x)
    assert out.dtype == dtype and out.eq(1).all()
    out = GatedRMSNorm(128).to(dtype)(x, x)
    assert out.dtype == dtype and out.float().isfinite().all()


def test_l2norm():
    """C30: eps is under the root and added, no clamp."""
    for size, length in ((1e-5, 0.112420), (1e-3, 0.996116), (1.0, 1.0)):
        x = torch.full((128,), size)
        assert abs(l2norm(x).norm().item() - length) <= 1e-6
    assert l2norm(torch.zeros(2, 128)).eq(0).all()
    half = l2norm(torch.full((128,), 300.0, dtype=torch.float16))
    assert half.dtype == torch.float16
    torch.testing.assert_close(
        half, torch.full_like(half, 128**-0.5), rtol=1e-3, atol=0
    )


# rope


def test_rope_by_hand():
    """Pairs (0, 2) and (1, 3) turn, by 1 and by 1 / theta^0.5."""
    cos, sin = rope_tables(torch.tensor([[3]]), 4, 100.0)
    torch.testing.assert_close(cos[0, 0], torch.tensor([3.0, 0.3]).cos())
    torch.testing.assert_close(sin[0, 0], torch.tensor([3.0, 0.3]).sin())
    x = torch.tensor([1.0, 0.0, 0.0, 2.0, 5.0, 6.0])[None, None, None]
    a, b = torch.tensor(3.0), torch.tensor(0.3)
    want = [a.cos(), -2 * b.sin(), a.sin(), 2 * b.cos(), 5.0, 6.0]
    got = apply_rope(x, cos, sin)[0, 0, 0]
    torch.testing.assert_close(got, torch.tensor(want))


def test_rope_depends_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 16)
    scores = []
    for start in (0, 7, 1000):
        at = torch.tensor([[start, start + 5]])
        cos, sin = rope_tables(at, 8, 1e4)
        turned_q = apply_rope(q, cos[:, 1:], sin[:, 1:])
        turned_k = apply_rope(k, cos[:, :1], sin[:, :1])
        scores.append((turned_q * turned_k).sum().item())
    assert max(scores) - min(scores) <= 1e-3


@pytest.mark.parametrize("dtype", HALVES)
def test_angles_are_fp32(dtype):
    """D07: in bf16, 4097 and 4098 would both be 4096."""
    at = torch.tensor([[4096, 4097, 4098, 262143]])
    cos, sin = rope_tables(at, 64, 1e7)
    assert cos.dtype == sin.dtype == torch.float32
    powers = torch.arange(32, dtype=torch.float64) / 32
    angle = at[..., None].double() * 1e7**-powers
    assert (cos - angle.cos()).abs().max() <= 0.02
    assert (cos - angle.cos())[:, :3].abs().max() <= 5e-4
    x = torch.ones(1, 4, 1, 64, dtype=dtype)
    turned = apply_rope(x, cos, sin)
    assert turned.dtype == dtype
    assert not torch.equal(turned[0, 1], turned[0, 2])


# attention


def test_query_and_gate_take_turns():
    """C24: of q_proj's rows 0..7, q has 0, 1, 4, 5, the gate 2, 3, 6, 7."""
    net = Attention(
        toy_config(
            hidden_size=8,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=2,
            rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 1},
        )
    )
    with torch.no_grad():
        net.q_proj.weight.copy_(torch.eye(8))
        net.v_proj.weight.zero_()[:, 0] = 1.0
        net.o_proj.weight.zero_()[:4] = torch.eye(4)
    seen = []
    net.q_norm.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    x = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])[None, None]
    cos, sin = rope_tables(torch.zeros(1, 1), 2, 1e4)
    out = net(x, cos, sin)
    assert seen[0].tolist() == [[[[1, 2], [5, 6]]]]
    # one token reads itself: its value is 1, and the gate is all there is
    want = torch.tensor([3.0, 4.0, 7.0, 8.0]).sigmoid()
    torch.testing.assert_close(out[0, 0, :4], want)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_by_hand(kv_heads):
    """Row by row in float64: heads paired, causal, pads left out."""
    torch.manual_seed(kv_heads)
    config = toy_config(num_key_value_heads=kv_heads)
    net, d = Attention(config), config.head_dim
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x, mask = torch.randn(2, 9, 32), torch.rand(2, 9) < 0.7
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cos, sin = rope_tables(positions, config.rotary_dim, 1e4)
    got = net(x, cos, sin, mask=mask)

    def heads(linear):
        return linear(x).unflatten(-1, (-1, d))

    q, gate = heads(net.q_proj)[:, :, ::2], heads(net.q_proj)[:, :, 1::2]
    q = apply_rope(net.q_norm(q), cos, sin).double()
    k = apply_rope(net.k_norm(heads(net.k_proj)), cos, sin).double()
    v, out = heads(net.v_proj).double(), torch.zeros_like(gate).double()
    for b in range(2):
        for t in range(9):
            reads = [s for s in range(t + 1) if mask[b, s]]
            for h in range(4) if mask[b, t] else ():
                pair = h // (4 // kv_heads)
                score = k[b, reads, pair] @ q[b, t, h] / d**0.5
                out[b, t, h] = score.softmax(0) @ v[b, reads, pair]
    want = net.o_proj((out * gate.sigmoid()).flatten(-2).float())
    assert (got[mask] - want[mask]).abs().max() <= 1e-5


def test_causal_mask():
    """C42: a pad reads itself, so no row of scores is empty."""
    real = torch.tensor([[0, 1, 1, 0, 1]]).bool()
    got = causal_mask(3, past=2, real=real).int().tolist()
    assert got == [[[[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 0, 1]]]]
    assert causal_mask(2, past=1).int().tolist() == [[[[1, 1, 0], [1, 1, 1]]]]
    for seed in range(20):
        torch.manual_seed(seed)
        real = torch.rand(3, 9) < 0.3
        assert causal_mask(4, past=5, real=real).any(-1).all()


@pytest.mark.parametrize("types", [[FULL] * 2, [LINEAR] * 2, [FULL, LINEAR]])
def test_rows_without_a_real_token(types):
    """C42: no NaN anywhere, and the other rows don't change."""
    model, ids = toy_model(toy_config(layer_types=types)), random_ids(3, 70)
    mask = torch.ones(3, 70).bool()
    mask[0], mask[1, :60] = False, False
    state = State(model, 3)
    for got in (model(ids, mask=mask), model(ids, state=state, mask=mask)):
        assert got.isfinite().all()
        assert (got[2] - model(ids[2:])[0]).abs().max() <= 1e-5
        alone = model(ids[1:2, 60:])[0]
        assert (got[1, 60:] - alone).abs().max() <= 1e-4
    for layer in state.layers:
        assert all(x.isfinite().all() for x in held(layer))


def held(layer):
    if isinstance(layer, AttentionState):
        return layer.k, layer.v
    return layer.conv, layer.S


# the short convolution


def test_the_last_tap_is_the_newest():
    """C22: kernel 1, 2, 3, 4 on 1, 0, 0, 0, 0 gives 4, 3, 2, 1, 0."""
    conv = ShortConv(1, 4)
    conv.weight.data = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    x = torch.tensor([1.0, 0, 0, 0, 0])[None, :, None]
    y, window = conv(x)
    assert y.flatten().tolist() == [4, 3, 2, 1, 0]
    assert window.flatten().tolist() == [0, 0, 0]
    y, window = conv(x[:, :2])
    assert y.flatten().tolist() == [4, 3]
    assert window.flatten().tolist() == [0, 1, 0]
    y, window = conv(x[:, 2:], window)
    assert y.flatten().tolist() == [2, 1, 0]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_conv_is_causal(width):
    """C29: as many outputs as inputs, none of them knows a later one."""
    conv, x = ShortConv(6, width), torch.randn(2, 5, 6)
    y, window = conv(x)
    assert y.shape == x.shape and window.shape == (2, width - 1, 6)
    want = F.conv1d(
        x.mT, conv.weight, padding=width - 1, groups=6
    )[..., :5].mT  # fmt: skip
    torch.testing.assert_close(y, want)
    changed = x.clone()
    changed[:, 4] += 1
    z, _ = conv(changed)
    assert torch.equal(y[:, :4], z[:, :4]) and not torch.equal(y, z)


def test_the_window_ends_at_the_last_real_token():
    conv, window = ShortConv(1, 4), torch.tensor([[1.0, 2, 3]])[..., None]
    x = torch.tensor([[4.0, 5, 6, 7]])[..., None]
    for count in range(5):
        _, new = conv(x, window, torch.tensor([count]))
        want = list(range(1 + count, 4 + count))
        assert new.flatten().tolist() == want


# gates


def test_gates_by_hand():
    net = GatedDeltaNet(toy_config())
    x = torch.randn(1, 3, 32)
    with torch.no_grad():
        net.A_log.copy_(torch.tensor([-3.0, 0.0, 1.0, 2.5]))
        net.dt_bias.copy_(torch.tensor([-4.0, 0.0, 1.0, 2.0]))
        g, beta = net.gates(x)
    a, b = net.in_proj_a(x)[0, 2], net.in_proj_b(x)[0, 2]
    for j in range(4):
        speed = log1p(exp(a[j].item() + net.dt_bias[j].item()))
        want = -exp(net.A_log[j].item()) * speed
        assert abs(g[0, 2, j].item() - want) <= 1e-5
        assert abs(beta[0, 2, j].item() - 1 / (1 + exp(-b[j].item()))) <= 1e-6


@pytest.mark.parametrize("dtype", HALVES)
def test_gates_are_finite_in_half(dtype):
    """C38: exp(11.2) overflows in fp16; here a gate is fp32."""
    net = GatedDeltaNet(toy_config()).to(dtype)
    with torch.no_grad():
        net.A_log.fill_(11.2)
        net.dt_bias.fill_(6.0)
    g, beta = net.gates(torch.randn(1, 3, 32).to(dtype))
    assert g.dtype == beta.dtype == torch.float32
    assert g.isfinite().all() and (g < -65504).all()
    a = net.in_proj_a(torch.zeros(1, 1, 32, dtype=dtype))
    assert a.eq(0).all()
    g, _ = net.gates(torch.zeros(1, 1, 32, dtype=dtype))
    want = -exp(net.A_log[0].item()) * log1p(exp(6))
    assert abs(g[0, 0, 0].item() / want - 1) <= 1e-5


# chunks


def rule_inputs(T):
    torch.manual_seed(T)
    q, k = torch.randn(2, 1, T, 2, 5)
    v, S = torch.randn(1, T, 4, 3), torch.randn(1, 4, 5, 3)
    return q, k, v, -torch.rand(1, T, 4), torch.rand(1, T, 4), S


def relative(a, b):
    return (a.double() - b.double()).norm() / b.double().norm()


def test_the_last_gate_of_a_short_chunk():
    """C34: the table left is right for every T, with chunks of 32."""
    for T in range(1, 131):
        args = rule_inputs(T)
        _, S = chunked_delta_rule(*args, chunk_size=32)
        assert relative(S, oracle_rule(*args)[1]) <= 1e-5, T


@pytest.mark.parametrize("T", [1, 58, 70, 128, 130])
def test_padding_comes_after_the_gates(T):
    """C35: zeros behind q, k, v, g, beta change the table by nothing."""
    *args, S = rule_inputs(T)
    sizes = 1, 7, 32, 64, 128
    left = [chunked_delta_rule(*args, S, chunk_size=c)[1] for c in sizes]
    for other in left[1:]:
        assert relative(other, left[0]) <= 1e-6
    padded = [
        torch.cat([x, x.new_zeros(1, 58, *x.shape[2:])], dim=1) for x in args
    ]
    _, more = chunked_delta_rule(*padded, S)
    assert relative(more, left[0]) <= 1e-6


# storage


def round_weights(model, dtype, everything):
    """What a loader does: large matrices in `dtype`, small ones in fp32."""
    keep = "A_log", "dt_bias", "conv1d.weight", "norm.weight"
    for name, p in model.named_parameters():
        if everything or not name.endswith(keep):
            p.data = p.data.to(dtype)
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_storage_only_rounds_the_weights(dtype, everything, tied):
    """On a CPU activations are fp32, as is all that a state holds."""
    config = toy_config(tie_word_embeddings=tied)
    stored = round_weights(toy_model(config), dtype, everything)
    exact = toy_model(config)
    exact.load_state_dict(stored.state_dict())  # copied into fp32
    assert exact.embed_tokens.weight.dtype == torch.float32
    seen = set()
    for module in stored.modules():
        if isinstance(module, DecoderLayer | RMSNorm | MLP | LMHead):
            module.register_forward_hook(lambda _, a, y: seen.add(y.dtype))
    ids, state = random_ids(2, 70), State(stored, 2)
    want = exact(ids)
    assert (stored(ids) - want).abs().max() <= 1e-4
    got = torch.cat(
        [stored(ids[:, :64], state=state), stored(ids[:, 64:], state=state)],
        dim=1,
    )
    assert (got - want).abs().max() <= 1e-4
    assert seen == {torch.float32}
    assert stored(ids[:, :0]).dtype == torch.float32
    for layer in state.layers:
        assert {x.dtype for x in held(layer)} == {torch.float32}


def test_the_table_stays_full_in_a_bf16_model():
    """C39: 4,096 steps of a bf16 model, against fp32 arithmetic."""
    config = toy_config(layer_types=[LINEAR])
    stored = round_weights(toy_model(config), torch.bfloat16, True)
    exact = toy_model(config)
    exact.load_state_dict(stored.state_dict())
    ids = random_ids(1, 4096)
    once, steps = State(exact), State(stored)
    exact(ids, state=once, logits_to_keep=1)
    for t in range(64):
        stored(ids[:, 64 * t : 64 * t + 64], state=steps, logits_to_keep=1)
    a, b = steps.layers[0].S, once.layers[0].S
    assert a.dtype == torch.float32 and relative(a, b) <= 1e-5


@pytest.mark.parametrize("dtype", HALVES)
def test_half_activations(dtype):
    """As on a GPU: layers return x's type, gates, S and window are fp32."""
    config, x = toy_config(), torch.randn(2, 70, 32).to(dtype)
    cos, sin = rope_tables(torch.arange(70)[None], config.rotary_dim, 1e4)
    model = toy_model(config).to(dtype)
    for i in (0, 3):
        layer = model.layers[i]
        state = None
        if i == 0:
            state = DeltaState(torch.zeros(2, 3, 40), torch.zeros(2, 4, 4, 6))
        got = layer(x, cos, sin, state)
        assert got.dtype == dtype
        want = layer.float()(x.float(), cos, sin)
        assert relative(got, want) <= (0.03 if i else 0.06)
    y, window = ShortConv(40, 4).to(dtype)(x[..., :1].expand(2, 70, 40))
    assert y.dtype == window.dtype == torch.float32


# the simple parts


def test_embedding_and_head():
    embedding, head = Embedding(5, 3), LMHead(5, 3)
    ids = torch.tensor([[4, 0, 4]])
    assert torch.equal(embedding(ids)[0], embedding.weight[[4, 0, 4]])
    x = torch.randn(1, 2, 3)
    torch.testing.assert_close(head(x), x @ head.weight.T)
    tied = toy_model(toy_config(tie_word_embeddings=True))
    assert tied.lm_head.weight is tied.embed_tokens.weight
    untied = toy_model()
    assert untied.lm_head.weight is not untied.embed_tokens.weight


def test_an_untied_head_is_used():
    """C03: with lm_head = -embedding the logits change their sign."""
    model, ids = toy_model(), random_ids(1, 5)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.embed_tokens.weight)
        want = model(ids)
        model.lm_head.weight.neg_()
        torch.testing.assert_close(model(ids), -want)


def test_mlp_by_hand():
    net, x = MLP(3, 5), torch.randn(2, 4, 3)
    for p in net.parameters():
        torch.nn.init.normal_(p)
    gate, up = x @ net.gate_proj.weight.T, x @ net.up_proj.weight.T
    want = (gate * gate.sigmoid() * up) @ net.down_proj.weight.T
    torch.testing.assert_close(net(x), want)
