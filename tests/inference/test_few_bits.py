"""Weights that stay in 4 or 8 bits are multiplied as what they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
import torch
from inference.test_quantized import plain_copy
from safetensors.torch import load_file
from support.families import make_family
from support.gguf_files import Kind, write_gguf
from support.model_rig import Rig, assert_close, multiplies_integers, tokens_of

from pie_inference.errors import LoadError
from pie_inference.layers import native
from pie_inference.layers.grouped import GroupedLinear, Packed, as_it_is, packed, rounded
from pie_inference.models import few_bits, kept_weights
from pie_inference.models.decoder import Decoder

Weight = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]
ROWS = [1, 2, 3, 5, 6, 7, 8, 13, 32, 70, 290]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def other_cache(own_cache: Path, nothing_made: None) -> Iterator[Path]:
    """The library is compiled again, into it."""
    native.library.cache_clear()
    yield own_cache
    native.library.cache_clear()


def weight(out: int, inputs: int, group: int, bits: int, half: bool) -> Weight:
    generator = torch.Generator().manual_seed(out + inputs)
    numbers = torch.randint(0, 1 << bits, (out, inputs), generator=generator, dtype=torch.uint8)
    scales = torch.rand(out, inputs // group, generator=generator) / (1 << bits)
    least = -torch.rand(out, inputs // group, generator=generator)
    if half:
        scales, least = scales.half().float(), least.half().float()
    return numbers, scales, least, bits


def plain(weight: Weight) -> torch.Tensor:
    numbers, scales, least, _ = weight
    parts = numbers.double().view(*scales.shape, -1)
    widened: torch.Tensor = parts * scales[..., None] + least[..., None]
    return widened.flatten(1)


def assert_multiplies(*weights: Weight, integers: bool = False) -> None:
    """Near the exact product, and the same for a row whatever others there are; of kernels that
    multiply `integers`, or of those that this CPU has.
    """
    exact_weight = torch.cat([plain(each) for each in weights])
    bias = torch.randn(len(exact_weight))
    product = GroupedLinear([packed(*each) for each in weights], bias)
    exactly = 4e-5 if multiplies_integers() or integers else 1e-5
    for dtype, near in ((torch.float32, exactly), (torch.bfloat16, 2**-7)):
        x = torch.randn(ROWS[-1], exact_weight.shape[1]).to(dtype)
        residual = torch.randn(ROWS[-1], len(exact_weight)).to(dtype)
        exact = x.double() @ exact_weight.t() + bias
        whole, added = product(x), product.add_to(residual, x)
        largest = exact.abs().max().item()
        torch.testing.assert_close(whole.double(), exact, rtol=near, atol=near * largest)
        torch.testing.assert_close(added.double(), exact + residual, rtol=near, atol=near * largest)
        for rows in ROWS:
            assert torch.equal(product(x[-rows:]), whole[-rows:])
            assert torch.equal(product.add_to(residual[:rows], x[:rows]), added[:rows])


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("out", "inputs", "group"), [(64, 32, 16), (112, 192, 32), (90, 384, 128), (7, 32, 32)]
)
def test_products(out: int, inputs: int, group: int, bits: int, half: bool) -> None:
    found = weight(out, inputs, group, bits, half)
    assert packed(*found).half == half
    assert_multiplies(found)


def test_the_largest_sums() -> None:
    """Of one group of many inputs; and no number stays none, in its row alone."""
    ones = torch.ones(64, 1)
    product = GroupedLinear([packed(torch.full((64, 2048), 255).byte(), ones, 0 * ones, 8)])
    x = torch.ones(30, 2048)
    x[1, 5], x[2] = torch.nan, 1e-38
    found = product(x)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2, 3]], (255 * x[[0, 2, 3]]).sum(1, True).expand(3, 64))


@pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported(), reason="this CPU has no instructions for bfloat16"
)
@pytest.mark.parametrize(("out", "inputs"), [(64, 16), (50, 48), (112, 192), (90, 768), (7, 2048)])
def test_products_of_bfloat16(out: int, inputs: int) -> None:
    whole = torch.randn(out, inputs).bfloat16()
    packed, bias = as_it_is(whole), torch.randn(out)
    rows = torch.tensor([out - 1, 0, 3])
    assert torch.equal(packed.rows(rows), whole[rows].float())
    x = torch.randn(ROWS[-1], inputs).bfloat16()
    exact = x.double() @ whole.double().t() + bias
    product = GroupedLinear([packed], bias)
    found = product(x)
    largest = exact.abs().max().item()
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-7 * largest)
    for count in ROWS:
        assert torch.equal(product(x[-count:]), found[-count:])


def test_a_product_of_weights_that_are_stored_differently() -> None:
    forms = [
        (96, 32, 4, True),
        (64, 32, 4, True),
        (64, 64, 4, False),
        (83, 32, 8, True),
        (83, 32, 8, True),
    ]
    assert_multiplies(*(weight(out, 192, group, bits, half) for out, group, bits, half in forms))


def test_rows_of_a_weight() -> None:
    found = weight(80, 96, 16, 4, False)
    rows = packed(*found).rows(torch.tensor([79, 0, 17]))
    torch.testing.assert_close(rows.double(), plain(found)[[79, 0, 17]])


@pytest.mark.parametrize(("bits", "near"), [(4, 0.5 / 15), (8, 0.5 / 127)])
def test_rounded_weights_are_the_nearest(bits: int, near: float) -> None:
    torch.manual_seed(0)
    plain = torch.randn(64, 96)
    plain[3] = 0.0
    spread = plain.view(64, -1, 32).aminmax(dim=-1, keepdim=True)
    most = (spread.max - spread.min) if bits == 4 else torch.maximum(spread.max, -spread.min)
    error = (rounded(plain, bits).rows() - plain).view(64, -1, 32).abs()
    assert (error <= 1.02 * near * most + 1e-6).all()


@pytest.fixture
def gguf(tmp_path: Path, own_cache: Path) -> Path:
    return write_gguf(make_family(tmp_path / "model", "llama"), "llama", Kind.Q4_1)


def kept(rig: Rig) -> bool:
    network = rig.model.network
    assert isinstance(network, Decoder)
    return isinstance(network._head, GroupedLinear) and isinstance(
        network._embedding.weight, Packed
    )


def logits(rig: Rig) -> torch.Tensor:
    return rig.read(tokens_of(30))


@pytest.mark.nightly
def test_a_file_is_served_as_without_a_compiler(
    gguf: Path, other_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(gguf, dtype="float32")
    assert kept(rig)
    with_kernel = logits(rig)
    monkeypatch.setenv("CC", "no-such-compiler")
    native.library.cache_clear()
    rig = Rig(gguf, dtype="float32")
    assert not kept(rig)
    assert_close(with_kernel, logits(rig), few_bits=True)


def test_packed_weights_are_kept(
    gguf: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later start maps the same; a damaged file, and another's, is none."""
    found = logits(Rig(gguf))
    [file] = (own_cache / "weights").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(few_bits, "packed", None)  # nothing is packed again
        rig = Rig(gguf)
        assert kept(rig)
        assert torch.equal(logits(rig), found)
    content = bytearray(file.read_bytes())
    for damaged in (content[:-9], content[:77] + bytes([content[77] ^ 1]) + content[78:], b""):
        file.write_bytes(damaged)
        assert torch.equal(logits(Rig(gguf)), found)
        assert file.read_bytes() == content
    file.unlink()
    file.parent.chmod(0o777)
    assert torch.equal(logits(Rig(gguf)), found)
    assert not list(file.parent.iterdir())


