# Run: python -m pytest tests/test_weights.py
"""Checkpoint folders: found, read under canonical names, or refused."""

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import (
    FULL,
    LINEAR,
    tiny_config,
    tiny_model,
    tiny_tensors,
    write_checkpoint,
    write_json,
)

from qwen.model import Model
from qwen.norm import rms
from qwen.weights import BUNDLED, find_model, load_weights

INDEX = "model.safetensors.index.json"
IDS = torch.arange(40).view(2, 20) * 7
SMALL = ("A_log", "dt_bias", "conv1d.weight", "norm.weight")
PREFIXES = ["model.", "model.language_model.", "language_model.model."]


def logits(folder, dtype=torch.float32):
    return Model.from_pretrained(folder, dtype)(IDS)


def refused(folder, *words, error=ValueError):
    with pytest.raises(error) as caught:
        Model.from_pretrained(folder)
    for word in words:
        assert word in str(caught.value)


def changed(**changes):
    """The tiny model's tensors with some replaced (None: left out)."""
    tensors = tiny_tensors(tiny_model())
    for name, value in changes.items():
        name = name.replace("__", ".")
        assert name in tensors
        tensors[name] = value
    return {name: t for name, t in tensors.items() if t is not None}


def load_all(file):
    return {name: t.clone() for name, t in load_file(file).items()}


# names, prefixes, files


@pytest.mark.parametrize("shards", [0, 1, 3])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_and_shards(prefix, shards, tmp_path):
    model = tiny_model()
    write_checkpoint(tmp_path, model, prefix=prefix, shards=shards)
    weights = load_weights(tmp_path)
    assert set(weights) == set(model.state_dict()) - {"lm_head.weight"}
    for name, tensor in weights.items():
        assert torch.equal(tensor, model.state_dict()[name])
    assert torch.equal(logits(tmp_path), model(IDS))


HEADS = ["", "model.", "language_model.", *PREFIXES[1:]]


