"""Models that read images: on a GPU as on the CPU, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.image_batches import embed_image
from support.image_checkpoints import IMAGE_KINDS, make_image_checkpoint
from support.llava_checkpoints import as_file, picture
from support.model_rig import Rig, ints, offsets, tokens_of

from pie_inference import handlers
from pie_py.wire.plan import EmbedText, Forward


@pytest.fixture(scope="module", params=IMAGE_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / request.param
    return make_image_checkpoint(place, request.param)


@torch.inference_mode()
def logits(rig: Rig, file: bytes) -> torch.Tensor:
    """Logits `[inputs, vocab]` on the CPU, of some text, an image and more text."""
    model = rig.model
    before, after = tokens_of(5), tokens_of(9, seed=1)
    handlers.embeds.embed_text(model, EmbedText(ints(before), ints(range(5)), ints(range(5))))
    at = 5 + embed_image(rig, file, 5)
    where = ints(range(at, at + 9))
    handlers.embeds.embed_text(model, EmbedText(ints(after), where, where))
    end = at + 9
    forward = Forward(
        input_starts=offsets([end]),
        inputs=ints(range(end)),
        page_starts=offsets([0]),
        pages=ints([]),
        page_used=ints([]),
        has_masked=ints([0]),
        output_slots=ints(rig.sequence(end).slots(0, end)),
        output_starts=offsets([end]),
        outputs=ints(range(1024, 1024 + end)),
        mask_starts=offsets([0]),
        mask=ints([]),
    )
    handlers.forward.forward(model, forward)
    return model.network.logits(model.embeds.read(forward.outputs)).float().cpu()


def test_an_image_amid_text(folder: Path) -> None:
    file = as_file(picture(100, 40))
    found, wanted = (logits(Rig(folder, device=d, dtype="float32"), file) for d in ("cuda", "cpu"))
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)