def test_kept_weights_take_a_bounded_part_of_the_disk(
    gguf: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_family(tmp_path / "plain", "llama")
    Rig(plain, quantize="int4")
    [older] = (own_cache / "weights").iterdir()
    monkeypatch.setattr(kept_weights, "MOST_BYTES", older.stat().st_size * 3 // 2)
    Rig(plain, quantize="int8")
    [newer] = (own_cache / "weights").iterdir()
    assert newer != older
    monkeypatch.setattr(kept_weights, "MOST_BYTES", 0)
    assert kept(Rig(gguf))
    assert [*(own_cache / "weights").iterdir()] == [newer]


def test_a_folder_that_others_can_write_to_is_not_used(other_cache: Path) -> None:
    (other_cache / "native").mkdir(parents=True)
    os.chmod(other_cache / "native", 0o777)
    assert native.library() is None


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_plain_checkpoint_is_rounded_on_request(quantize: str, tmp_path: Path) -> None:
    """And is served as one of the rounded numbers is; what reads and makes tokens has 8 bits."""
    folder = make_family(tmp_path / "model", "llama")
    rig = Rig(folder, quantize=quantize)
    assert kept(rig)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name, tensor in tensors.items() if tensor.dim() == 2]:
        outer = name.startswith(("lm_head", "model.embed_tokens"))
        tensors[name] = rounded(tensors[name], 8 if outer else int(quantize[3:])).rows()
    as_rounded = plain_copy(folder, tmp_path / "rounded", tensors)
    assert_close(logits(rig), logits(Rig(as_rounded)), few_bits=True)


def test_rounding_needs_a_compiler(
    tmp_path: Path, other_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(LoadError, match="C compiler"):
        Rig(make_family(tmp_path / "model", "llama"), quantize="int8")