@pytest.mark.parametrize("head_prefix", HEADS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_head_under_any_prefix(prefix, head_prefix, tmp_path):
    untied = tiny_config(tie_word_embeddings=False)
    model = tiny_model(tie_word_embeddings=False)
    names = {"prefix": prefix, "head_prefix": head_prefix}
    write_checkpoint(tmp_path, model, untied, **names)
    assert torch.equal(logits(tmp_path), model(IDS))


def test_a_name_that_comes_twice(tmp_path):
    extra = {"language_model.model.norm.weight": torch.ones(16)}
    write_checkpoint(tmp_path, extra=extra)
    refused(tmp_path, "two tensors", "norm.weight")


def test_the_index_beats_a_stray_file(tmp_path):
    write_checkpoint(tmp_path, tiny_model(1))
    write_checkpoint(tmp_path, tiny_model(2), shards=2)
    assert torch.equal(logits(tmp_path), tiny_model(2)(IDS))


def test_the_index_says_which_shard(tmp_path):
    """A copy of a tensor that the index does not name is not read."""
    write_checkpoint(tmp_path, shards=2)
    stray = {"model.norm.weight": torch.full((16,), 9.0), "odd": IDS}
    parts = sorted(tmp_path.glob("*.safetensors"))
    for part in parts:
        held = load_all(part)
        save_file(stray | held, part)
    assert torch.equal(logits(tmp_path), tiny_model()(IDS))


def test_a_shard_missing(tmp_path):
    """C18: the file is named."""
    write_checkpoint(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    words = "model-00002-of-00002.safetensors", "missing"
    refused(tmp_path, *words, error=FileNotFoundError)


def test_a_shard_without_its_tensor(tmp_path):
    write_checkpoint(tmp_path, shards=2)
    part = tmp_path / "model-00002-of-00002.safetensors"
    held = load_all(part)
    gone = held.popitem()[0]
    save_file(held, part)
    refused(tmp_path, part.name, gone)


@pytest.mark.parametrize("name", ["mtp.fc.weight", "model.visual.a.weight"])
def test_indexed_but_ignored_tensors_may_be_absent(name, tmp_path):
    """From a shard, or with their whole shard, or where that is broken."""
    write_checkpoint(tmp_path, shards=1)
    index = tmp_path / INDEX
    good = index.read_text()
    (tmp_path / "broken.safetensors").write_bytes(b"")
    files = "model-00001-of-00001.safetensors", "none.safetensors"
    for file in *files, "broken.safetensors":
        line = f'"weight_map": {{"{name}": "{file}",'
        index.write_text(good.replace('"weight_map": {', line))
        assert torch.equal(logits(tmp_path), tiny_model()(IDS))


OUTSIDE = ["../other/a.safetensors", "/etc/passwd", "a/b.safetensors", "..",
           "a\\b.safetensors", "", ".safetensors", 3, None, ["a"],
           "pytorch_model.bin", "model.gguf"]  # fmt: skip


@pytest.mark.parametrize("file", OUTSIDE)
def test_file_names_in_the_index(file, tmp_path):
    """Only safetensors files that lie in the folder itself."""
    write_checkpoint(tmp_path / "other")
    folder = write_checkpoint(tmp_path / "model")
    write_json(folder / INDEX, {"weight_map": {"model.norm.weight": file}})
    refused(folder, INDEX, repr(file), "not a safetensors file")


NO_MAP = [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": None}]


@pytest.mark.parametrize("index", NO_MAP)
def test_an_index_without_a_map(index, tmp_path):
    write_checkpoint(tmp_path)
    write_json(tmp_path / INDEX, index)
    refused(tmp_path, INDEX, "weight_map")


def test_an_index_that_is_no_json(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / INDEX).write_text("{")
    refused(tmp_path, INDEX, "not JSON")


# which tensors there must be


def test_mtp_keys_change_nothing(tmp_path):
    """C01: no gain is guessed at; -0.02 means 0.98, with mtp or without."""
    low = torch.full((16,), -0.02)
    tensors = changed(model__norm__weight=low)
    a = write_checkpoint(tmp_path / "a", tensors=tensors)
    mtp = {"mtp.fc.weight": torch.randn(16, 32)}
    b = write_checkpoint(tmp_path / "b", tensors=tensors, extra=mtp)
    assert torch.equal(logits(a), logits(b))
    x = torch.randn(5, 16)
    out = Model.from_pretrained(b).norm(x)
    torch.testing.assert_close(out, rms(x, 1e-6) * 0.98)


def test_which_norm_is_one_plus_w(tmp_path):
    """C02: zeros in every norm but the gated one, whose ones are gains."""
    tensors = tiny_tensors(tiny_model())
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name].fill_("linear_attn" in name)
    write_checkpoint(tmp_path, tensors=tensors)
    model = Model.from_pretrained(tmp_path)
    x = torch.randn(3, 16)
    for norm in (model.norm, model.layers[0].input_layernorm):
        assert torch.equal(norm(x), rms(x, 1e-6))
    head, z = torch.randn(3, 6), torch.randn(3, 6)
    out = model.layers[0].linear_attn.norm(head, z)
    wanted = rms(head, 1e-6) * torch.nn.functional.silu(z)
    torch.testing.assert_close(out, wanted)


def test_zeros_silence_the_gated_norm(tmp_path):
    """C02: zeros there are no unit gain."""
    name = "model__layers__0__linear_attn__norm__weight"
    write_checkpoint(tmp_path, tensors=changed(**{name: torch.zeros(6)}))
    mixer = Model.from_pretrained(tmp_path).layers[0].linear_attn
    assert not mixer(torch.randn(1, 5, 16)).any()


def test_an_untied_head_is_used(tmp_path):
    """C03: a head of minus the embedding turns every sign."""
    tensors = tiny_tensors(tiny_model())
    tied = write_checkpoint(tmp_path / "tied", tensors=tensors)
    tensors["lm_head.weight"] = -tensors["model.embed_tokens.weight"]
    untied = write_checkpoint(
        tmp_path / "untied",
        tensors=tensors,
        config=tiny_config(tie_word_embeddings=False),
    )
    assert torch.equal(logits(untied), -logits(tied))


def test_a_stored_head_is_ignored_when_tied(tmp_path):
    """Nor does it matter what it looks like."""
    extra = {"lm_head.weight": torch.randn(3, 4)}
    write_checkpoint(tmp_path, extra=extra)
    assert torch.equal(logits(tmp_path), tiny_model()(IDS))


def test_untied_and_no_head(tmp_path):
    """C05: an error that names it, never a random or a tied one."""
    untied = tiny_config(tie_word_embeddings=False)
    write_checkpoint(tmp_path, config=untied)
    refused(tmp_path, "lm_head.weight")


NAMES = sorted(tiny_tensors(tiny_model()))


@pytest.mark.parametrize("gone", NAMES)
def test_no_tensor_may_be_missing(gone, tmp_path):
    """C08: each one is asked for by name."""
    tensors = tiny_tensors(tiny_model())
    del tensors[gone]
    write_checkpoint(tmp_path, tensors=tensors)
    refused(tmp_path, "no tensor", gone.removeprefix("model."))


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_may_be_misshapen(name, tmp_path):
    """C08: not even one that would broadcast, nor C22's [C, 4, 1]."""
    tensors = tiny_tensors(tiny_model())
    shape = [*tensors[name].shape]
    turned = [*shape[:1], *shape[:0:-1]]
    for wrong in [1, *shape], [1], shape[::-1], turned:
        if wrong != shape:
            tensors[name] = torch.zeros(wrong)
            write_checkpoint(tmp_path, tensors=tensors)
            refused(tmp_path, name.removeprefix("model."), f"not {shape}")


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.mlp.up_proj.bias", "model.layers.9.mlp.up_proj.weight",
     "extra", "xmtp.a", "layers.0.mlp.up_proj.weight_scale_inv",
     "model.language_model.model.norm.bias", "visually.a", "model.mtp_a"],
)  # fmt: skip
def test_unknown_tensors_are_named(name, tmp_path):
    """C09: only what is known to be no part of the text model is skipped."""
    write_checkpoint(tmp_path, extra={name: torch.zeros(3)})
    refused(tmp_path, "unknown tensor", name.rpartition("model.")[2])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_mtp_and_visual_tensors_are_skipped(prefix, tmp_path):
    """C09: layer 0 of the MTP head is not layer 0 of the model."""
    nines = torch.full((16,), 9.0)
    gain = "layers.0.input_layernorm.weight"
    tensors = changed(**{"model." + gain: torch.zeros(16)})
    renamed = {prefix + n[len("model.") :]: t for n, t in tensors.items()}
    extra = {
        "mtp." + gain: nines,
        "mtp.norm.weight": nines.clone(),
        "model.visual.blocks.0.norm1.weight": nines.half(),
        "visual.patch_embed.proj.weight": nines.int(),
        "model.language_model.visual.merger.weight": nines.clone(),
    }
    write_checkpoint(tmp_path, tensors=renamed, extra=extra)
    assert not load_weights(tmp_path)[gain].any()
    assert set(load_weights(tmp_path)) == {n[len("model.") :] for n in tensors}
    write_checkpoint(tmp_path / "plain", tensors=tensors)
    assert torch.equal(logits(tmp_path), logits(tmp_path / "plain"))


