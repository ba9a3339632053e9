"""Images through the whole system; what an SDK does with them, in each language."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.image_checkpoints import (
    IDEFICS_STEPS,
    TILE_EMBEDS,
    as_file,
    image_tokenizer,
    make_idefics,
    make_qwen_vl,
    picture,
    qwen_vl,
    qwen_vl_inputs,
)
from support.javascript import require_javascript
from support.rust_components import rust_component
from support.servers import Server
from transformers import (
    AutoModelForImageTextToText,
    Idefics3Processor,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from pie_py.client.sync import Client

# The server is the same: what the other two SDKs hand on is seen at night.
LANGUAGES = [
    "python",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("rust", "javascript")),
]
BEFORE, AFTER = [5, 9, 11, 200], [17, 4, 8]


@pytest.fixture
def client(grid: tuple[Server, Path]) -> Iterator[Client]:
    with grid[0].client() as connected:
        yield connected
        assert connected.instances() == []
        info = connected.server_info()
        assert "error" not in info


def upload(client: Client, language: str) -> str:
    if language == "python":
        return client.upload(Path(__file__).parent / "guests" / "image.py")
    if language == "javascript":
        require_javascript()
        return client.upload(Path(__file__).parent / "guests" / "image.ts")
    return client.upload(rust_component("image_guests"), name="image-guests")


def ask(client: Client, language: str, image: bytes, *args: str) -> str:
    instance = client.launch(upload(client, language), list(args))
    instance.send(image)
    return instance.result()


def text_of(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


def huge(width: int, height: int) -> bytes:
    """A PNG of very many pixels in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + end

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(999)))


@pytest.mark.nightly
@pytest.mark.parametrize("language", LANGUAGES)
def test_bad_images_are_errors_that_leave_the_context_as_it_was(
    client: Client, language: str
) -> None:
    good = as_file(picture(50, 50))
    bad = {
        b"no image": "invalid-argument: 8 bytes that are no image (PNG, JPEG, GIF, WEBP, ",
        good[: len(good) // 2]: "invalid-argument: the image cannot be decoded: ",
        huge(50_000, 50_000): "limit-exceeded: an image of 50000 x 50000 pixels; ",
        huge(3, 5000): "invalid-argument: an image of 3 x 5000 pixels is too long a strip",
        huge(300, 500): "invalid-argument: the image cannot be decoded: ",
    }
    continued = set()
    for image, reason in bad.items():
        error, _, tokens = ask(client, language, image, "try", "5 9 11", "6").rpartition("; ")
        assert error.startswith(reason), error
        continued.add(tokens)
    assert len(continued) == 1


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server of a model that cuts images into tiles, and its folder."""
    folder = make_idefics(tmp_path_factory.mktemp("tiles") / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    models = [{"source": str(folder), "name": "tiles", "page_size": 8, "kv_pages": 512}]
    with Server(models=models) as running:
        yield running, folder


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server of a model that has images in rows and columns, and its folder."""
    folder = make_qwen_vl(tmp_path_factory.mktemp("grid") / "model")
    models = [{"source": str(folder), "name": "grid", "page_size": 8, "kv_pages": 256}]
    with Server(models=models) as running:
        yield running, folder


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_images_in_rows_and_columns(language: str, grid: tuple[Server, Path]) -> None:
    """They take more embeds than positions, also where a context is cut, forked and changed."""
    server, folder = grid
    after = [*AFTER, *range(20, 40)]
    with server.client() as client:
        for size, embeds, positions in (((100, 40), 24, 8), ((30, 90), 27, 9)):
            image = picture(*size)
            facts = ask(client, language, as_file(image), "facts")
            assert facts == f"{size[0]} x {size[1]}: {embeds}"
            wanted = expected_in_grid(folder, [BEFORE, image, after], 12)
            args = text_of(BEFORE), text_of(after), "12"
            found = ask(client, language, as_file(image), "describe", *args)
            assert found == f"{wanted}; {wanted}"
            if language == "javascript":  # whose contexts are cut, and not edited
                continue
            found = ask(client, language, as_file(image), "edit", *args)
            places, whole, *_, bare = found.split("; ")
            start = len(BEFORE)
            end = start + positions
            ends = [end + len(after)]
            if (
                language == "python"
            ):  # in which tokens are also dropped, before an image, and evicted
                ends += [end + len(after) + positions, end + len(after)]
            cuts = [end + len(after), start + len(after)]
            assert places == text_of([0, end, start, end, *ends, *cuts])
            assert whole == wanted
            assert bare == expected_in_grid(folder, [[*BEFORE, *after]], 12)


@torch.inference_mode()
def expected_in_grid(folder: Path, parts: list[list[int] | Image.Image], count: int) -> str:
    inputs = qwen_vl_inputs(folder, parts)
    model = qwen_vl(folder)
    model.model.rope_deltas = None
    output = model.generate(
        **inputs, do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0
    )
    return text_of(output[0, inputs["input_ids"].shape[1] :].tolist())


@pytest.mark.nightly
def test_the_example(tiles: tuple[Server, Path]) -> None:
    server, folder = tiles
    tokenizer = image_tokenizer()
    steps = {key: value for key, value in IDEFICS_STEPS.items() if key != "image_processor_type"}
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(**steps), tokenizer, image_seq_len=TILE_EMBEDS
    )
    image = picture(60, 45)
    text = "<|begin|><|user|><image>What is it?<|end|><|assistant|>"
    inputs = processor(text=text, images=image, return_tensors="pt", add_special_tokens=False)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        output = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=200,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=0,
        )
    new = output[0, inputs["input_ids"].shape[1] :].tolist()
    if new[-1] == tokenizer.eos_token_id:
        new.pop()
    with server.client() as client:
        example = Path(__file__).parents[2] / "examples" / "describe_image.py"
        instance = client.launch(client.upload(example), ["What", "is", "it?"])
        instance.send(as_file(image))
        assert instance.result() == tokenizer.decode(new, clean_up_tokenization_spaces=False)
