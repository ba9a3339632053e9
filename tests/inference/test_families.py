"""Every family equals transformers: logits, and greedy text token for token."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.checkpoints import small_tokenizer
from support.families import FAMILIES, VARIANTS, WINDOW, make_family
from support.model_rig import Rig, Step, assert_close, causal, expected_logits, runs_of, tokens_of
from support.reference import greedy, load

from pie_inference.errors import LoadError
from pie_inference.layers.kernels import Kernels
from pie_inference.models.registry import ARCHITECTURES


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family(tmp_path_factory.mktemp("model") / request.param, request.param)


def test_every_architecture_is_among_the_families() -> None:
    text = [name for name in ARCHITECTURES if name.endswith("ForCausalLM")]
    names = {name.removesuffix("ForCausalLM").lower() for name in text}
    assert names == {name.replace("-moe", "moe").partition("-")[0] for name in FAMILIES | VARIANTS}


@pytest.mark.parametrize("left_out", ["head_dim", "rms_norm_eps", "attention_bias"])
def test_what_a_config_leaves_out_is_as_in_transformers(left_out: str) -> None:
    for name, family in ARCHITECTURES.items():
        if name.endswith("ForCausalLM"):
            config = getattr(transformers, name).config_class().to_dict()
            if config.get(left_out) is not None and name != "Glm4MoeForCausalLM":  # 42 a head there
                less = {key: value for key, value in config.items() if key != left_out}
                assert family.decoder(less) == family.decoder(config), name


def test_a_prompt_in_chunks_then_decoding(folder: Path) -> None:
    rig = Rig(folder, page_size=(8, 32)[list(FAMILIES).index(folder.name) % 2])
    tokens = tokens_of(90)
    wanted = expected_logits(folder, tokens)
    sequence = rig.sequence(len(tokens))
    done = 0
    for chunk in (11, 2, 1, 37, 3, *[1] * 10, 9, *[1] * 17):
        (found,) = rig.forward(Step(sequence, tokens[done : done + chunk], outputs=chunk))
        assert_close(found, wanted[done : done + chunk])
        done += chunk
    assert done == len(tokens)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, tmp_path: Path) -> None:
    """Prompts in chunks, sequences together, greedy text; tied or not, two shapes each."""
    shapes: tuple[dict[str, Any], ...]
    shapes = ({"hidden_size": 64}, {"num_key_value_heads": 1, "hidden_size": 128})
    for i, shape in enumerate(shapes):
        if name in ("llama-long", "phi3-long") and i:
            shape = {"num_attention_heads": 8, **shape}  # its factors are for heads of 16
        folder = make_family(tmp_path / str(i), name, tie_word_embeddings=bool(i), **shape)
        # These are served as far as they were trained, where transformers has the short factors.
        rig = Rig(folder, page_size=8, max_length=256 if name.endswith("-long") else None)
        texts = [tokens_of(40, seed=i), tokens_of(25, seed=9)]
        wanted = [expected_logits(folder, text) for text in texts]
        sequences = [rig.sequence(len(text) + 8) for text in texts]
        for start, end in ((0, 11), (11, 24), (24, 25)):
            steps = [
                Step(sequence, text[start:end], outputs=end - start)
                for sequence, text in zip(sequences, texts, strict=True)
            ]
            for found, logits in zip(rig.forward(*steps), wanted, strict=True):
                assert_close(found, logits[start:end])
        text = [int(wanted[1][-1].argmax())]
        while len(text) < 8:
            (logits,) = rig.forward(Step(sequences[1], text[-1:]))
            text.append(int(logits[-1].argmax()))
        assert text == greedy(folder, texts[1], 8)


@pytest.mark.parametrize(
    ("name", "norms", "widths"), [("qwen3", 4, {96}), ("qwen2-moe-plain", 2, {48, 40})]
)
def test_every_layer_uses_a_device_s_kernels(
    name: str, norms: int, widths: set[int], tmp_path: Path
) -> None:
    """Norms of queries and keys, shared experts, and the norm behind the layers, among them."""
    rig = Rig(make_family(tmp_path / "model", name))
    used: Counter[str] = Counter()
    gated: set[int] = set()

    def norm(x: torch.Tensor, *_: object) -> torch.Tensor:
        used["norm"] += 1
        return x

    def gate(both: torch.Tensor) -> torch.Tensor:
        gated.add(both.shape[1] // 2)
        return both.chunk(2, -1)[0]

    def rotate(*_: torch.Tensor) -> None:
        used["rotate"] += 1

    rig.model.network.use(Kernels(norm=norm, gated={"silu": gate}, rotate=rotate))
    rig.forward(Step(rig.sequence(9), tokens_of(9)))
    layers = rig.model.description.layers
    assert used == {"norm": norms * layers + 1, "rotate": layers}
    assert gated == widths


def test_layers_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    """DeepSeek V3 stores one behind its last."""
    folder = make_family(tmp_path / "model", "deepseekv3-plain")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.eh_proj.weight"] = torch.zeros(4, 8)
    save_file(tensors, folder / "model.safetensors")
    assert_close(Rig(folder).read(tokens_of(9)), expected_logits(folder, tokens_of(9)))


def test_experts_that_are_stored_together(tmp_path: Path) -> None:
    """As Qwen 3.5 has them, where transformers writes them one by one."""
    folder = make_family(tmp_path / "model", "qwen3_5moe")
    tokens = tokens_of(20)
    wanted = expected_logits(folder, tokens)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp.experts."
        each = {
            kind: [tensors.pop(f"{prefix}{i}.{kind}_proj.weight") for i in range(4)]
            for kind in ("gate", "up", "down")
        }
        both = [torch.cat(pair) for pair in zip(each["gate"], each["up"], strict=True)]
        tensors[f"{prefix}gate_up_proj"] = torch.stack(both)
        tensors[f"{prefix}down_proj"] = torch.stack(each["down"])
    save_file(tensors, folder / "model.safetensors")
    assert_close(Rig(folder).read(tokens), wanted)


@pytest.mark.parametrize("kind", ["Qwen3VL", "Qwen3_5"])
@torch.inference_mode()
def test_the_text_of_models_that_read_images(kind: str, tmp_path: Path) -> None:
    """Their ropes have three directions, which are one for text."""
    config = getattr(transformers, f"{kind}Config")(
        text_config={
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": len(small_tokenizer()),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 16,
            "initializer_range": 0.1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50_000.0,
                "mrope_section": [6, 5, 5] if kind == "Qwen3VL" else [2, 1, 1],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
        },
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    model.save_pretrained(tmp_path / "model")
    small_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").write_text('{"patch_size": 16}')
    tokens = tokens_of(40)
    rig = Rig(tmp_path / "model")
    assert_close(rig.read(tokens), model(input_ids=torch.tensor([tokens])).logits[0])
    assert rig.model.description.architecture == f"{kind}ForConditionalGeneration"


def test_greedy_text(folder: Path) -> None:
    rig = Rig(folder, page_size=8, pages=200)
    prompts = [tokens_of(n, seed=50 + n) for n in (1, 5, 20, 33)]
    wanted = [greedy(folder, prompt, 30) for prompt in prompts]
    sequences = [rig.sequence(len(prompt) + 30) for prompt in prompts]
    texts: list[list[int]] = [[] for _ in prompts]
    inputs = prompts
    for _ in range(30):
        steps = [Step(s, tokens) for s, tokens in zip(sequences, inputs, strict=True)]
        inputs = [logits[-1:].argmax(1).tolist() for logits in rig.forward(*steps)]
        for text, (token,) in zip(texts, inputs, strict=True):
            text.append(token)
    assert texts == wanted


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 48,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 1.7, 1.8, 1.9, 2.0],
    "long_factor": [1.0, 1.5, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0],
}


@pytest.mark.parametrize("served", [48, 90])  # as trained, and further
@pytest.mark.parametrize(
    ("family", "length", "parameters"),
    [("llama", 48, DYNAMIC), ("llama", 96, LONG), ("phi3", 96, LONG)],
)
def test_the_longest_text_decides_how_all_keys_of_a_text_turn(
    tmp_path: Path, family: str, length: int, parameters: dict[str, Any], served: int
) -> None:
    """As transformers reads a text of that length at once, however the tokens come."""
    known: dict[str, Any] = {"original_max_position_embeddings": 48}  # Phi 3 has it there, too
    folder = make_family(
        tmp_path / "model",
        family,
        max_position_embeddings=length,
        rope_parameters=parameters,
        **(known if family == "phi3" else {}),
    )
    assert Rig(folder).model.description.max_position == 96
    rig = Rig(folder, page_size=8, max_length=served)
    assert rig.model.description.max_position == served
    tokens = tokens_of(served)
    wanted = expected_logits(folder, tokens)
    sequence = rig.sequence(served)
    assert_close(rig.read(tokens), wanted)
    for start, end in itertools.pairwise((0, 20, 47, *range(48, served, 14), served)):
        (found,) = rig.forward(Step(sequence, tokens[start:end], outputs=end - start))
        assert_close(found, wanted[start:end])


def test_a_longest_text_beyond_what_the_model_can_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama")
    with pytest.raises(LoadError, match="max_length: 513 tokens, and the model serves 512 at most"):
        Rig(folder, max_length=513)


def test_explicit_masks_and_masked_slots(folder: Path) -> None:
    """A window narrows what a mask shows."""
    numbers = np.random.default_rng(3)
    rig = Rig(folder, page_size=8)
    tokens = tokens_of(50)
    sequence = rig.sequence(50)
    rig.forward(Step(sequence, tokens[:30], outputs=0))
    hidden = [0, 7, 8, 21, 29]
    rig.mask(sequence, hidden)
    visible = causal(50)
    visible[30:] = numbers.random((20, 50)) < 0.5
    visible[np.arange(50), np.arange(50)] = True
    rows = visible[30:].copy()
    visible[30:, hidden] = False
    # Also a plain sequence beside it, and one more round in which the mask has one row.
    other = rig.sequence(16)
    found, plain = rig.forward(
        Step(sequence, tokens[30:49], outputs=19, mask=runs_of(rows[:19, :49]), masked=True),
        Step(other, tokens[:16], outputs=16),
    )
    visible[30:49, 49] = False
    wanted = expected_logits(folder, tokens, visible=visible)
    assert_close(found, wanted[30:49])
    assert_close(plain, expected_logits(folder, tokens[:16]))
    (last,) = rig.forward(Step(sequence, tokens[49:], mask=runs_of(rows[19:]), masked=True))
    assert_close(last, wanted[49:])


def test_a_window_counts_positions(folder: Path) -> None:
    """Gaps in the positions move tokens out of the window; copies keep their positions."""
    rig = Rig(folder, page_size=8)
    tokens = tokens_of(30)
    positions = [*range(10), *range(15, 25), *range(40, 50)]
    wanted = expected_logits(folder, tokens, positions=positions, visible=causal(30))
    source, target = rig.sequence(30), rig.sequence(30)
    rig.forward(Step(source, tokens[:10], positions=positions[:10], outputs=0))
    rig.copy(source.slots(0, 10), target.slots(0, 10))
    target.used = 10
    for sequence in (target, source):
        (found,) = rig.forward(
            Step(sequence, tokens[10:20], positions=positions[10:20], outputs=10)
        )
        assert_close(found, wanted[10:20])
    for i in range(20, 30):  # two that decode side by side
        steps = [
            Step(s, tokens[i : i + 1], positions=positions[i : i + 1]) for s in (source, target)
        ]
        for found in rig.forward(*steps):
            assert_close(found, wanted[i : i + 1])


def test_what_a_window_hides_altogether_is_zero_attention(tmp_path: Path) -> None:
    """A mask that shows only keys before the window shows nothing: finite, and no other's key."""
    folder = make_family(tmp_path / "model", "mistral")
    rig = Rig(folder)
    tokens = tokens_of(40)
    sequence = rig.sequence(40)
    rig.forward(Step(sequence, tokens[:39], outputs=0))
    rows = np.zeros((1, 40), np.bool_)
    rows[0, : 39 - WINDOW + 1] = True
    (far,) = rig.forward(Step(sequence, tokens[39:], mask=runs_of(rows), keep=False))
    (nothing,) = rig.forward(Step(sequence, tokens[39:], mask=[1, 40], keep=False))
    assert bool(far.isfinite().all())
    assert_close(far, nothing)
    rows[0, 39 - WINDOW + 1] = True
    (near,) = rig.forward(Step(sequence, tokens[39:], mask=runs_of(rows), keep=False))
    assert (near - nothing).abs().max() > 0.1