def test_irregular_layers_load(tmp_path):
    """C12: as the list says, whatever the interval."""
    layers = [LINEAR, LINEAR, FULL, LINEAR, LINEAR, LINEAR]
    changes = {"layer_types": layers, "num_hidden_layers": 6}
    config = tiny_config(**changes, full_attention_interval=4)
    write_checkpoint(tmp_path, tiny_model(**changes), config)
    kinds = [layer.full for layer in Model.from_pretrained(tmp_path).layers]
    assert kinds == [kind == FULL for kind in layers]
    assert torch.equal(logits(tmp_path), tiny_model(**changes)(IDS))


def test_the_last_tap_is_the_newest(tmp_path):
    """C22: kernel 1, 2, 3, 4 answers 1, 0, 0, 0, 0 with 4, 3, 2, 1, 0."""
    kernel = torch.arange(1.0, 5).expand(40, 1, 4).contiguous()
    name = "model__layers__0__linear_attn__conv1d__weight"
    write_checkpoint(tmp_path, tensors=changed(**{name: kernel}))
    conv = Model.from_pretrained(tmp_path).layers[0].linear_attn.conv1d
    x = torch.zeros(1, 5, 40)
    x[:, 0] = 1
    assert conv(x)[0][0, :, 7].tolist() == [4, 3, 2, 1, 0]


