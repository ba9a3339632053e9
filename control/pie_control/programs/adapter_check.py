"""The check of an uploaded file of tensors, in a confined process: an adapter's header and
configuration, or vectors.

The worker holds its tensors to the model's. What it reads before is checked here: a stranger's
header, and patterns, which Python's `re` matches.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import ProgramRejected
from pie_py.device_programs.language import MOST_AXES
from pie_py.wire.adapter_file import CONFIG, CONFIG_FILE, BadAdapter, names_config, split

MOST_RANK = 256  # of which a step takes as long as of a layer itself in a small model
MOST_TENSORS = 8192
MOST_NAMES = 256  # in a configuration's lists: each is looked at for each tensor
MOST_VECTOR_BYTES = 16 << 20  # without a configuration: what is read for a sampler
SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_PLAIN = re.compile(r"[\w.]{1,256}", re.ASCII)  # what takes no time to match


def check_adapter(data: bytes) -> None:
    """Checks an adapter as `adapter_file.pack` gives it, or tensors without a configuration.
    Blocking.

    Raises:
        ProgramRejected: it is none, or exceeds a bound, or has what only operators may load.
    """
    try:
        header, tensors = split(data)
        metadata = header.pop("__metadata__", {})
        _check_tensors(header, len(tensors))
        if names_config(data):  # as the kind of a program is told
            _check_config(json.loads(metadata[CONFIG]))
        else:
            _check_vectors(header, tensors)
    except BadAdapter as error:
        raise ProgramRejected(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ProgramRejected(f"the tensors cannot be read: {error!r:.200}") from None


def _check_tensors(header: Mapping[str, Any], size: int) -> None:
    if not 0 < len(header) <= MOST_TENSORS:
        raise BadAdapter(f"the file has {len(header)} tensors: one to {MOST_TENSORS}")
    at = 0
    for name, facts in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if not _PLAIN.fullmatch(name):
            raise BadAdapter(f"{name!r:.100} is no name of a tensor")
        if facts["dtype"] not in SIZES:
            raise BadAdapter(f"tensor {name} holds {facts['dtype']!r:.20}: {', '.join(SIZES)} can")
        (start, end), shape = facts["data_offsets"], facts["shape"]
        if start != at or end - start != math.prod(shape) * SIZES[facts["dtype"]] or min(shape) < 1:
            raise BadAdapter(f"tensor {name} has {start} to {end} of the data for {shape!r:.60}")
        at = end
    if at != size:
        raise BadAdapter(f"the tensors have {at} bytes, and {size} came")


def _check_config(config: Mapping[str, Any]) -> None:
    for name in ("use_dora", "modules_to_save"):
        if config.get(name):
            raise BadAdapter(
                f"{CONFIG_FILE}: {name} takes the worker long to load, so that only an operator"
                " may, from a folder of the server's machine"
            )
    targets = config["target_modules"]
    ranks, alphas = (config.get(f"{name}_pattern") or {} for name in ("rank", "alpha"))
    names = [*([targets] if isinstance(targets, str) else targets), *ranks, *alphas]
    for name in names:
        if name != "all-linear" and not _PLAIN.fullmatch(name):
            raise BadAdapter(
                f"{CONFIG_FILE}: {name!r:.100} is a pattern: name the modules themselves"
            )
    if len(names) > MOST_NAMES:
        raise BadAdapter(f"{CONFIG_FILE}: {len(names)} modules are named; {MOST_NAMES} at most")
    most = max([config["r"], *ranks.values()])
    if most > MOST_RANK:
        raise BadAdapter(f"{CONFIG_FILE}: a rank of {most}; uploaded ones have {MOST_RANK} at most")


def _check_vectors(header: Mapping[str, Any], data: bytes) -> None:
    if len(data) > MOST_VECTOR_BYTES:
        raise BadAdapter(f"{len(data)} bytes of tensors; {MOST_VECTOR_BYTES} at most")
    for name, facts in header.items():
        if len(facts["shape"]) > MOST_AXES:
            raise BadAdapter(f"tensor {name} has sizes {facts['shape']!r:.60}: two at most")
        if not np.isfinite(numbers(data, facts)).all():
            raise BadAdapter(f"tensor {name} has what is no finite number")


def numbers(data: bytes, facts: Mapping[str, Any]) -> NDArray[np.float32]:
    """A tensor of what is behind a header that was checked, `[*sizes]`."""
    start, end = facts["data_offsets"]
    raw, kind = data[start:end], facts["dtype"]
    found = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[kind])
    if kind == "BF16":
        found = (found.astype("<u4") << 16).view("<f4")
    return found.astype(np.float32).reshape(facts["shape"])
