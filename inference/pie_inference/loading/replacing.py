"""Puts other weights in place of a served model's, where they lie in memory."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pie_inference.errors import LoadError
from pie_inference.handlers.base import Served, ServedModel
from pie_inference.models.weights import Place
from pie_py.config.printable import printable

_ROWS = re.compile(r"(.+)\[(\d+):(\d+)\]")  # behind the name of a tensor that is a part of it
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def replace_weights(model: Served, file: Path) -> None:
    """Writes the tensors of a safetensors file over those of their names in the checkpoint, or,
    named `NAME[2:4]`, over its rows 2 and 3.

    Nothing is written unless all can be. Raises `LoadError` that says what cannot.
    """
    try:
        with torch.inference_mode(), safe_open(file, framework="pt", device="cpu") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # mapped  # noqa: SIM118
            _replace(model, found)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{file} cannot be read: {printable(str(error))}") from None


def _replace(model: Served, found: dict[str, torch.Tensor]) -> None:
    if not isinstance(model, ServedModel) or not model.network.places:
        raise LoadError("its weights stay: it is no model of pie_py's own code that writes text")
    if model.ranks.size > 1:
        raise LoadError("its weights stay: tensor_parallel_size is above 1")
    if model.adapters.depends:
        raise LoadError(
            "an adapter is loaded that was made of the weights as they are, as a DoRA and whole"
            " modules are: unload it"
        )
    if not found:
        raise LoadError("there are no tensors")
    writes: list[tuple[Place, int, torch.Tensor]] = []
    for given, tensor in found.items():
        name, start, end = _named(given)
        renamed = model.adapters.rename(name) or name
        if renamed == _HEAD and model.network.tied:
            _check_tied(found, tensor)
            continue
        place = model.network.places.get(renamed)
        if place is None:
            raise LoadError(
                f"{printable(given)}: it has no tensor of this name that can be replaced"
            )
        rows = range(place.shape[0])[start:end]
        if end is not None and len(rows) != end - (start or 0):
            raise LoadError(f"{given}: the tensor has {place.shape[0]} rows")
        wanted = (len(rows), *place.shape[1:])
        if tuple(tensor.shape) != wanted:
            raise LoadError(f"{given} is {list(tensor.shape)}, not {list(wanted)}")
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise LoadError(
                f"{given} holds {tensor.dtype}, no floating-point numbers of 16 bits or more"
            )
        tensor = tensor.to(model.device, model.embeds.hidden.dtype)
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # a NaN is both
            raise LoadError(f"{given} holds numbers that are not finite in {tensor.dtype}")
        writes.append((place, rows.start, tensor))
    for place, start, tensor in writes:
        place.write(start, tensor)
    if model.fused_steps is not None:
        model.fused_steps.renew()


def _named(given: str) -> tuple[str, int | None, int | None]:
    """The name of a tensor, and the first row that is meant and the end, if not all are."""
    if (part := _ROWS.fullmatch(given)) is None:
        return given, None, None
    return part[1], int(part[2]), int(part[3])


def _check_tied(found: dict[str, torch.Tensor], head: torch.Tensor) -> None:
    """A head that is the embedding comes with it, and is no other one."""
    given = [tensor for name, tensor in found.items() if name.endswith("embed_tokens.weight")]
    if len(given) != 1 or not torch.equal(given[0], head):
        raise LoadError(f"{_HEAD}: the model's head is its embedding: give {_EMBEDDING}")
