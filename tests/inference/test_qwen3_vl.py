"""Images in rows and columns, Qwen 3 VL's, equal those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.image_batches import batch_of, logits_with_images
from support.image_checkpoints import (
    QWEN_KINDS,
    as_file,
    make_qwen_vl,
    picture,
    qwen_vl,
    qwen_vl_inputs,
)
from support.model_rig import Rig, assert_close, ints
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from pie_inference import handlers
from pie_inference.errors import LoadError
from pie_inference.models.qwen3_vl import qwen3_vl
from pie_py.wire.images import ImageRule, ImageSize
from pie_py.wire.plan import CopyEmbed, EmbedText, ShiftKv

BEFORE, BETWEEN, AFTER = [5, 9, 11, 200], [17, 23], [4, 8, 15]


@pytest.fixture(scope="module", params=QWEN_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen_vl(tmp_path_factory.mktemp("model") / request.param, request.param)


@torch.inference_mode()
def expected(
    folder: Path, parts: list[list[int] | Image.Image], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    model = qwen_vl(folder, dtype)
    model.model.rope_deltas = None
    found: torch.Tensor = model(**qwen_vl_inputs(folder, parts, dtype)).logits[0].float()
    return found


@pytest.mark.parametrize("pieces", [1, 4])
def test_several_images_and_text_between(folder: Path, pieces: int) -> None:
    images = [picture(100, 40, seed=1), picture(30, 80, seed=2), picture(20, 20, seed=3)]
    first, second, third = images
    parts: list[list[int] | Image.Image] = [BEFORE, first, BETWEEN, second, [7], third, AFTER]
    files = [part if isinstance(part, list) else as_file(part) for part in parts]
    found = logits_with_images(Rig(folder), files, pieces)
    assert_close(found, expected(folder, parts))


def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(tmp_path: Path) -> None:
    folder = make_qwen_vl(tmp_path / "model", dtype="bfloat16")
    image = picture(60, 40)
    exact = expected(folder, [BEFORE, image, AFTER])
    theirs = expected(folder, [BEFORE, image, AFTER], torch.bfloat16)
    ours = logits_with_images(Rig(folder, dtype="bfloat16"), [BEFORE, as_file(image), AFTER])
    assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


class Text:
    """An image and some text in the embeds and pages of a rig, position by position."""

    def __init__(self, rig: Rig, image: Image.Image, first: int = 0) -> None:
        """Embeds the image, to stand from position `first` on."""
        encoder = rig.model.network.images
        assert encoder is not None
        size = ImageSize(*image.size)
        self.rig = rig
        self.embeds = list(range(encoder.rule.embeds(size)))
        self.next = first + encoder.rule.positions(size)
        batch = batch_of([as_file(image)], [first] * len(self.embeds), self.embeds)
        assert handlers.embeds.embed_image(rig.model, batch).get().refused == {}
        self.sequence = rig.sequence(len(self.embeds) + 40)

    def text(self, tokens: list[int], position: int) -> list[int]:
        """Embeds tokens, from a position on."""
        embeds = ints(range(200, 200 + len(tokens)))
        places = ints(range(position, position + len(tokens)))
        handlers.embeds.embed_text(self.rig.model, EmbedText(ints(tokens), places, embeds))
        found: list[int] = embeds.tolist()
        return found

    def forward(self, embeds: list[int]) -> torch.Tensor:
        """Logits `[inputs, vocab]` of embeds behind what is in the pages."""
        outputs = range(1024, 1024 + len(embeds))
        self.rig.run(self.sequence, embeds, outputs)
        return self.rig.model.network.logits(self.rig.model.embeds.read(ints(outputs)))


@torch.inference_mode()
def test_an_image_elsewhere(folder: Path) -> None:
    """Shifted pages, and copies of embeds at another position, are as if it had been there."""
    image = picture(60, 40)
    there = Text(Rig(folder), image, 30)
    there.forward(there.embeds)
    wanted = there.forward(there.text(AFTER, there.next))

    shifted = Text(Rig(folder), image, 7)
    shifted.forward(shifted.embeds)
    slots = ints(shifted.sequence.slots(0, len(shifted.embeds)))
    handlers.pages.shift_kv(shifted.rig.model, ShiftKv(slots, np.full_like(slots, 23)))
    assert_close(shifted.forward(shifted.text(AFTER, shifted.next + 23)), wanted)

    copied = Text(Rig(folder), image, 7)
    copies = [100 + embed for embed in copied.embeds]
    at = np.full(len(copies), 30, np.int32)
    handlers.embeds.copy_embed(copied.rig.model, CopyEmbed(ints(copied.embeds), at, ints(copies)))
    copied.text([3] * len(copies), 0)
    copied.forward(copies)
    assert_close(copied.forward(copied.text(AFTER, copied.next + 23)), wanted)


@torch.inference_mode()
def test_embeds_of_an_image_that_are_written_again_are_of_none(folder: Path) -> None:
    image = picture(60, 40)
    wanted = Text(Rig(folder), image)
    used = Text(wanted.rig, image)
    places = ints(range(3))
    handlers.embeds.embed_text(used.rig.model, EmbedText(ints(AFTER), places + 30, places))
    assert_close(used.forward([0, 1, 2]), wanted.forward(wanted.text(AFTER, 30)))
    pool = used.rig.model.embeds
    assert pool.images(ints([2, 3])) is not None
    pool.clear(ints([3]))
    assert pool.images(ints([2, 3])) is None
    used.forward(used.embeds[4:])
    handlers.embeds.copy_embed(used.rig.model, CopyEmbed(ints([1024]), ints([-1]), ints([4])))
    assert pool.images(ints([4, 1024])) is None


@settings(max_examples=200)
@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from([(32, 65536, 16777216), (28, 3136, 1003520), (8, 256, 2048), (21, 441, 8000)]),
)
def test_grids(width: int, height: int, bounds: tuple[int, int, int]) -> None:
    assume(max(width, height) <= 200 * min(width, height))
    block, least, most = bounds
    rule = ImageRule(block=block, least=least, most=most)
    high, wide = smart_resize(height, width, block, least, most)
    assert rule.grid(ImageSize(width, height)) == (high // block, wide // block)
    assert rule.embeds(ImageSize(width, height)) == high // block * (wide // block)
    assert rule.positions(ImageSize(width, height)) == max(high, wide) // block


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("vision_config", {"deepstack_visual_indexes": [0, 1, 2]}, "features for 3 layers"),
        ("vision_config", {"deepstack_visual_indexes": [3]}, r"\[3\] are no rising layers"),
        ("vision_config", {"out_hidden_size": 32}, "embeds have 32 numbers"),
        ("vision_config", {"num_position_embeddings": 24}, "num_position_embeddings 24"),
        ("vision_config", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("text_config", {"rope_parameters": {"mrope_section": [6, 5, 4]}}, r"\[6, 5, 4\] of 16"),
    ],
)
def test_configurations_that_are_not_supported_are_refused(
    part: str, change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    config = json.loads((make_qwen_vl(tmp_path / "model") / "config.json").read_text())
    config[part] |= change
    with pytest.raises(LoadError, match=reason):
        qwen3_vl(config)
