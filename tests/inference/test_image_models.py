"""Images in the place of tokens equal those of transformers; files that are none are refused."""

from __future__ import annotations

import functools
import io
import itertools
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from support.image_batches import batch_of, logits_with_images
from support.image_checkpoints import IMAGE_TOKEN, LLAVA_KINDS, as_file, make_llava, picture
from support.model_rig import Rig, assert_close, ints
from transformers import LlavaForConditionalGeneration
from transformers.image_transforms import convert_to_rgb
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from pie_inference import handlers
from pie_inference.errors import BadBatch
from pie_inference.vision.images import BadImage, decode_image
from pie_py.wire.images import FORMATS, ImageSize, image_size

PROCESSORS = {
    "CLIPImageProcessor": CLIPImageProcessorPil,
    "LlavaImageProcessor": LlavaImageProcessorPil,
    "SiglipImageProcessor": SiglipImageProcessorPil,
}


@pytest.fixture(scope="module", params=LLAVA_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("model") / request.param, request.param)


@functools.cache
def reference(folder: Path, dtype: torch.dtype = torch.float32) -> LlavaForConditionalGeneration:
    return LlavaForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


def pixels_of(folder: Path, image: Image.Image) -> torch.Tensor:
    """`[1, 3, size, size]`, as transformers prepares an image."""
    steps = json.loads((folder / "preprocessor_config.json").read_text())
    processor = PROCESSORS[steps.pop("image_processor_type")](**steps)
    found: torch.Tensor = processor(images=image, return_tensors="pt")["pixel_values"]
    return found


