# Run with: python -m pytest tests/test_bench.py
"""The benchmark prints what it should, on a model of a few weights.

No test looks at how long anything took.
"""

import json
import sys
from pathlib import Path

import pytest
import torch
from toy import toy_config, toy_dict

from qwen import bench, bench_times
from qwen.bench_models import PEER, bytes_of_a_step
from qwen.cache import State
from qwen.config import Config
from qwen.model import Model

LABELS = [
    "load, s",
    "prefill of 5, tokens/s",
    "prefill of 9, tokens/s",
    "decode after 5, tokens/s",
    "decode after 5, share of the bandwidth",
    "decode after 9, tokens/s",
    "decode after 9, share of the bandwidth",
    "4 tokens after 17, with state, s",
    "by recompute, last logit (every second pass, doubled), s",
    "by recompute, last logit / with state",
    "by recompute, all logits (every second pass, doubled), s",
    "by recompute, all logits / with state",
    "peak memory with 9 tokens, GB",
]
SETTINGS = ["--prompts", "5", "9", "--steps", "2", "--rounds", "2"]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Run the benchmark on a small model; return what it printed."""
    small = toy_dict(model_type="qwen3_5_text", tie_word_embeddings=True)
    small |= {"architectures": ["Qwen3_5ForCausalLM"]}
    monkeypatch.setattr(bench, "CONFIG", small)
    monkeypatch.setattr(bench_times, "NEW", 4)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bench", *SETTINGS, *arguments])
        bench.main()
        return capsys.readouterr().out

    return run


def read(out):
    """The table as {label: [cell]}, and the last line."""
    lines = [x for x in out.splitlines() if x.startswith("|")]
    cells = [[c.strip() for c in x.strip("|").split("|")] for x in lines]
    assert cells[1] == ["---"] * len(cells[0])
    return {row[0]: row[1:] for row in cells}, json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_the_table_and_the_line(printed):
    rows, line = read(printed("--vs", "transformers"))
    names = [PEER, "float32", "packed"]
    assert rows[""] == names == list(line["results"])
    assert [label for label in rows if label.strip("-")] == LABELS
    assert list(line["results"]["float32"]) == LABELS
    for name, found in line["results"].items():
        assert all(value > 0 for value in found.values()), name
        for label, value in found.items():
            cell = rows[label][names.index(name)]
            first = line["results"][PEER].get(label)
            ratio = f" ({value / first:.2f}x)" if first else ""
            assert cell == f"{value:.2f}" + ratio * label.endswith("tokens/s")
    for name in ("float32", "packed"):
        found = list(line["results"][name].values())
        with_state, last, ratio, whole, ratio_of_all = found[-6:-1]
        assert ratio == last / with_state
        assert ratio_of_all == whole / with_state
    assert [rows[label][0] for label in LABELS[-6:-1]] == ["-"] * 5
    assert line["rounds"] == 2 and line["bandwidth, GB/s"] > 0


def test_one_kind(printed):
    rows, line = read(printed("--dtype", "bfloat16"))
    assert rows[""] == ["bfloat16"]
    assert rows["prefill of 5, tokens/s"][0].endswith("(1.00x)")


def test_without_fbgemm(printed, monkeypatch):
    """bf16 weights are measured all the same."""
    kind = type(torch.backends.quantized)
    monkeypatch.setattr(kind, "supported_engines", ["none"])
    monkeypatch.setattr(bench, "peak_elsewhere", lambda *arguments: 1e9)
    rows, _ = read(printed())
    assert rows[""] == ["float32", "bfloat16"]


def test_what_enters_the_model():
    """NEW tokens: the prompt and NEW - 1; recomputed, each second text."""
    seen = []

    class Runner:
        def read(self, ids, state=None):
            seen.append((ids.tolist()[0], state))
            return len(seen)

        def recompute(self, ids, logits_to_keep):
            seen.append((ids.tolist()[0], logits_to_keep))

    ids = torch.arange(80)[None]
    bench_times.answer(Runner(), ids)
    want = [(list(range(17)), None)]
    want += [([17 + i], 1 + i) for i in range(37)]
    assert seen == want
    seen.clear()
    bench_times.recompute(Runner(), ids, 7)
    assert seen == [(list(range(n)), 7) for n in range(17, 55, 2)]


def test_without_transformers(printed, monkeypatch):
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="transformers: it is not installed"):
        printed("--vs", "transformers")


def test_the_figures_are_those_of_the_real_model():
    """The same Config as the file on the hub, of which tests have a copy."""
    path = Path(__file__).parent / "configs/qwen3.5-0.8b.json"
    real = Config.from_dict(json.loads(path.read_text()))
    assert Config.from_dict(bench.CONFIG) == real


@pytest.mark.parametrize("tied", [True, False])
def test_bytes_of_a_step(tied):
    """Counted from a model and its state: all that a step reads."""
    config = toy_config(tie_word_embeddings=tied)
    model = Model(config)
    state = State(model)
    model(torch.zeros(1, 7, dtype=torch.int64), state=state)
    want = sum(p.numel() for p in model.parameters())
    if not tied:
        want -= model.embed_tokens.weight.numel()
    want = want * 2 + state.megabytes() * 2**20
    weights = sum(p.numel() for p in model.parameters())
    d = toy_dict(tie_word_embeddings=tied)
    assert bytes_of_a_step(d, weights, "bfloat16", 7) == want
