"""Images that are cut into tiles, Idefics 3's and SmolVLM's, equal those of transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from support.image_batches import batch_of, logits_with_images
from support.image_checkpoints import TILE_EMBEDS, as_file, image_tokenizer, make_idefics, picture
from support.model_rig import Rig, assert_close, ints
from transformers import AutoModelForImageTextToText, Idefics3Processor, PreTrainedModel
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from pie_inference import handlers
from pie_py.wire.images import ImageSize

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
    counts = [encoder.measure(ImageSize(*s)).embeds for s in ((100, 40), (50, 50), (30, 80))]
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
