"""LoRA adapters in one batch with and without, held to PEFT on the same checkpoint."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import make_adapter, make_llama
from support.image_checkpoints import make_llava
from support.model_rig import Checkpoints, Rig, Step, Stream, assert_close, ints
from support.reference import load
from transformers import LlavaForConditionalGeneration

from pie_inference.errors import BadBatch, LoadError
from pie_inference.serving.engine import Engine
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import LoadAdapter

TOKENS = [int(t) for t in np.random.default_rng(5).integers(4, 300, 60)]
FAMILIES = ["llama", "qwen3", "gemma2", "qwen3-moe", "mixtral"]


@torch.inference_mode()
def wanted(model: Path, adapter: Path | None, tokens: list[int]) -> torch.Tensor:
    """Logits `[tokens, vocab]` by PEFT."""
    run: Any = load(model)
    if adapter is not None:
        from peft import PeftModel

        run = PeftModel.from_pretrained(load.__wrapped__(model), adapter).eval()
    logits: torch.Tensor = run(torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_and_none_in_one_batch(
    checkpoint: Checkpoints, tmp_path: Path, family: str
) -> None:
    model = checkpoint(family)
    # PEFT adapts experts that transformers has joined in another way, which is refused.
    experts = family in ("qwen3-moe", "mixtral")
    whole: Any = [f"{n}_proj" for n in "qkvo"] if experts else "all-linear"
    adapters: list[Path | None] = [
        make_adapter(model, tmp_path / "a", seed=1),
        None,
        make_adapter(model, tmp_path / "b", seed=2, r=3, target_modules=whole, use_dora=True),
        make_adapter(
            model, tmp_path / "c", seed=3, target_modules=r".*layers\.1\.self_attn\.(k|o)_proj"
        ),
    ]
    names = [a for a in adapters if a]
    rig = Rig(model, adapters={str(i): str(a) for i, a in enumerate(names)})
    slots = [-1 if a is None else names.index(a) for a in adapters]
    # The same adapter twice, in another order, texts of different lengths.
    order = [0, 1, 2, 3, 1, 0, 2]
    texts = [TOKENS[i : i + 20 + 3 * i] for i in range(len(order))]
    streams = [rig.sequence(60) for _ in order]
    prompts = [
        Step(stream, text[:-2], outputs=2, adapter=slots[which])
        for stream, text, which in zip(streams, texts, order, strict=True)
    ]
    found = rig.forward(*prompts)
    steps = []
    for i, turn in ((-2, 1), (-1, -1)):  # the second time backwards
        decoding = [
            Step(stream, [text[i]], adapter=slots[which])
            for stream, text, which in zip(streams, texts, order, strict=True)
        ]
        steps.append(rig.forward(*decoding[::turn])[::turn])
    for n, which in enumerate(order):
        logits = wanted(model, adapters[which], texts[n])
        assert_close(torch.cat([found[n], steps[0][n], steps[1][n]]), logits[-4:])


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True, "r": 9},
        {"target_modules": ["gate_proj", "up_proj", "down_proj", "q_proj"]},
        {
            "target_modules": ["q_proj", "k_proj", "v_proj"],
            "rank_pattern": {"k_proj": 2, r".*layers\.0\.self_attn\.v_proj": 7},
            "alpha_pattern": {"v_proj": 1.5, "model.layers.1.self_attn.q_proj": 11},
        },
        {"target_modules": ["o_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": "all-linear", "exclude_modules": ["k_proj"]},
        {"init_lora_weights": "gaussian", "lora_dropout": 0.1},
        {"use_dora": True, "target_modules": "all-linear", "use_rslora": True},
        {"use_dora": True, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["k_proj"]},
    ],
    ids=lambda config: "+".join(config),
)
def test_what_a_config_says(
    checkpoint: Checkpoints, tmp_path: Path, config: dict[str, Any]
) -> None:
    model = checkpoint("llama")
    adapter = make_adapter(model, tmp_path / "a", **config)
    rig = Rig(model, adapters={"a": str(adapter)})
    found = rig.read(TOKENS[:40], adapter=0)
    expected = wanted(model, adapter, TOKENS[:40])
    assert_close(found, expected)
    assert (expected - wanted(model, None, TOKENS[:40])).abs().max() > 0.01


WHOLE: list[dict[str, Any]] = [
    {"modules_to_save": ["lm_head", "embed_tokens"]},
    {"target_modules": ["embed_tokens", "lm_head", "q_proj"], "use_rslora": True},
    {"target_modules": ["lm_head"], "use_dora": True},
    {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True},
    {"modules_to_save": ["embed_tokens", "o_proj", "down_proj"]},
    {"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head", "k_proj"]},
]


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_and_heads_in_a_batch_with_plain_rows(tmp_path: Path, tied: bool) -> None:
    model = make_llama(tmp_path / "model", tied=tied)
    folders: list[Path | None] = [None]
    folders += [make_adapter(model, tmp_path / str(i), i, **c) for i, c in enumerate(WHOLE)]
    rig = Rig(model, adapters={str(a): str(folder) for a, folder in enumerate(folders[1:])})
    texts = [TOKENS[i : i + 9 + i] for i in range(len(folders))]
    streams = [rig.sequence(60) for _ in folders]
    found = []
    for part in (slice(-2), slice(-2, -1), slice(-1, None)):
        count = 2 if part.stop == -2 else 1
        steps = zip(streams, texts, range(-1, len(WHOLE)), strict=True)
        wants = [
            Step(stream, text[part], outputs=count, adapter=slot) for stream, text, slot in steps
        ]
        found.append(rig.forward(*wants))
    for n, folder in enumerate(folders):
        logits = wanted(model, folder, texts[n])
        mine, most = torch.cat([part[n] for part in found]), float(logits.abs().max())
        torch.testing.assert_close(mine, logits[-4:], rtol=1e-5, atol=1e-5 * most)
        assert n == 0 or (logits - wanted(model, None, texts[n])).abs().max() > 0.01


@torch.inference_mode()
def test_a_copied_embedding_keeps_its_token_and_a_chosen_one_has_it(tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "a", modules_to_save=["embed_tokens"])
    pool = Rig(model, adapters={"a": str(adapter)}).model.embeds
    pool.write(ints([3]), torch.ones(1, 64), ints([0]), ints([7]))
    pool.copy(ints([3]), ints([4]), ints([1]))
    assert pool.tokens[[3, 4]].tolist() == [7, 7]
    pool.write(ints([3]), torch.ones(1, 64), ints([0]))
    assert pool.tokens[[3, 4]].tolist() == [-1, 7]


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_experts_and_routers_are_adapted(
    checkpoint: Checkpoints, tmp_path: Path, family: str
) -> None:
    """PEFT adapts experts where they are modules of their own: the same as changed weights."""
    model = checkpoint(family)
    tensors = load_file(model / "model.safetensors")
    names = [
        n for n in tensors if re.search(r"\.experts\.\d+\.|\.(mlp|block_sparse_moe)\.gate\.", n)
    ]
    generator = torch.Generator().manual_seed(1)
    pairs: dict[str, torch.Tensor] = {}
    for name in names:
        out, inputs = tensors[name].shape
        down = torch.randn(4, inputs, generator=generator) * 0.1
        up = torch.randn(out, 4, generator=generator) * 0.1
        module = f"base_model.model.{name.removesuffix('.weight')}"
        pairs |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
        tensors[name] = tensors[name] + up @ down * 2
    changed = tmp_path / "changed"
    shutil.copytree(model, changed)
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    last = sorted({name.split(".")[-2] for name in names})
    adapter = write_adapter(tmp_path / "a", pairs, r=4, lora_alpha=8, target_modules=last)
    rig = Rig(model, adapters={"a": str(adapter)})
    own, other = rig.sequence(40), rig.sequence(40)
    found = rig.forward(
        Step(own, TOKENS[:30], outputs=30, adapter=0), Step(other, TOKENS[:30], outputs=30)
    )
    assert_close(found[0], wanted(changed, None, TOKENS[:30]))
    assert_close(found[1], wanted(model, None, TOKENS[:30]))


def test_the_language_model_of_a_larger_one(tmp_path: Path) -> None:
    model = make_llava(tmp_path / "llava")
    adapters = []
    for name, targets in (("own", r".*language_model.*\.(q_proj|up_proj)"), ("all", "all-linear")):
        base = LlavaForConditionalGeneration.from_pretrained(model).eval()
        from peft import LoraConfig, get_peft_model

        adapted = get_peft_model(base, LoraConfig(r=2, target_modules=targets))
        torch.manual_seed(1)
        with torch.no_grad():
            for each, parameter in adapted.named_parameters():
                if "lora_" in each:
                    parameter.normal_(0.0, 0.2)
        adapted.save_pretrained(tmp_path / name)
        adapters.append((tmp_path / name, adapted))
    (own, adapted), (everything, _) = adapters
    rig = Rig(model, adapters={"own": str(own)})
    found = rig.read(TOKENS[:20], adapter=0)
    with torch.inference_mode():
        assert_close(found, adapted(input_ids=torch.tensor([TOKENS[:20]])).logits[0])
    with pytest.raises(LoadError, match=r"(vision_tower|projector).* cannot be adapted"):
        rig.model.adapters.load(1, everything)


def test_bfloat16_and_float16_files(checkpoint: Checkpoints, tmp_path: Path) -> None:
    model = checkpoint("llama")
    adapter = make_adapter(model, tmp_path / "a")
    file = adapter / "adapter_model.safetensors"
    save_file({n: t.half() for n, t in load_file(file).items()}, file)
    rig = Rig(model, adapters={"a": str(adapter)})
    found = rig.read(TOKENS[:20], adapter=0)
    torch.testing.assert_close(found, wanted(model, adapter, TOKENS[:20]), atol=2e-2, rtol=0)


# What is refused


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir()
    text = json.dumps({"peft_type": "LORA", **config})
    (folder / "adapter_config.json").write_text(text)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


Q = "base_model.model.model.layers.0.self_attn.q_proj"
GOOD = {f"{Q}.lora_A.weight": torch.ones(2, 64), f"{Q}.lora_B.weight": torch.ones(64, 2)}
NOT_FINITE = r"tensor model.layers.0.self_attn.q_proj.lora_[AB].weight.* not finite"
PLAIN = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}


EMBEDDING = {
    f"base_model.model.model.embed_tokens.lora_embedding_{part}": torch.ones(2, 2) for part in "AB"
}


@pytest.mark.parametrize(
    ("tensors", "config", "text"),
    [
        (GOOD, {"use_dora": True}, "lora_magnitude_vector is there or lacks"),
        ({**GOOD, f"{Q}.lora_magnitude_vector": torch.ones(64)}, {}, "is there or lacks"),
        (
            {**GOOD, f"{Q}.lora_magnitude_vector": torch.full((64,), math.nan)},
            {"use_dora": True},
            "magnitude is not finite",
        ),
        ({f"{Q}.weight": torch.ones(64, 64)}, {"target_modules": ["v_proj"]}, "does not name it"),
        (
            {f"{Q}.weight": torch.ones(64, 3)},
            {"modules_to_save": ["q_proj"]},
            r"\[64, 3\], .* \[64, 64\]",
        ),
        ({f"{Q}.bias": torch.ones(64)}, {"modules_to_save": ["q_proj"]}, "not of a linear layer's"),
        (GOOD, {"bias": "all"}, "bias 'all' is not supported"),
        (GOOD, {"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        (GOOD, {"init_lora_weights": "pissa_niter_4"}, "changes the model's own weights"),
        (GOOD, {"target_parameters": ["experts.weight"]}, "target_parameters is not supported"),
        (GOOD, {"something_new": 3}, "something_new is not supported"),
        (GOOD, {"r": 3}, r"lora_A.weight is \[2, 64\], .* want \[3, 64\]"),
        (GOOD, {"r": 0}, "cannot be read: .*below 1"),
        (GOOD, {"r": "many"}, "adapter_config.json cannot be read"),
        (GOOD, {"target_modules": "(["}, "adapter_config.json cannot be read"),
        *(
            (GOOD, {"target_modules": targets}, "target_modules does not name it")
            for targets in (["v_proj"], ["proj"], r"\.0\.")
        ),
        (GOOD, {"target_modules": None}, "adapter_config.json cannot be read"),
        (
            EMBEDDING,
            {"target_modules": ["embed_tokens"]},
            r"lora_A.weight is \[2, 2\], .* want \[2, ",
        ),
        ({f"{Q}.lora_A.weight": torch.ones(2, 64)}, {}, "needs both"),
        ({f"{Q}.lora_magnitude_vector": torch.ones(64)}, {}, "it needs both"),
        ({f"{Q}.lora_magnitude": torch.ones(64)}, {}, "is not of a linear"),
        ({n: t.int() for n, t in GOOD.items()}, {}, "holds torch.int32"),
        *(
            ({**GOOD, f"{Q}.{of}.weight": GOOD[f"{Q}.{of}.weight"] * value}, {}, told)
            for of in ("lora_A", "lora_B")
            for value, told in ((math.nan, NOT_FINITE), (math.inf, NOT_FINITE))
        ),
        (GOOD, {"lora_alpha": math.nan}, NOT_FINITE),
        ({n.replace("0.self", "7.self"): t for n, t in GOOD.items()}, {}, "cannot be adapted"),
        ({}, {}, "is empty"),
    ],
)
def test_what_is_refused(
    checkpoint: Checkpoints,
    tmp_path: Path,
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any],
    text: str,
) -> None:
    adapter = write_adapter(tmp_path / "bad", tensors, **{**PLAIN, **config})
    with pytest.raises(LoadError, match=f"model .*llama: adapter .*bad: .*{text}"):
        Rig(checkpoint("llama"), adapters={"a": str(adapter)})


def test_files_that_lack_or_are_broken(checkpoint: Checkpoints, tmp_path: Path) -> None:
    rig = Rig(checkpoint("llama"))
    table = rig.model.adapters
    folder = tmp_path / "a"
    with pytest.raises(LoadError, match=r"there is no adapter_config.json"):
        table.load(0, folder)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **PLAIN}))
    with pytest.raises(LoadError, match=r"there is no adapter_model.safetensors"):
        table.load(0, folder)
    (folder / "adapter_model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(LoadError, match=r"adapter_model.safetensors cannot be read"):
        table.load(0, folder)
    (folder / "adapter_config.json").write_text("[")
    with pytest.raises(LoadError, match=r"adapter_config.json cannot be read"):
        table.load(0, folder)
    with pytest.raises(BadBatch, match="there is no adapter 0"):
        rig.forward(Step(rig.sequence(9), [5], adapter=0))


@pytest.mark.parametrize(
    "text", ["[" * 10**5, '{"peft_type": "LORA", "target_modules": "all-linear", "r": 1e999}']
)
def test_nothing_in_a_folder_ends_the_worker(
    checkpoint: Checkpoints, tmp_path: Path, text: str
) -> None:
    engine = Engine([ModelConfig(source=str(checkpoint("llama")), name="m", kv_pages=8)])
    save_file({}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(text)
    done = engine.load_adapter(LoadAdapter("m", 0, str(tmp_path)))
    assert done.error is not None


def test_loaded_and_unloaded_while_it_runs(checkpoint: Checkpoints, tmp_path: Path) -> None:
    model = checkpoint("llama")
    rig = Rig(model)
    adapter = make_adapter(model, tmp_path / "a")
    rig.model.adapters.load(3, adapter)

    def ask(stream: Stream) -> torch.Tensor:
        return rig.forward(Step(stream, TOKENS[:9], adapter=3))[0]

    assert_close(ask(rig.sequence(9)), wanted(model, adapter, TOKENS[:9])[-1:])
    rig.model.adapters.unload(3)
    with pytest.raises(BadBatch, match="there is no adapter 3"):
        ask(rig.sequence(9))