@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "qwen3-moe"])
def test_tied_and_untied_and_sharded(name: str, tmp_path: Path) -> None:
    tokens = tokens_of(40)
    for tied in (False, True):
        folder = make_family(tmp_path / str(tied), name, tie_word_embeddings=tied, shards=3)
        assert len(list(folder.glob("*.safetensors"))) > 1
        assert_close(Rig(folder).read(tokens), expected_logits(folder, tokens))


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_bfloat16_is_nearer_to_float32_than_that_of_transformers(name: str, tmp_path: Path) -> None:
    # All experts are chosen, so that rounding does not decide which.
    every = {"mixtral": 4, "qwen3-moe": 6, "qwen3-moe-window": 4}
    more = {"num_experts_per_tok": every[name]} if name in every else {}
    folder = make_family(tmp_path / "model", name, dtype="bfloat16", initializer_range=0.1, **more)
    tokens = tokens_of(60)
    exact = load(folder)(torch.tensor([tokens])).logits[0]
    theirs = load(folder, torch.bfloat16)(torch.tensor([tokens])).logits[0]
    rig = Rig(folder, dtype="bfloat16")
    assert rig.model.description.dtype == "bfloat16"
    sequence = rig.sequence(60)
    parts = [
        rig.forward(Step(sequence, tokens[a:b], outputs=b - a))[0]
        for a, b in ((0, 31), (31, 32), (32, 60))
    ]
    ours = torch.cat(parts)

    def error(logits: torch.Tensor) -> float:
        return float((logits.float() - exact).norm(dim=1).median())

    assert error(ours) <= 0.95 * error(theirs)


OLD_NAMES: dict[str, dict[str, Any]] = {
    "mistral": {"rope_theta": 50_000.0},
    "llama": {
        "rope_theta": 20_000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "num_key_value_heads": 2,
    },
    "gemma3": {
        "rope_theta": 500_000.0,
        "rope_local_base_freq": 5_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "sliding_window_pattern": 2,
        "layer_types": None,
    },
    "gemma2": {"layer_types": None, "rope_theta": 20_000.0, "hidden_activation": None},
    "qwen2-window": {"layer_types": None, "rope_theta": 20_000.0},
}


@pytest.mark.parametrize("name", OLD_NAMES)
def test_configurations_as_they_were_written_before_transformers_5(
    name: str, tmp_path: Path
) -> None:
    folder = make_family(tmp_path / "model", name)
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **OLD_NAMES[name]}
    del config["rope_parameters"]
    for key in [k for k, v in config.items() if v is None and k != "sliding_window"]:
        del config[key]
    file.write_text(json.dumps(config))
    assert_close(Rig(folder).read(tokens_of(40)), expected_logits(folder, tokens_of(40)))
