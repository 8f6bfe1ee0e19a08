"""Tiny checkpoint folders for tests, in the checkpoint's own format.

    folder = write_checkpoint(tmp_path, prefix="language_model.model.")
    folder = write_checkpoint(tmp_path, shards=3, dtype=torch.bfloat16)
    folder = write_checkpoint(tmp_path, tokenizer=True)   # can be chatted to

Every part can be had alone: `tiny_config`, `tiny_model`, `tiny_core`.
"""

import copy
import json
from functools import cache
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from qwen.config import Config
from qwen.model import Model
from qwen.weights import BUNDLED

LINEAR, FULL = "linear_attention", "full_attention"
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 320,  # spare rows, as large models have: there are 280 ids
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 2,
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
TAGS = ["<think>", "</think>"]  # ids 3, 4: text, not special
TEXT = "Mia put the red key in the drawer. Where is the key? In the drawer."


def tiny_config(**changes):
    """A fresh `config.json` as a dict; a value of None leaves a key out."""
    config = copy.deepcopy(CONFIG) | changes
    return {key: value for key, value in config.items() if value is not None}


def tiny_model(seed=0, **changes):
    """A Model with random weights, fp32; norms and gates are random too."""
    torch.manual_seed(seed)
    model = Model(Config.from_dict(tiny_config(**changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval().requires_grad_(False)


def tiny_tensors(model, prefix="model.", head_prefix=""):
    """{name in a checkpoint file: tensor} of a model.

    `prefix` stands before all names but `lm_head.weight`, `head_prefix`
    before that one, which a tied model does not store.
    """
    tensors = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith("lm_head."):
            tensors[prefix + name] = tensor
        elif not model.config.tie_word_embeddings:
            tensors[head_prefix + name] = tensor
    return tensors


def write_checkpoint(
    folder,
    model=None,
    config=None,
    tensors=None,
    prefix="model.",
    head_prefix="",
    shards=0,
    dtype=None,
    extra=None,
    tokenizer=False,
):
    """Write a checkpoint to `folder` (made if need be); return its Path.

    `model`: what to store, else `tiny_model()`; `config`: the dict for
    config.json, else one that fits `tiny_model()`; `tensors`: what to
    store in place of the model's. `shards`: 0 is one file, else that many
    and an index. `dtype`: what to store all tensors of the model in.
    `extra`: {full name: tensor}, stored as it is. `tokenizer`: write
    tokenizer files and a chat template, too.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config or tiny_config())
    if tensors is None:
        tensors = tiny_tensors(model or tiny_model(), prefix, head_prefix)
    tensors = {name: t.to(dtype) for name, t in tensors.items()}
    tensors |= extra or {}
    if shards:
        write_shards(folder, tensors, shards)
    else:
        save_file(tensors, folder / "model.safetensors")
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_shards(folder, tensors, shards):
    """Deal the tensors out over `shards` files, in turn; write an index."""
    files = [
        f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)
    ]
    names = sorted(tensors)
    for n, file in enumerate(files):
        part = {name: tensors[name] for name in names[n::shards]}
        save_file(part, folder / file)
    where = {name: files[n % shards] for n, name in enumerate(names)}
    index = {"metadata": {}, "weight_map": where}
    write_json(folder / "model.safetensors.index.json", index)


def write_tokenizer(folder):
    """tokenizer.json, its config, and the project's chat template."""
    tiny_core().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    template = (BUNDLED / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_json(file, value):
    Path(file).write_text(json.dumps(value, indent=1), encoding="utf-8")


@cache
def tiny_core():
    """A byte-level BPE of 280 ids, as the `tokenizers` library has it."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=SPECIAL + TAGS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([TEXT] * 2, trainer)
    core.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    # as it is written: until then the tags count as special all the same
    return tokenizers.Tokenizer.from_str(core.to_str())
