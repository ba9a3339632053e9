"""How transformers' modules reach another attention than theirs.

They look their attention up by the name in their configuration, and hand it queries, keys and
values. What answers is the `Attend` of the thread's forward; without one, a module asks for nothing
under this name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import nn

from pie_inference.errors import LoadError

NAME = "pie_py"
MaskFunction = Callable[..., torch.Tensor]  # (batch, head, query, key) -> seen; all broadcast

# Arguments that change nothing: of training, of kernels for ragged batches, or said by the mask.
_IDLE = {
    "cache",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "deterministic",
    "is_causal",
    "max_length_k",
    "max_length_q",
    "output_attentions",
    "output_hidden_states",
    "position_ids",
    "return_dict",
    "use_cache",
}


class Asked(NamedTuple):
    """A module's request to its attention; rows are inputs of one or several sequences."""

    module: nn.Module
    query: torch.Tensor  # [1, heads, rows, key_dim]
    key: torch.Tensor  # [1, kv_heads, rows, key_dim]
    value: torch.Tensor  # [1, kv_heads, rows, value_dim]
    mask: torch.Tensor | None
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None  # [heads]
    slopes: torch.Tensor | None  # [heads] of what is added to scores for each position of a key


class Attend(ABC):
    """The attention of one forward."""

    positions: torch.Tensor  # [rows] of the inputs

    def mask(self, rows: int, seen: MaskFunction, device: torch.device) -> torch.Tensor:
        """The mask that modules carry to their attention: of one number, where it is known without
        them, for some ask it for its dtype.
        """
        return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)

    @abstractmethod
    def attend(self, asked: Asked) -> torch.Tensor:
        """The attention of the rows, `[1, rows, heads, value_dim]`."""

    @abstractmethod
    def mix(self, hidden: torch.Tensor, mixer: Mixer) -> torch.Tensor:
        """The output of a layer with a state for its inputs `[1, rows, hidden]`."""


# Of tokens `[runs, tokens, hidden]` and a cache, `states.Remembered`, what the layer makes of them.
Mixer = Callable[[torch.Tensor, Any], torch.Tensor]
_attend: ContextVar[Attend | None] = ContextVar("attend", default=None)


@contextmanager
def attending(by: Attend, positions: torch.Tensor) -> Iterator[None]:
    """Modules that run within, over inputs at positions, ask `by` for their attention."""
    by.positions = positions
    token = _attend.set(by)
    try:
        yield
    finally:
        _attend.reset(token)


def asked() -> Attend | None:
    """Who answers modules now; None outside of `attending`."""
    return _attend.get()


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Has the signature that transformers' modules call. Raises `LoadError` if one gives what this
    attention does not know.
    """
    unknown = sorted(name for name in more.keys() - _IDLE if more[name] is not None)
    by = _attend.get()
    if unknown or by is None or not isinstance(scaling, float | None):
        kind = f"scaling of {type(scaling).__name__}" if not unknown else ", ".join(unknown)
        raise LoadError(f"{type(module).__name__} gives its attention what ours has not: {kind}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    made = Asked(module, query, key, value, attention_mask, scale, softcap, s_aux, slopes)
    return by.attend(made), None


def _mask(
    *, q_length: int, mask_function: MaskFunction, device: torch.device, **_: Any
) -> torch.Tensor | None:
    by = _attend.get()
    return None if by is None else by.mask(q_length, mask_function, device)


def register() -> None:
    """Makes the attention known to transformers under `NAME`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _mask)


class Given(nn.Module):
    """Stands where an inner module was: its output is given."""

    def __init__(self, inner: nn.Module) -> None:
        """Takes that module, whose numbers heads may ask for."""
        super().__init__()
        self._numbers_of = (inner,)  # in a tuple it is no part of this one
        # Hidden states `[n, rows, hidden]`, and of an encoder what its pooler makes of them.
        self.output: tuple[torch.Tensor | None, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """A number is the inner module's; a part of it has the same output."""
        found = getattr(self.__dict__["_numbers_of"][0], name)
        return self if isinstance(found, nn.Module) else found

    def forward(self, *_: Any, **__: Any) -> _Output:
        """The output that was given."""
        return _Output(self.output)


class _Output(tuple[torch.Tensor | None, ...]):
    """As modules take an output: of what is not given, there is none."""

    @property
    def last_hidden_state(self) -> torch.Tensor | None:
        return self[0]

    def __getattr__(self, name: str) -> torch.Tensor | None:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[1] if name == "pooler_output" and len(self) > 1 else None
