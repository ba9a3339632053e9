"""Images that are cut into tiles, Idefics 3's and SmolVLM's, equal those of transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.image_batches import batch_of, logits_with_images
from support.image_checkpoints import (
    IDEFICS_STEPS,
    LONGEST,
    SIDE,
    TILE_EMBEDS,
    as_file,
    image_tokenizer,
    make_idefics,
    picture,
)
from support.model_rig import Rig, assert_close, ints
from transformers import AutoModelForImageTextToText, Idefics3Processor, PreTrainedModel
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings

from pie_inference import handlers
from pie_inference.errors import LoadError
from pie_inference.vision.transformer import _places
from pie_py.wire.images import ImageSize, tiling

KINDS = ("idefics3", "smolvlm", "whole")


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = request.param
    where = tmp_path_factory.mktemp("model") / kind
    if kind == "whole":
        return make_idefics(where, splits=False)
    return make_idefics(where, kind)


@functools.cache
def reference(folder: Path) -> PreTrainedModel:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    found: PreTrainedModel = model.eval()
    return found


@functools.cache
def processor(folder: Path) -> Idefics3Processor:
    steps = json.loads((folder / "preprocessor_config.json").read_text())
    steps.pop("image_processor_type")
    return Idefics3Processor(
        Idefics3ImageProcessorPil(**steps), image_tokenizer(), image_seq_len=TILE_EMBEDS
    )


@torch.inference_mode()
def test_two_images_of_different_sizes(folder: Path) -> None:
    first, second = picture(100, 40, seed=1), picture(30, 80, seed=2)
    text = "<image>and<image>"
    inputs = processor(folder)(text=text, images=[[first, second]], return_tensors="pt")
    wanted = reference(folder)(**inputs).logits[0]
    middle = image_tokenizer().encode("and", add_special_tokens=False)
    found = logits_with_images(Rig(folder), [as_file(first), middle, as_file(second)])
    assert_close(found, wanted)


@torch.inference_mode()
def test_a_bad_image_among_others_of_different_sizes(folder: Path) -> None:
    rig = Rig(folder)
    files = [as_file(picture(100, 40)), as_file(picture(50, 50))[:-30], as_file(picture(30, 80))]
    encoder = rig.model.network.images
    assert encoder is not None
    counts = [encoder.rule.embeds(ImageSize(*s)) for s in ((100, 40), (50, 50), (30, 80))]
    rig.model.embeds.hidden[:] = 7.0
    places = list(range(sum(counts)))
    assert list(
        handlers.embeds.embed_image(rig.model, batch_of(files, places, places)).get().refused or ()
    ) == [1]
    one, two, three = torch.split(rig.model.embeds.read(ints(places)), counts)
    assert not two.any()
    for file, count, found in ((files[0], counts[0], one), (files[2], counts[2], three)):
        alone = places[:count]
        assert (
            handlers.embeds.embed_image(rig.model, batch_of([file], alone, alone)).get().refused
            == {}
        )
        assert_close(rig.model.embeds.read(ints(alone)), found)


@settings(max_examples=100)
@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from([(84, 28), (2048, 512), (1456, 364), (5000, 700), (100, 99)]),
)
def test_tiling(width: int, height: int, sides: tuple[int, int]) -> None:
    longest, tile = sides
    if max(width, height) > 200 * min(width, height):
        return
    plan = tiling(ImageSize(width, height), longest, tile)
    steps = Idefics3ImageProcessorPil()
    image = _Shape(width, height)
    resized = steps.resize(image, _Size(longest_edge=longest))
    fitted = steps.resize_for_vision_encoder(resized, tile)
    assert (plan.resized.width, plan.resized.height) == (resized.width, resized.height)
    assert (plan.fitted.width, plan.fitted.height) == (fitted.width, fitted.height)
    assert (plan.columns * tile, plan.rows * tile) == (fitted.width, fitted.height)


@pytest.mark.parametrize("side", [1, 2, 4, 7, 13, 14, 26, 27, 32, 52, 70])
def test_places_of_patches(side: int) -> None:
    config = reference_config(side)
    embeddings = Idefics3VisionEmbeddings(config)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        table = torch.arange(side * side, dtype=torch.float32)[:, None].expand(-1, 2)
        embeddings.position_embedding.weight.copy_(table)
        whole = torch.ones(1, side, side, dtype=torch.bool)
        wanted = embeddings(torch.zeros(1, 3, side, side), whole)[0, :, 0]
    assert _places(side).tolist() == wanted.tolist()


def reference_config(side: int) -> object:
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig

    return Idefics3VisionConfig(hidden_size=2, num_attention_heads=1, image_size=side, patch_size=1)


def test_tokens_of_tiles_that_do_not_grow_evenly_are_refused(tmp_path: Path) -> None:
    """The tokenizer knows nine tiles; names of more fall apart into several tokens."""
    folder = make_idefics(tmp_path / "model")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**IDEFICS_STEPS, "size": {"longest_edge": LONGEST + SIDE}}))
    with pytest.raises(LoadError, match=r"tiles are .* tokens"):
        Rig(folder)


class _Size:
    """As transformers' own."""

    def __init__(self, **sides: int) -> None:
        self.longest_edge = sides.get("longest_edge")
        self.height, self.width = sides.get("height"), sides.get("width")


class _Shape:
    """Stands for an array: only its shape is looked at."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.shape = (3, height, width)


@pytest.fixture(autouse=True)
def _sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resizing a `_Shape` takes no pixels."""
    from transformers.image_processing_backends import PilBackend

    resize = PilBackend.resize

    def shaped(self: object, image: object, size: object, **more: object) -> object:
        if isinstance(image, _Shape):
            return _Shape(size.width, size.height)  # type: ignore[attr-defined]
        return resize(self, image, size, **more)

    monkeypatch.setattr(PilBackend, "resize", shaped)
