"""Images in rows and columns, Qwen 3 VL's, equal those of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
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
from pie_inference.vision.images import BadImage
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import CopyEmbed, EmbedText

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
        embeds, positions = encoder.measure(size)
        self.embeds = list(range(embeds))
        self.next = first + positions
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
    """Copies of embeds at another position are as if it had been there."""
    image = picture(60, 40)
    there = Text(Rig(folder), image, 30)
    there.forward(there.embeds)
    wanted = there.forward(there.text(AFTER, there.next))

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


def test_grids_and_what_the_processor_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = Rig(make_qwen_vl(tmp_path)).model.network.images
    assert images is not None
    for size in ((1, 1), (9, 200), (40, 40), (333, 100), (900, 7), (64, 1)):
        high, wide = smart_resize(size[1], size[0], 8, 256, 2048)
        rows, columns = high // 8, wide // 8
        assert images.measure(ImageSize(*size)) == (rows * columns, max(rows, columns)), size
    with pytest.raises(BadImage, match=r"processor does not take it: .*200"):
        images.measure(ImageSize(2001, 10))
    with images._whole() as module:
        monkeypatch.setattr(module.model, "get_rope_index", None)
    with pytest.raises(BadImage, match="the model does not take it"):
        images.measure(ImageSize(41, 42))
