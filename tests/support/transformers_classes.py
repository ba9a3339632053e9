"""Each class of transformers' that writes text, small and random: is it served exactly?

    PYTHONPATH=tests python -m support.transformers_classes [--images] [--only PART]

tells each class's outcome in a line of JSON, of the prompt in pieces, steps and both in one batch;
with `--images` of those that read images, with two each.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import resource
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from pie_inference import handlers
from pie_inference.errors import LoadError
from pie_inference.loading.assembly import load_models
from pie_inference.models.by_transformers.network import ByTransformers
from pie_py.config.model import ModelConfig
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import EmbedImage, EmbedText, Forward
from support.small_processors import SIZES as IMAGE_SIZES
from support.small_processors import save_processor, tell_tokens

PAGE = 8
ERROR = 1e-3  # of log-probabilities, at most
SECONDS, MEMORY = 600, 16 << 30  # for one class
# Sizes by the end of their names in a configuration. What is not named keeps its default.
NAMES = {
    64: "hidden_size n_embd d_model word_embed_proj_dim",
    96: "intermediate_size ffn_dim",
    4: """num_hidden_layers num_layers decoder_layers n_layer n_layers num_attention_heads
    attention_heads num_heads n_head n_heads num_experts num_local_experts n_routed_experts
    moe_num_experts mamba_n_heads mamba_num_heads mm_tokens_per_image""",
    1: "encoder_layers n_group topk_group n_shared_experts bos_token_id",
    2: """num_key_value_heads num_experts_per_tok linear_num_key_heads linear_num_value_heads
    n_groups mamba_n_groups eos_token_id decoder_start_token_id""",
    16: """head_dim kv_lora_rank qk_nope_head_dim linear_key_head_dim linear_value_head_dim
    mamba_d_state ssm_state_size state_size""",
    160: "vocab_size vocab_size_per_layer_input",
    256: "max_position_embeddings n_positions n_ctx max_seq_len",
    0.15: "initializer_range init_std",
    12: "sliding_window attention_chunk_size window_size v_head_dim",
    32: """moe_intermediate_size shared_expert_intermediate_size q_lora_rank mamba_d_head
    mamba_head_dim""",
    8: "qk_rope_head_dim rotary_dim hidden_size_per_layer_input",
}
SIZES: dict[str, Any] = {name: size for size, names in NAMES.items() for name in names.split()} | {
    "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
    "mamba_d_ssm": 128,
    "global_head_dim": 24,
    "pad_token_id": 0,
    "is_decoder": True,
    "use_cache": False,
}


class Outcome(NamedTuple):
    """The outcome of a class: right, wrong, refused or not made; which way it went, or why not."""

    kind: str
    said: str
    error: float = 0.0


def small_config(
    kind: Any, sizes: Mapping[str, Any] = SIZES, towers: Mapping[str, Any] = SIZES
) -> Any:
    """A small configuration of a class, with sizes of towers of their own."""
    return kind(**_small(kind, sizes, towers))


def _small(kind: Any, sizes: Mapping[str, Any], towers: Mapping[str, Any]) -> dict[str, Any]:
    plain = kind()
    stored = {n: v for n, v in plain.to_dict().items() if n not in kind.sub_configs}
    stored |= {name: stored[own] for name, own in kind.attribute_map.items() if own in stored}
    values = {
        name: sizes[name]
        for name, default in stored.items()
        if name in sizes and (default is not None or name in _NEEDED)
    }
    for name in kind.sub_configs:
        own = getattr(plain, name, None)
        inner = type(own) if own is not None else None
        if own is None and name == "vision_config" and towers is not SIZES:
            inner = kind.sub_configs[name]
        if hasattr(inner, "sub_configs") and hasattr(inner, "from_dict"):
            values[name] = _small(inner, towers if name in TOWERS else sizes, towers)
    for name, per_layer in stored.items():
        if name in _PER_LAYER and isinstance(per_layer, list):
            values[name] = _few(per_layer, 4)
    if "kv_lora_rank" in values:  # latents have a key for each head
        values |= {"num_key_value_heads": 4, "head_dim": sizes["qk_rope_head_dim"]}
    if "mrope_section" in getattr(kind, "ignore_keys_at_rope_validation", ()):
        usual = {"rope_type": "default", "rope_theta": 10_000.0}
        rope = {**usual, **(stored.get("rope_parameters") or {})}
        values["rope_parameters"] = {**rope, "mrope_section": [2, 3, 3]}
    return values | OWN.get(kind.model_type, {})


def random_image_module(kind: Any, model_type: str, folder: Path) -> tuple[Any, Any]:
    """As `random_module`, and a processor of images, which is in the folder, too. Raises an error
    of transformers' if there is none small enough.
    """
    wrong: Exception | None = None
    for per_image in PER_IMAGE:
        processor = save_processor(folder, model_type, per_image)
        try:
            config = small_config(kind.config_class, SIZES, IMAGE_SIZES)
            tell_tokens(config, processor)
            module = random_of(kind, config)
            given = processor(
                images=[Image.linear_gradient("L").resize((84, 56)).convert("RGB")],
                text=[processor.image_token],
                return_tensors="pt",
            )
            with torch.no_grad():
                module(**given, use_cache=False)
            return module, processor
        except Exception as error:
            wrong = wrong or error
    assert wrong is not None
    raise wrong


PER_IMAGE = (4, 16, 1, 17, 64, 9)
_NEEDED = (
    "head_dim",
    "num_key_value_heads",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "num_experts_per_tok",
    "n_shared_experts",
    "num_local_experts",
    "n_routed_experts",
)
_PER_LAYER = ("layer_types", "mlp_layer_types")
# What follows from no size above.
OWN: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "plbart": {"decoder_attention_heads": 4, "encoder_attention_heads": 4},
    "whisper": {"decoder_attention_heads": 4, "encoder_attention_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
}


def _few(types: Sequence[str], count: int) -> list[str]:
    """So many layers, of each kind that there is."""
    kinds = sorted(set(types), key=types.index)
    return [kinds[i % len(kinds)] for i in range(count)]


TOWERS = ("vision_config", "vision_tower_config", "vit_config", "vq_config", "perceiver_config")


def random_module(kind: Any, **more: Any) -> Any:
    """A small module of a class, whose biases and norms are not all the same."""
    module = random_of(kind, small_config(kind.config_class, {**SIZES, **more}))
    with torch.no_grad():
        module(input_ids=torch.tensor([[7, 8, 9]]), use_cache=False)
    return module


def random_of(kind: Any, config: Any) -> Any:
    """A module of a class with random weights, float32, of which norms and biases differ, too."""
    torch.manual_seed(0)
    module = kind._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return module


def error_of(folder: Path, module: Any) -> tuple[float, bool]:
    """The largest error of log-probabilities over three texts, which are read in pieces together,
    and whether transformers' code ran.
    """
    model = _served(folder)
    some = np.random.default_rng(0)
    texts = [some.integers(5, 120, count).tolist() for count in (37, 11, 90)]
    with torch.inference_mode():
        wanted = [module(input_ids=torch.tensor([t])).logits[0].float() for t in texts]
        pages = some.permutation(64)
        own = [pages[:8], pages[8:16], pages[16:32], pages[32:40]]
        ends = [(0, 20, 35, 36, 37), (0, 4, 9, 10, 11), (0, 50, 88, 89, 90)]
        worst = 0.0
        for parts in zip(*map(pairwise, ends), strict=True):
            found = forward(model, embedded(model, texts, parts), own, parts)
            for logits, whole, (first, end) in zip(found, wanted, parts, strict=True):
                error = (logits.log_softmax(-1) - whole[first:end].log_softmax(-1)).abs()
                worst = max(worst, float(error.max()) if error.isfinite().all() else math.inf)
        alone = texts[0][:1]
        one = [(0, 1)]
        (logits,) = forward(model, embedded(model, [alone], one), own[3:], one)
        worst = max(
            worst, float((logits.log_softmax(-1) - wanted[0][:1].log_softmax(-1)).abs().max())
        )
        spread = float(wanted[2].log_softmax(-1).std())
    return worst if spread > ERROR else math.inf, isinstance(model.network, ByTransformers)


def _ints(values: Any) -> Any:
    return np.asarray(values, np.int32)


def embedded(
    model: Any, texts: list[list[int]], parts: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Embeds some tokens of each text; which embeds have them."""
    places = [range(first, end) for first, end in parts]
    tokens = [t for text, (first, end) in zip(texts, parts, strict=True) for t in text[first:end]]
    positions = _ints([p for some in places for p in some])
    embeds = list(range(len(tokens)))
    handlers.embeds.embed_text(model, EmbedText(_ints(tokens), positions, _ints(embeds)))
    ends = np.cumsum([0, *map(len, places)]).tolist()
    return [embeds[first:end] for first, end in pairwise(ends)]


