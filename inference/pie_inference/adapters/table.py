"""The adapters of a served model, by slot: the control layer says which slot is whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.adapters.folder import load_adapter
from pie_inference.errors import BadBatch, LoadError
from pie_inference.layers.lora import Adapter, AdapterRows, LinearSite


class AdapterTable:
    """Loads and forgets adapters, and tells which rows of a batch have one."""

    def __init__(
        self,
        sites: Mapping[str, LinearSite],
        rename: Callable[[str], str | None],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Takes what `load_adapter` needs of the model."""
        self._sites = sites
        self._rename = rename
        self._dtype = dtype
        self._device = device
        self._adapters: dict[int, Adapter] = {}

    def load(self, slot: int, folder: Path) -> None:
        """Reads an adapter into a slot.

        Raises:
            LoadError: if it is wrong, not supported, does not fit, or there is no memory for it.
        """
        try:
            with torch.inference_mode():
                self._adapters[slot] = load_adapter(
                    folder, self._sites, self._rename, self._dtype, self._device
                )
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise LoadError(f"adapter {folder}: not enough memory: {error}") from None

    def unload(self, slot: int) -> None:
        """Forgets an adapter."""
        self._adapters.pop(slot, None)

    def rows(
        self, slots: NDArray[np.int32], outputs: NDArray[np.int32] | None = None
    ) -> AdapterRows | None:
        """Rows `[t]` of a batch by the slots of their adapters, -1 for none; `outputs` are its
        outputs' rows.

        Raises:
            BadBatch: for a slot without adapter.
        """
        used = np.unique(slots[slots >= 0]).tolist()
        if not used:
            return None
        missing = [slot for slot in used if slot not in self._adapters]
        if missing:
            raise BadBatch(f"forward: there is no adapter {missing[0]}")
        return AdapterRows(slots, self._adapters, self._device, outputs)
