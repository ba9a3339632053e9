"""`python -m benchmarks.gpu.server SHAPE CONFIG`: inferlets decode in a real server."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import anyio

from benchmarks.gpu.shapes import write_shape
from benchmarks.gpu.table import Figures
from benchmarks.programs import bench_programs
from pie_py.bench.decoding import decode_in
from pie_py.bench.server import bench_server
from pie_py.config.model import ModelConfig

COUNTS = (1, 32, 128, 256)  # inferlets at once
TOKENS = 96  # that each inferlet decodes
PROMPT = 64


def serve(shape: str, config: Figures) -> Figures:
    """Inferlets that decode in a whole server; milliseconds a token of each."""
    component = bench_programs(["rust"])["rust"]
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        checkpoint = _checkpoint(shape, Path(folder))
        fields = {"source": str(checkpoint), "name": "measured", "load_format": "dummy"}
        model = ModelConfig.model_validate({**fields, **config})
        found: Figures = {}

        async def all_counts(endpoint: str) -> None:
            for count in COUNTS:
                decoded = await decode_in(endpoint, component, count, PROMPT, TOKENS)
                found[str(count)] = {"ms": decoded.ms_a_token}

        with bench_server(model) as server:
            anyio.run(all_counts, server.endpoint)
    return found


def _checkpoint(shape: str, folder: Path) -> Path:
    """A folder with the configuration and a tokenizer of a shape's model, without weights."""
    write_shape(shape, folder)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    _write_tokenizer(folder, vocabulary)
    return folder


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """An artificial tokenizer of so many tokens, because training one takes minutes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"<|{i}|>" for i in range(len(letters), vocabulary))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


if __name__ == "__main__":
    print(json.dumps(serve(sys.argv[1], json.loads(sys.argv[2]))))
