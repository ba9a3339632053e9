"""The projector file beside a GGUF of Qwen 3 VL, against the checkpoint of which both are made."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
import torch
from support.gguf_files import write_gguf, write_projector
from support.image_batches import logits_with_images
from support.image_checkpoints import as_file, make_qwen_vl, picture
from support.model_rig import Rig, assert_close

from pie_inference.checkpoints.gguf_file import PROJECTOR, gguf_folder
from pie_inference.errors import LoadError
from pie_py.wire.images import ImageSize

PARTS: list[list[int] | bytes] = [
    [5, 9, 11],
    as_file(picture(100, 40, seed=1)),
    [17, 23],
    as_file(picture(30, 80, seed=2)),
    [4, 8, 15],
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))


def with_value(content: bytes, key: str, value: int) -> bytes:
    """A GGUF with another 32-bit number of that name."""
    at = content.index(key.encode()) + len(key) + 4  # behind the number that tells its kind
    return content[:at] + value.to_bytes(4, "little") + content[at + 4 :]


@torch.inference_mode()
def test_images_are_read_as_by_the_checkpoint(tmp_path: Path) -> None:
    folder = make_qwen_vl(tmp_path / "model")
    file = write_gguf(folder, "qwen3vl")
    write_projector(folder)
    rig = Rig(file)
    assert_close(logits_with_images(rig, PARTS), logits_with_images(Rig(folder), PARTS))
    images = rig.model.network.images
    assert images is not None
    assert images.place == "<|image_pad|>"
    assert images.measure(ImageSize(64, 16)) == (16, 8)


@torch.inference_mode()
def test_a_projector_of_another_model_is_left_alone(tmp_path: Path) -> None:
    folder = make_qwen_vl(tmp_path / "model")
    file = write_gguf(folder, "qwen3vl")
    projector = write_projector(folder)
    other = with_value(projector.read_bytes(), "clip.vision.projection_dim", 128)
    projector.write_bytes(other)
    rig, tokens = Rig(file), list(range(5, 45))
    assert rig.model.network.images is None
    assert_close(rig.read(tokens), logits_with_images(Rig(folder), [tokens]))


def test_a_projector_that_comes_later_or_goes_is_noticed(tmp_path: Path) -> None:
    folder = make_qwen_vl(tmp_path / "model")
    file = write_gguf(folder, "qwen3vl")
    assert not (gguf_folder(file) / PROJECTOR).exists()
    projector = write_projector(folder)
    assert (gguf_folder(file) / PROJECTOR).samefile(projector)
    second = write_projector(folder, name="mmproj-second")
    with pytest.raises(
        LoadError, match=r"several projector files fit .*: mmproj-second\.gguf, mmproj-test"
    ):
        gguf_folder(file)
    projector.unlink()
    assert (gguf_folder(file) / PROJECTOR).samefile(second)


def test_a_damaged_projector_is_named(tmp_path: Path) -> None:
    folder = make_qwen_vl(tmp_path / "model")
    file = write_gguf(folder, "qwen3vl")
    projector = write_projector(folder)
    content = projector.read_bytes()
    projector.write_bytes(with_value(content, "clip.vision.block_count", 1 << 30))
    with pytest.raises(
        LoadError, match=r"mmproj-test.*block_count' is not the number of its layers"
    ):
        gguf_folder(file)
    projector.write_bytes(content.replace(b"mm.2.weight", b"mm.3.weight"))
    with pytest.raises(LoadError, match=r"mmproj-test.* lacks the tensor mm\.2\.weight"):
        gguf_folder(file)