def forward(
    model: Any, embeds: list[list[int]], own: list[Any], parts: Sequence[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Logits of embeds, some inputs of each text."""
    counts = [end - first for first, end in parts]
    starts = _ints(np.cumsum([0, *counts]))
    inputs = _ints([embed for some in embeds for embed in some])
    slots = [
        own[i][p // PAGE] * PAGE + p % PAGE
        for i, (first, end) in enumerate(parts)
        for p in range(first, end)
    ]
    held = [-(-first // PAGE) for first, _ in parts]
    used = [min(PAGE, first - i * PAGE) for first, _ in parts for i in range(-(-first // PAGE))]
    outputs = _ints(512 + np.arange(len(inputs)))
    none = np.zeros(0, np.int32)
    handlers.forward.forward(
        model,
        Forward(
            input_starts=starts,
            inputs=inputs,
            page_starts=_ints(np.cumsum([0, *held])),
            pages=_ints([page for i, count in enumerate(held) for page in own[i][:count]]),
            page_used=_ints(used),
            has_masked=_ints([0] * len(parts)),
            output_slots=_ints(slots),
            output_starts=starts,
            outputs=outputs,
            mask_starts=_ints([0] * (len(parts) + 1)),
            mask=none,
        ),
    )
    logits = model.network.logits(model.embeds.read(outputs)).float()
    return iter(torch.split(logits, counts))


def image_error_of(folder: Path, module: Any, processor: Any) -> float:
    """As `error_of`, of a text with two images of different shapes in it. Raises `LoadError` if the
    model reads none.
    """
    model = _served(folder)
    images = model.network.images
    if images is None:
        raise LoadError(f"images: {model.network.no_images}")
    files = [
        Image.radial_gradient("L").resize(size).convert("RGB") for size in ((90, 40), (33, 70))
    ]
    texts = [[7, 8, 9], [11, 12], [21, 22, 23, 24, 25]]
    words = ["".join(f"w{t - 4} " for t in text) for text in texts]
    place = processor.image_token
    prompt = f"{words[0]}{place} {words[1]}{place} {words[2]}"
    given = processor(images=[files], text=[prompt], return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        wanted = module(**given, use_cache=False).logits[0].log_softmax(-1)
        at = position = 0
        cuts = []
        for part in (texts[0], files[0], texts[1], files[1], texts[2]):
            if isinstance(part, list):
                count = positions = len(part)
                where = _ints(range(at, at + count)), _ints(range(position, position + count))
                handlers.embeds.embed_text(model, EmbedText(_ints(part), where[1], where[0]))
            else:
                file = io.BytesIO()
                part.save(file, "PNG")
                count, positions = images.measure(ImageSize(*part.size))
                stood = [position] * count if images.in_rows else range(position, position + count)
                padded = file.getvalue() + bytes(-file.tell() % 4)
                batch = EmbedImage(
                    _ints([part.size]),
                    _ints([file.tell()]),
                    np.frombuffer(padded, np.uint32),
                    _ints(stood),
                    _ints(range(at, at + count)),
                )
                if refused := handlers.embeds.embed_image(model, batch).get().refused:
                    raise LoadError(f"images: {refused}")
            cuts.append(at)
            at, position = at + count, position + positions
        if at != len(wanted):
            return math.inf
        found = [
            next(forward(model, [list(range(first, end))], [range(64)], [(first, end)]))
            for first, end in pairwise([0, cuts[1], cuts[2], cuts[4], at - 1, at])
        ]
    worst = (torch.cat(found).log_softmax(-1) - wanted).abs().max()
    return float(worst) if worst.isfinite() else math.inf


def _served(folder: Path) -> Any:
    config = {"source": str(folder), "page_size": PAGE, "kv_pages": 64, "embeds": 1024}
    return load_models([ModelConfig.model_validate({**config, "dtype": "float32"})])[0]


def outcome(name: str, model_type: str, *, images: bool = False) -> Outcome:
    """Makes a class of that name small and random, and serves it; with images or as text."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    kind = getattr(transformers, name)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            processor = None
            if images:
                module, processor = random_image_module(kind, model_type, folder)
            else:
                module = random_module(kind)
            module.save_pretrained(folder)
        except Exception as error:
            return Outcome("not made", f"{type(error).__name__}: {error}")
        try:
            if images:
                worst, general = image_error_of(folder, module, processor), True
            else:
                worst, general = error_of(folder, module)
        except Exception as refused:
            return Outcome(
                "refused", str(refused).partition(" by transformers: ")[2] or str(refused)
            )
    kind_of = "right" if worst <= ERROR else "wrong"
    return Outcome(kind_of, "transformers' code" if general else "ours", worst)


def apart(name: str, model_type: str, *, images: bool) -> Outcome:
    """As `outcome`, in a process of its own with little memory and time."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        os.dup2(2, 1)  # what a model's code prints is no part of the report
        found = outcome(name, model_type, images=images)
        said = found.said.replace("\n", " ")[:300]
        os.write(write, f"{found.kind}\n{said}\n{found.error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        parts = answer.read().split("\n")
    os.waitpid(child, 0)
    if len(parts) < 3:
        return Outcome("not made", "takes too much memory or time")
    return Outcome(parts[0], parts[1], float(parts[2]))


def main() -> None:
    """Tries each class in a process of its own."""
    from transformers.models.auto import modeling_auto as auto

    parser = argparse.ArgumentParser(description="Classes of transformers', small and random.")
    parser.add_argument("--images", action="store_true", help="those that read images")
    parser.add_argument("--only", default="", help="model types that contain this alone")
    given = parser.parse_args()
    images = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    table = images if given.images else auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    names = {
        str(name): kind
        for kind, name in table.items()
        if isinstance(name, str) and given.only in kind
    }
    for name, model_type in names.items():
        print(json.dumps([name, *apart(name, model_type, images=given.images)]), flush=True)


if __name__ == "__main__":
    main()