# types


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_small_tensors_stay_fp32(stored, dtype, tmp_path):
    """C15: of the weights only the matrices are narrowed."""
    write_checkpoint(tmp_path, dtype=stored)
    kept = {name: t.to(stored) for name, t in tiny_model().named_parameters()}
    model = Model.from_pretrained(tmp_path, dtype)
    kinds = set()
    for name, parameter in model.named_parameters():
        small = name.endswith(SMALL)
        kinds.add(small)
        assert parameter.dtype == (torch.float32 if small else dtype), name
        wanted = kept[name.replace("lm_head", "embed_tokens")]
        assert torch.equal(parameter, wanted.to(parameter.dtype)), name
    assert kinds == {True, False}
    assert model(IDS).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decay_rates_are_exact(dtype, tmp_path):
    """C15: these rates of forgetting, rounded to bf16, would drift."""
    rates = torch.tensor([0.05, 1.7, 7.3, 15.9])
    name = "model__layers__0__linear_attn__A_log"
    write_checkpoint(tmp_path, tensors=changed(**{name: rates.log()}))
    narrow = Model.from_pretrained(tmp_path, dtype).layers[0].linear_attn
    exact = Model.from_pretrained(tmp_path).layers[0].linear_attn
    assert torch.equal(narrow.A_log, rates.log())
    exact.in_proj_a.weight.zero_()
    narrow.in_proj_a.weight.zero_()
    x = torch.randn(1, 3, 16)
    assert torch.equal(narrow.gates(x)[0], exact.gates(x)[0])


def test_without_a_dtype_tensors_are_as_stored(tmp_path):
    write_checkpoint(tmp_path, dtype=torch.bfloat16)
    assert {t.dtype for t in load_weights(tmp_path).values()} == {
        torch.bfloat16
    }


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_quantised_tensors_are_refused(dtype, tmp_path):
    """C17: by the files alone, if the config is silent."""
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = tiny_tensors(tiny_model())
    tensors[name] = torch.ones(24, 16).to(getattr(torch, dtype))
    scales = {name + "_scale_inv": torch.ones(1, 1)}
    write_checkpoint(tmp_path, tensors=tensors, extra=scales)
    refused(tmp_path, name, dtype, "not supported")


def test_a_quantised_config_is_refused(tmp_path):
    """C17: before a file of weights is opened."""
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    write_checkpoint(tmp_path, config=tiny_config(quantization_config=how))
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(tmp_path, "quantization_config", "fp8")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux only")
def test_files_are_mapped_not_copied(tmp_path):
    write_checkpoint(tmp_path, shards=2)
    model = Model.from_pretrained(tmp_path)
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(tmp_path) in line:
            mapped.append([int(x, 16) for x in line.split()[0].split("-")])
    for name, parameter in model.named_parameters():
        where = parameter.data_ptr()
        assert any(start <= where < end for start, end in mapped), name


# files that are not what they should be


