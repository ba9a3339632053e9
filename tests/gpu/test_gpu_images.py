"""Models that read images: on a GPU as on the CPU, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.image_batches import logits_with_images
from support.image_checkpoints import IMAGE_KINDS, as_file, make_image_checkpoint, picture
from support.model_rig import Rig, tokens_of


@pytest.fixture(scope="module", params=IMAGE_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / request.param
    return make_image_checkpoint(place, request.param)


def test_an_image_amid_text(folder: Path) -> None:
    file = as_file(picture(100, 40))
    parts: list[list[int] | bytes] = [tokens_of(5), file, tokens_of(9, seed=1)]
    found, wanted = (
        logits_with_images(Rig(folder, device=device, dtype="float32"), parts).cpu()
        for device in ("cuda", "cpu")
    )
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)
