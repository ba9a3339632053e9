"""Quantized checkpoints: their tensors, as the numbers that they stand for.

What is stored in fewer bits is widened when it is read; the model computes in its dtype. Groups of
4 or 8 bits can be had as they are, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.packed import (
    Table,
    awq,
    bitsandbytes,
    fp8,
    gptq,
    modelopt,
    mxfp4,
)
from pie_inference.checkpoints.sources import Groups, Made, Shape, Source, Sources
from pie_inference.errors import LoadError


def quantization(config: Mapping[str, Any]) -> str | None:
    """The method by which the weights are quantized, or None. Raises `LoadError` if it is not
    supported.
    """
    table = Fields(config).table("quantization_config")
    if not table:
        return None
    name = Fields(table, "quantization_config").text("quant_method", "unnamed")
    if name not in METHODS:
        raise LoadError(
            f"config.json: quantized weights of the method {name!r} are not supported (supported:"
            f" {', '.join(METHODS)}); take the model's checkpoint in bfloat16, or one of those"
        )
    return name


def dequantized(config: Mapping[str, Any], stored: Sources) -> Sources:
    """The tensors that a quantized checkpoint's stand for; of another one, those that it stores.
    Raises `LoadError` if a variant of the method is not supported.
    """
    method = quantization(config)
    if method is None:
        return stored
    return METHODS[method](config["quantization_config"], stored)


def compressed_tensors(table: Table, stored: Sources) -> Sources:
    """Formats of the library of that name: integers and floats of 4 and 8 bits. Raises `LoadError`
    if the library is not installed, or does not know what `table` says.
    """
    try:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.compressors.format import infer_module_format
        from compressed_tensors.quantization import QuantizationConfig, QuantizationMetadata
        from compressed_tensors.utils.match import match_quantizable_tensors
    except ImportError as error:
        raise LoadError(
            f"quantization_config: compressed-tensors cannot be read: {error}; install"
            " pie-py[quantized]"
        ) from None
    try:
        config = QuantizationConfig.model_validate(dict(table))
        usual = table.get("format")
        if usual not in BaseCompressor.registered_names():
            usual = None  # of a mixture, or none yet
        schemes = []
        for scheme in config.config_groups.values():
            name = scheme.format or usual or infer_module_format(torch.nn.Linear, scheme)
            name = getattr(name, "value", name)  # an enum's in some releases
            schemes.append((scheme, BaseCompressor.get_value_from_registry(name)))
    except (ValueError, KeyError, StopIteration) as error:
        raise LoadError(f"quantization_config of compressed-tensors: {error}") from None
    found = dict(stored)
    for scheme, compressor in schemes:
        needed = compressor.compression_param_names(scheme)
        known = {*needed, *QuantizationMetadata.all_qparam_names()}
        names = match_quantizable_tensors(stored, config.ignore, scheme.targets, needed[:1])
        for module, name in names:
            if not all(f"{module}.{part}" in found for part in needed):
                continue  # an embedding, which is no product
            whole = {part: f"{module}.{part}" for part in known}
            present = {part: found.pop(name) for part, name in whole.items() if name in found}
            widen = partial(_decompressed, compressor, scheme, tuple(present))
            shape = _plain_shape(stored[name], present)
            form, groups = scheme.weights, None
            if form is not None and (form.num_bits, form.type) == (8, "int"):
                groups = partial(_int8_groups, tuple(present))
            found[f"{module}.weight"] = Made(shape, widen, *present.values(), groups=groups)
    return found


def _int8_groups(names: tuple[str, ...], *tensors: torch.Tensor) -> Groups | None:
    """A weight of int8 around zero, with a scale for each output or group of inputs; else None."""
    parts = dict(zip(names, tensors, strict=True))
    weight, scale = parts.get("weight"), parts.get("weight_scale")
    if weight is None or scale is None or weight.dtype != torch.int8 or scale.dim() != 2:
        return None
    if len(scale) != len(weight) or parts.keys() & {"weight_zero_point", "weight_g_idx"}:
        return None
    numbers, wide = (weight.short() + 128).to(torch.uint8), scale.float()
    return Groups(numbers, wide, -128 * wide, 8)


def _plain_shape(weight: Source, parts: Mapping[str, Source]) -> Shape:
    """Of the weight before it was packed."""
    if (stored := parts.get("weight_shape")) is None:
        return weight.shape
    return tuple(int(size) for size in stored.read().tolist())


def _decompressed(
    compressor: Any, scheme: Any, names: tuple[str, ...], *tensors: torch.Tensor
) -> torch.Tensor:
    found: torch.Tensor = compressor.decompress(dict(zip(names, tensors, strict=True)), scheme)[
        "weight"
    ]
    return found


METHODS: dict[str, Callable[[Table, Sources], Sources]] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "gptq": gptq,
    "modelopt": modelopt,
    "mxfp4": mxfp4,
}
