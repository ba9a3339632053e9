"""The embedded model: a small checkpoint that is there without a download.

A trained one, if the package holds it, lies in `embedded/pie-tiny/` beside this file. Otherwise a
random one is made on first use: it writes no sense, but every part of the system runs with it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pie_inference.models.llama import llama
from pie_inference.models.spec import decoder_tensors
from pie_py.config import EMBEDDED_MODEL

log = structlog.get_logger("pie.worker.load")

PACKAGED = Path(__file__).parent / "embedded" / EMBEDDED_MODEL
VERSION = 1  # part of the folder's name: raise it when what is made changes
SEED = 20250813
MAX_VOCABULARY = 4096
SPECIAL_TOKENS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def folder(cache_folder: Path) -> Path:
    """The embedded model's folder. Several processes may ask at once.

    Args:
        cache_folder: where a random one is made, if the package holds none.
    """
    if (PACKAGED / "config.json").is_file():
        return PACKAGED
    target = cache_folder / "models" / f"{EMBEDDED_MODEL}-random-{VERSION}"
    if target.is_dir():
        return target
    log.info("making the embedded model", folder=str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        _write_checkpoint(made)
        made.chmod(0o755)
        for file in made.iterdir():
            file.chmod(0o644)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _write_checkpoint(target: Path) -> None:
    tokenizer = _train_tokenizer()
    tokenizer.save(str(target / "tokenizer.json"))
    begin, end = 0, 1  # special tokens come first, in their order
    config = _config(tokenizer.get_vocab_size(), begin, end)
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end})
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[0],
            "eos_token": SPECIAL_TOKENS[1],
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
        },
    )
    (target / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    save_file(_random_tensors(config), target / "model.safetensors", metadata={"format": "pt"})
    _flush(target)


def _config(vocabulary: int, begin: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": begin,
        "eos_token_id": end,
        "torch_dtype": "bfloat16",
    }


def _random_tensors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else (torch.randn(shape, generator=generator) * 0.05).to(torch.bfloat16)
        for name, shape in decoder_tensors(llama(config)).items()
    }


def _train_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer: any text goes in and comes back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(keepends=True), trainer)
    return tokenizer


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _flush(target: Path) -> None:
    """Writes the files through to the disk: the name must not outlive a crash that they do not."""
    for file in target.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


_TEXT = """\
The capital of France is Paris, and the capital of Japan is Tokyo. A river runs through the city.
In the morning the children walk to school along the quiet street, and the old man at the corner
waves to them. "Good morning!" he says. "How are you today?" They laugh and answer that all is well.
When the rain began, everybody looked for a dry place. Some stood under the trees; others went into
the shop and waited there until the sun came back. It was warm again in the afternoon.
Once upon a time there was a little girl who had a red ball. She played with it in the garden every
day. One day the ball rolled under the fence and into the forest, so she followed it. There she met a
friendly dog, and the dog gave the ball back. They became the best of friends and lived happily.
What is the largest planet? The largest planet of our solar system is Jupiter. How many legs does a
spider have? A spider has eight legs. Why is the sky blue? Because the air scatters blue light more
than red light. Where do penguins live? Most of them live in the south, on the ice and by the sea.
Please write a short summary of the following text, then list three questions that it answers.
I think that we should first understand the problem, then make a plan, and then carry it out step by
step. If something goes wrong, we look at what happened, correct it, and try once more.
A computer program is a list of instructions. A function takes arguments and returns a result:
def add(first, second):
    return first + second
for number in range(10):
    if number % 2 == 0:
        print("even", number)
    else:
        print("odd", number)
class Counter:
    def __init__(self, start=0):
        self.value = start
    def increment(self, step=1):
        self.value += step
        return self.value
import json
with open("data.json") as file:
    records = json.load(file)
{"name": "example", "values": [1, 2, 3], "nested": {"key": true, "other": null}}
1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 1000, 2024, 2025. 12 + 30 = 42, 7 * 8 = 56, 81 / 9 = 9.
Water boils at one hundred degrees and freezes at zero. Light is faster than sound. The moon goes
around the earth in about a month, and the earth goes around the sun in a year. There are seven days
in a week: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday. There are twelve months
in a year: January, February, March, April, May, June, July, August, September, October, November and
December. Red, green, blue, yellow, black and white are colours. Mother, father, sister and brother
are members of a family. Bread, milk, apples, cheese and rice can be bought at the market.
The language model reads the words that came before and gives each possible next word a probability.
Then one of them is chosen, and the model reads again. That is how a text grows, one word at a time.
You are a helpful assistant. Answer the question as well as you can; say so if you do not know.
"""