@torch.inference_mode()
def expected(
    folder: Path, parts: list[list[int] | Image.Image], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    per_image = LLAVA_KINDS[folder.name][4]
    tokens = [
        token
        for part in parts
        for token in (part if isinstance(part, list) else [IMAGE_TOKEN] * per_image)
    ]
    pixels = torch.cat([pixels_of(folder, p) for p in parts if not isinstance(p, list)])
    answer = reference(folder, dtype)(
        input_ids=torch.tensor([tokens]),
        pixel_values=pixels.to(dtype),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
    )
    found: torch.Tensor = answer.logits[0].float()
    return found


@pytest.mark.parametrize("pieces", [1, 4])
def test_text_and_images_in_turn(folder: Path, pieces: int) -> None:
    rig = Rig(folder, page_size=8)
    assert rig.model.description.image_place == "<image>"
    assert "input-image" in rig.model.description.traits
    first, second = picture(60, 40, seed=1), picture(28, 77, seed=2)
    found = logits_with_images(
        rig, [[5, 9, 11], as_file(first), [17, 23], as_file(second), [4, 8, 15]], pieces
    )
    assert_close(found, expected(folder, [[5, 9, 11], first, [17, 23], second, [4, 8, 15]]))


def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(tmp_path: Path) -> None:
    for kind in LLAVA_KINDS:
        folder = make_llava(tmp_path / kind, kind, dtype="bfloat16")
        image = picture(60, 40)
        exact = expected(folder, [[5, 9], image, [7, 3, 20]])
        theirs = expected(folder, [[5, 9], image, [7, 3, 20]], torch.bfloat16)
        rig = Rig(folder, dtype="bfloat16")
        ours = logits_with_images(rig, [[5, 9], as_file(image), [7, 3, 20]])
        assert (ours - exact).norm() <= 1.5 * (theirs - exact).norm(), kind


@pytest.mark.parametrize("wrong", ["file", "tower"])
def test_a_bad_image_is_refused_alone(folder: Path, wrong: str) -> None:
    """Those beside it are embedded, and its embeds hold nothing of an earlier owner."""
    rig = Rig(folder)
    per_image = LLAVA_KINDS[folder.name][4]
    good = as_file(picture(50, 50))
    second = good[: len(good) // 2] if wrong == "file" else good
    calls = itertools.count()

    def fails(*_: object) -> None:
        if wrong == "tower" and next(calls) == 2:
            raise RuntimeError("cannot be decoded")

    images = rig.model.network.images
    assert images is not None
    with images._whole() as module:
        named = module.named_modules()
        tower = next(part for name, part in named if name.endswith("vision_tower"))
    tower.register_forward_pre_hook(fails)
    embeds = list(range(3 * per_image))
    with torch.inference_mode():
        rig.model.embeds.hidden[:] = 7.0
        alone = batch_of([good], embeds[:per_image], embeds[:per_image])
        assert handlers.embeds.embed_image(rig.model, alone).get().refused == {}
        wanted = rig.model.embeds.read(ints(embeds[:per_image]))
        files = [good, second, good]
        refused = (
            handlers.embeds.embed_image(rig.model, batch_of(files, embeds, embeds)).get().refused
        )
    assert refused is not None
    assert list(refused) == [1]
    assert "cannot be decoded" in refused[1]
    found = torch.split(rig.model.embeds.read(ints(embeds)), per_image)
    assert_close(found[0], wanted)
    assert_close(found[2], wanted)
    assert not found[1].any()


def test_batches_that_disagree_are_refused(folder: Path) -> None:
    rig = Rig(folder)
    per_image = LLAVA_KINDS[folder.name][4]
    good = as_file(picture(20, 20))
    places = list(range(per_image))
    wrong = [
        batch_of([good], places[:-1], places[:-1]),
        batch_of([good], places, [*places[:-1], rig.model.embeds.size]),
        batch_of([good], [*places[:-1], 512], places),
        batch_of([good, good], places, places),
    ]
    longer = batch_of([good], places, places)
    longer.lengths = longer.lengths + 8
    negative = batch_of([good], places, places)
    negative.lengths = ints([-4])
    for batch in (*wrong, longer, negative):
        with pytest.raises(BadBatch, match="embed_image"):
            handlers.embeds.embed_image(rig.model, batch)


MODES = {
    "PNG": ("RGB", "L", "P", "1", "RGBA", "LA", "I;16"),
    "JPEG": ("RGB", "L", "CMYK"),
    "MPO": ("RGB", "L", "CMYK"),
    "GIF": ("RGB", "L", "P", "1", "RGBA"),
    "WEBP": ("RGB", "RGBA", "L"),
    "BMP": ("RGB", "L", "P", "1", "RGBA"),
    "TIFF": ("RGB", "L", "P", "1", "RGBA", "LA", "CMYK", "I;16"),
}


@pytest.mark.parametrize(("kind", "mode"), [(k, mode) for k in MODES for mode in MODES[k]])
def test_formats_and_modes(kind: str, mode: str) -> None:
    image = picture(31, 17).convert("L" if mode == "I;16" else mode)
    file = as_file(image.convert(mode), kind)
    size = image_size(file)
    assert size == ImageSize(31, 17)
    decoded = decode_image(file, size)
    assert (decoded.mode, decoded.size) == ("RGB", (31, 17))


@pytest.mark.parametrize("turned", range(1, 10))
@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP", "TIFF"])
def test_a_photograph_is_turned_as_its_camera_was_held(kind: str, turned: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    more: dict[str, Any] = {"save_all": True, "append_images": [picture(40, 20, seed=1)]}
    options = {"MPO": more, "WEBP": {"lossless": True}}.get(kind, {})
    file = as_file(picture(40, 20), kind, exif=exif.tobytes(), **options)
    wanted = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    size = ImageSize(*wanted.size)
    assert image_size(file) == size
    assert decode_image(file, size).tobytes() == wanted.convert("RGB").tobytes()


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", "RGBA"), ("PNG", "LA"), ("PNG", "P"), ("PNG", "RGB"), ("GIF", "P"), ("WEBP", "RGBA"),
     ("TIFF", "RGBA"), ("TIFF", "LA")],
)  # fmt: skip
def test_what_is_transparent_is_on_white(kind: str, mode: str) -> None:
    """As the processors of transformers have it: a dark sign on nothing is seen."""
    sign = Image.new("RGBA", (60, 40), (0, 0, 0, 0))
    sign.paste((10, 10, 10, 255), (20, 10, 40, 30))
    sign.paste((10, 10, 10, 128), (0, 35, 60, 40))
    options: dict[str, Any] = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    if mode in ("P", "RGB"):
        sign = sign.convert("RGB").quantize(4).convert(mode)
        options["transparency"] = sign.getpixel((0, 0))
    file = as_file(sign.convert(mode), kind, **options)
    decoded = decode_image(file, ImageSize(60, 40))
    assert decoded.getpixel((0, 0)) == (255, 255, 255)
    assert decoded.crop((25, 15, 35, 25)).getextrema() == ((10, 10),) * 3
    assert decoded.tobytes() == convert_to_rgb(Image.open(io.BytesIO(file))).tobytes()


def test_of_several_images_the_first_is_seen() -> None:
    first, second = picture(40, 20), picture(40, 20, seed=1)
    for kind, more in (("GIF", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
        file = as_file(first, kind, save_all=True, append_images=[second], **more)
        alone = decode_image(as_file(first, kind, **more), ImageSize(40, 20))
        assert decode_image(file, ImageSize(40, 20)).tobytes() == alone.tobytes()


@pytest.mark.parametrize("cut", [0, 1, 4, 16, 40, 100])
def test_files_that_are_cut_off(cut: int) -> None:
    for kind in FORMATS:
        file = as_file(picture(50, 50), kind)[:cut]
        image_size(file)  # never raises
        with pytest.raises(BadImage):
            decode_image(file, ImageSize(50, 50))


def test_other_files_are_no_images() -> None:
    for file in (b"", b"hello", bytes(1000), as_file(picture(9, 9), "PPM"), b"RIFF....WAVE"):
        assert image_size(file) is None
        with pytest.raises(BadImage):
            decode_image(file, ImageSize(9, 9))


@functools.cache
def samples() -> list[bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = as_file(picture(20, 12), "JPEG", exif=exif.tobytes(), quality=50)
    others = [as_file(picture(20, 12), kind, exif=exif.tobytes()) for kind in FORMATS]
    return [as_file(picture(20, 12).convert("P")), jpeg, *others]


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_files_are_refused_or_decoded(data: st.DataObject) -> None:
    """Nothing but `BadImage` comes out, and no other size than the one that was checked."""
    file = bytearray(data.draw(st.sampled_from(samples())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(file) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                file[at] = data.draw(st.integers(0, 255))
            case "cut":
                del file[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                file[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        assume(file)
    size = image_size(bytes(file))
    if size is None or size.width * size.height > 1 << 20:
        return
    try:
        decoded = decode_image(bytes(file), size)
    except BadImage:
        return
    assert decoded.size == (size.width, size.height)


def test_a_png_that_names_a_second_size_is_refused_before_it_takes_memory() -> None:
    small, large = png_header(9, 9), png_header(60_000, 60_000)
    file = small + large[8:] + as_file(picture(9, 9))[33:]
    assert image_size(file) == ImageSize(9, 9)
    with pytest.raises(BadImage, match="two different sizes"):
        decode_image(file, ImageSize(9, 9))


def test_files_of_many_parts_are_no_images() -> None:
    """Pillow would put comments together, and copy what tags lie over, for minutes."""
    gif = as_file(picture(9, 9), "GIF")
    start = 13 + (3 << (gif[10] & 7) + 1)  # behind the palette
    comment = b"!\xfe" + (b"\xff" + b"a" * 255) * 2000 + b"\0"
    tiff = bytearray(as_file(picture(9, 9), "TIFF"))
    at = int.from_bytes(tiff[4:8], "little")
    many = (60_000).to_bytes(2, "little") + struct.pack("<HHII", 700, 1, 1 << 20, 0) * 60_000
    width = struct.pack("<HHII", 256, 3, 1, 9) + struct.pack("<HHII", 257, 3, 1, 9)
    overlaid = tiff[:at] + many + width
    tile = struct.pack("<HHII", 322, 4, 1, 1 << 20) + struct.pack("<HHII", 323, 4, 1, 1 << 20)
    tiled = tiff[:at] + (4).to_bytes(2, "little") + width + tile
    for file in (gif[:start] + comment + gif[start:], bytes(overlaid), bytes(tiled)):
        assert image_size(file) is None


def png_header(width: int, height: int) -> bytes:
    """The start of a PNG, and its header chunk."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + end


def test_headers_that_would_take_long_are_no_images() -> None:
    comments = b"\xff\xfe\x00\x02" * 400_000
    jpeg = as_file(picture(9, 9), "JPEG")
    assert image_size(jpeg[:2] + comments + jpeg[2:]) is None
    bomb = zlib.compress(bytes(1 << 20), 9)
    text = b"zTXt" + b"a\0\0" + bomb
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    png = as_file(picture(9, 9))
    assert image_size(png[:33] + chunk * 500 + png[33:]) == ImageSize(9, 9)


def test_layouts_of_checkpoints(tmp_path: Path) -> None:
    """Names as they were written by transformers 4.40 and 4.52."""
    folder = make_llava(tmp_path / "clip-llama")
    tensors = load_file(folder / "model.safetensors")
    for number, prefixes in enumerate(
        [
            {"vision_tower.": "vision_tower.vision_model."},
            {
                "language_model.lm_head.": "lm_head.",
                "language_model.model.": "model.language_model.",
                "vision_tower.": "model.vision_tower.vision_model.",
                "multi_modal_projector.": "model.multi_modal_projector.",
            },
        ]
    ):
        other = tmp_path / f"layout-{number}" / "clip-llama"
        shutil.copytree(folder, other)
        renamed = {}
        for name, tensor in tensors.items():
            for old, new in prefixes.items():
                if name.startswith(old):
                    name = new + name.removeprefix(old)
                    break
            renamed[name] = tensor
        save_file(renamed, other / "model.safetensors")
        image = picture(60, 40)
        found = logits_with_images(Rig(other), [[5, 9], as_file(image), [7]])
        assert_close(found, expected(folder, [[5, 9], image, [7]]))