def header(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


BROKEN = {
    "empty": b"",
    "a few bytes": b"1234567",
    "no header": struct.pack("<Q", 0),
    "a header past the end": struct.pack("<Q", 2**40) + b"{}",
    "a header that is no JSON": header(b"{{{{{{{{"),
    "GGUF": b"GGUF\3\0\0\0" + bytes(64),
    "pickle": pickle.dumps({"model.norm.weight": [0.0] * 16}),
    "an unknown type": header(
        b'{"a":{"dtype":"F6_E2M3","shape":[8],"data_offsets":[0,6]}}', b"12345"
    ),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_files(data, tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    refused(tmp_path, "model.safetensors", "can't be read")


@pytest.mark.parametrize("eighths", range(8))
def test_truncated_files(eighths, tmp_path):
    write_checkpoint(tmp_path, shards=2)
    file = tmp_path / "model-00002-of-00002.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * eighths // 8])
    refused(tmp_path, file.name, "can't be read")
    file.write_bytes(data[:-1])
    refused(tmp_path, file.name, "can't be read")


def test_a_folder_in_place_of_a_file(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    refused(tmp_path, "model.safetensors", "can't be read")


def test_no_weights_at_all(tmp_path):
    write_json(tmp_path / "config.json", tiny_config())
    words = "no model.safetensors", str(tmp_path)
    refused(tmp_path, *words, error=FileNotFoundError)


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_opened(tmp_path):
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    folder = write_checkpoint(tmp_path / "model")
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (folder / name).write_bytes(trap)
    Model.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(trap)
    refused(folder, "can't be read")
    (folder / "model.safetensors").unlink()
    refused(folder, "no model.safetensors", error=FileNotFoundError)
    bins = {"model.norm.weight": "pytorch_model.bin"}
    write_json(folder / INDEX, {"weight_map": bins})
    refused(folder, "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickle"):
        find_model(folder / "pytorch_model.bin")
    assert not sprung.exists()
    pickle.loads(trap)  # the trap works
    assert sprung.exists()


# where a model is looked for


def test_the_order_of_places(tmp_path, monkeypatch):
    monkeypatch.delenv("QWEN_MODEL", raising=False)
    assert find_model() == BUNDLED
    monkeypatch.setenv("QWEN_MODEL", str(tmp_path))
    assert find_model() == tmp_path
    (tmp_path / "sub").mkdir()
    assert find_model(tmp_path / "sub") == tmp_path / "sub"
    assert find_model(str(tmp_path / "sub")) == tmp_path / "sub"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_model("~/sub") == tmp_path / "sub"
    monkeypatch.chdir(tmp_path)
    assert find_model("sub") == Path("sub")


@pytest.mark.parametrize(
    "name",
    ["/no/such/folder", "./missing", "../missing", "missing", "a/b/c", "a/b@",
     "~/x", "https://a/b", "a/b c", "a/b@r s", "\0", "a/b\n"],
)  # fmt: skip
def test_names_that_are_no_hub_id(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(FileNotFoundError, match="no such model folder") as e:
        find_model(name)
    assert name in str(e.value)


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "a.bin"])
def test_a_file_is_no_model(name, tmp_path):
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="is a file") as caught:
        find_model(tmp_path / name)
    assert name in str(caught.value)


def test_what_is_fetched_from_the_hub(tmp_path, monkeypatch):
    calls = []

    def fetch(repo, **options):
        calls.append((repo, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert find_model("owner/na.me-1") == tmp_path
    assert find_model("owner/name@refs/pr/1") == tmp_path
    only = ["*.safetensors", "*.json", "*.jinja"]
    assert calls == [
        ("owner/na.me-1", {"revision": None, "allow_patterns": only}),
        ("owner/name", {"revision": "refs/pr/1", "allow_patterns": only}),
    ]


def test_a_hub_that_fails_is_named(monkeypatch):
    def fail(repo, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(FileNotFoundError, match="owner/name.*Connection"):
        find_model("owner/name")


COMMITS = {"main": "0" * 40, "v2": "1" * 40}


def test_the_hub_cache_is_used_offline(tmp_path):
    """In a fresh interpreter, as the library reads its settings once."""
    repo = tmp_path / "hub" / "models--owner--name"
    for ref, commit in COMMITS.items():
        (repo / "snapshots" / commit).mkdir(parents=True)
        (repo / "snapshots" / commit / "config.json").write_text("{}")
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    code = (
        "import sys\n"
        "from qwen.weights import find_model\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(find_model(name).name)\n"
        "    except FileNotFoundError as error: print(error)\n"
    )
    names = "", "@v2", "@" + "1" * 40, "@v3"
    settings = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *["owner/name" + n for n in names]],
        env=os.environ | settings,
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["0" * 40, "1" * 40, "1" * 40], done.stderr
    assert "owner/name@v3" in lines[3] and "offline" in lines[3]
