"""Llama checkpoints with random weights, to measure with: made once, kept in the cache folder."""

from __future__ import annotations

import json
import shutil
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pie_py.config.settings import read_settings

MAX_POSITION = 16_384
DEVIATION = 0.02  # of the weights
TRAINING_FILES = 200  # of the standard library, for the tokenizer
SPECIAL = ("<|begin|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


SHAPES = {
    "tiny": Shape(8_192, 256, 1_024, 8, 4, 2),  # 12 M parameters: every overhead shows
    "small": Shape(16_384, 768, 2_048, 12, 12, 4),  # 100 M
}


def bench_model(name: str) -> str:
    """The model under a benchmark's `--model`: a checkpoint made here for `tiny` and
    `small`.
    """
    if name not in SHAPES:
        return name
    folder = read_settings().cache_folder / "bench" / f"{name}-bfloat16"
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            make_checkpoint(making, SHAPES[name], "bfloat16")
            making.chmod(0o755)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return str(folder)


def make_checkpoint(folder: Path, shape: Shape, dtype: str, seed: int = 0) -> None:
    """Writes a checkpoint in Hugging Face format, with tokenizer and chat template, into a
    folder.
    """
    import torch
    from safetensors.torch import save_file

    _write_tokenizer(folder, shape.vocabulary)
    head = shape.hidden // shape.heads
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 0,
        "dtype": dtype,
        "eos_token_id": 1,
        "head_dim": head,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": MAX_POSITION,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocabulary,
    }
    shapes = {
        "model.embed_tokens": (shape.vocabulary, shape.hidden),
        "lm_head": (shape.vocabulary, shape.hidden),
    }
    norms = ["model.norm"]
    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        shapes |= {
            f"{attention}.q_proj": (shape.heads * head, shape.hidden),
            f"{attention}.k_proj": (shape.kv_heads * head, shape.hidden),
            f"{attention}.v_proj": (shape.kv_heads * head, shape.hidden),
            f"{attention}.o_proj": (shape.hidden, shape.heads * head),
            f"{mlp}.gate_proj": (shape.intermediate, shape.hidden),
            f"{mlp}.up_proj": (shape.intermediate, shape.hidden),
            f"{mlp}.down_proj": (shape.hidden, shape.intermediate),
        }
    random = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    weights = {
        f"{name}.weight": (torch.randn(size, generator=random) * DEVIATION).to(kind)
        for name, size in shapes.items()
    }
    weights |= {f"{name}.weight": torch.ones(shape.hidden, dtype=kind) for name in norms}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A byte-level BPE of exactly so many tokens, trained on the standard library's sources."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:TRAINING_FILES]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(source) for source in sources], trainer)
    filling = range(vocabulary - tokenizer.get_vocab_size())  # if there is not text enough
    tokenizer.add_tokens([f"<|unused {i}|>" for i in filling])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[1],
                "chat_template": CHAT_TEMPLATE,
                "model_max_length": MAX_POSITION,
            },
            indent=2,
        )
    )
