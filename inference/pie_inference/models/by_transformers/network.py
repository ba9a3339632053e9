"""The network whose layers are transformers' module."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from pie_inference.attention import PreparedAttention
from pie_inference.errors import LoadError
from pie_inference.layers.lora import AdapterRows
from pie_inference.memory.embeds import ImageInputs
from pie_inference.models.by_transformers.interface import NAME, Attend, attending
from pie_inference.models.by_transformers.layers import Paged
from pie_inference.models.by_transformers.own_attention import give_ours
from pie_inference.models.by_transformers.probe import ROWS, alike, layers_of, rows_apart
from pie_inference.models.by_transformers.states import give_states
from pie_inference.models.network import Network
from pie_inference.models.shape import ModelShape

DIGITS, BASE = 3, 256  # of a token's number: so large ones are exact in bfloat16


class ByTransformers(Network):
    """A module with a head, in two parts: what makes hidden states, and what makes logits of them.

    The second is the whole module, whose inner one is replaced: so what families do with logits is
    their own code, too.
    """

    def __init__(self, module: Any, positions: int, dtype: torch.dtype) -> None:
        """Takes a module with its weights, and how many positions to serve. Raises `LoadError` if
        its results are not its own under another attention.
        """
        self._module = module
        self._positions, self._dtype = positions, dtype
        self._embedding = module.get_input_embeddings()
        name, child = next(
            (
                (name, child)
                for name, child in module.named_children()
                if self._embedding in child.modules()
            ),
            ("", module),
        )
        decoder = module.get_decoder()
        self._inner = decoder if name and hasattr(module.config, "text_config") else child
        if not name or not isinstance(self._inner, nn.Module):
            raise LoadError("it has no inner model")
        # Families whose layers look tokens up again: an embed holds its token beside it.
        text = module.config.get_text_config(decoder=True)
        self._numbers = DIGITS if getattr(text, "hidden_size_per_layer_input", 0) else 0
        taken = inspect.signature(self._inner.forward).parameters
        self._takes_positions = "position_ids" in taken
        self._given, self._first = Given(child), 0  # the first position's number
        self._probe(name)

    def _probe(self, inner: str) -> None:
        """Looks at the module (`probe.py`), and gives it our attention."""
        module, positions = self._module, self._positions
        tokens = _tokens(module.config, self._embedding)
        wanted = module(input_ids=tokens[None], use_cache=False).logits[0]
        for part in module.modules():  # those too that have no way to be told
            if hasattr(part, "config"):
                part.config._attn_implementation_internal = NAME
        give_ours(module, self._takes_positions)
        give_states(module)
        embeds = self.embed(tokens)
        setattr(module, inner, self._given)
        # Families of RoBERTa's count from behind the number of their padding.
        padding = getattr(module.config, "pad_token_id", None)
        for self._first in sorted({0, 1 + (padding if isinstance(padding, int) else -1)}):
            self._layers, hidden = layers_of(self._run, embeds, positions)
            if hidden.shape != embeds.shape:
                raise LoadError("its hidden states are not as wide as its embeddings")
            found = self.logits(hidden)
            if alike(found.log_softmax(-1), wanted.log_softmax(-1)):
                break
        else:
            raise LoadError("its results are others under an attention that is not its own")
        positions -= self._first
        recurrent = self._layers.recurrent
        own = len(self._layers.calls) + (recurrent.layers if recurrent else 0)
        rows_apart(self._run, embeds, positions, own)
        widths = self._layers.widths
        self.shape = ModelShape(
            attention=self._layers.options,
            hidden=embeds.shape[1],
            heads=widths.heads,
            kv_heads=widths.kv_heads,
            head_dim=widths.dim,
            vocab_size=wanted.shape[-1],
            max_position=positions,
            recurrent=recurrent,
        )

    def _run(self, hidden: torch.Tensor, positions: torch.Tensor, by: Attend) -> torch.Tensor:
        more = {"position_ids": positions[None] + self._first} if self._takes_positions else {}
        if self._numbers:
            hidden, digits = hidden.tensor_split((-DIGITS,), 1)
            places = torch.tensor([BASE**i for i in range(DIGITS)], device=hidden.device)
            tokens = (digits.long() * places).sum(1)
            more["per_layer_inputs"] = self._inner.get_per_layer_inputs(tokens[None])
        with attending(by, positions):
            found = self._inner(inputs_embeds=hidden[None], use_cache=False, **more)
        rows: torch.Tensor = found[0][0]
        return F.pad(rows, (0, self._numbers))

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Network.embed`."""
        found: torch.Tensor = self._embedding(tokens[None])[0]
        if self._numbers:
            places = torch.tensor([BASE**i for i in range(DIGITS)], device=tokens.device)
            found = torch.cat([found, (tokens[:, None] // places % BASE).to(found.dtype)], 1)
        return found.to(self._dtype)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: PreparedAttention,
        outputs: torch.Tensor | None,
        adapters: AdapterRows | None = None,
        images: ImageInputs | None = None,
    ) -> torch.Tensor:
        """See `Network.forward`."""
        by = Paged(self._layers, attention, self._dtype, self.between_layers)
        found = self._run(hidden, positions, by)
        return found if outputs is None else found.index_select(0, outputs)

    def logits(
        self, hidden: torch.Tensor, *, every: bool = False, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """See `Network.logits`."""
        hidden = hidden[None, :, : hidden.shape[1] - self._numbers]
        self._given.hidden = hidden
        found: torch.Tensor = self._module(inputs_embeds=hidden, use_cache=False).logits[0]
        if every or self.no_tokens is None:
            return found
        return found.index_fill(1, self.no_tokens, -torch.inf)


class Given(nn.Module):
    """Stands where the inner module was: its output is given."""

    def __init__(self, inner: nn.Module) -> None:
        """Takes that module, whose numbers heads may ask for."""
        super().__init__()
        self._numbers_of = (inner,)  # in a tuple it is no part of this one
        self.hidden = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        """A number is the inner module's; a part of it has the same output."""
        found = getattr(self.__dict__["_numbers_of"][0], name)
        return self if isinstance(found, nn.Module) else found

    def forward(self, *_: Any, **__: Any) -> _Output:
        """The hidden states that were given, `[1, rows, hidden]`."""
        return _Output(self.hidden)


class _Output(tuple[torch.Tensor, ...]):
    """As modules take an output: of what is not given, there is none."""

    def __new__(cls, hidden: torch.Tensor) -> _Output:
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _tokens(config: Any, embedding: Any) -> torch.Tensor:
    """Tokens of a text to try, none of which configurations give a meaning."""
    table = embedding.weight
    special = {
        token
        for part in (config, config.get_text_config(decoder=True))
        for name, token in vars(part).items()
        if name.endswith(("token_id", "token_index")) and isinstance(token, int)
    }
    plain = torch.tensor([t for t in range(len(table)) if t not in special])
    picked = torch.randint(len(plain), (ROWS,), generator=torch.Generator().manual_seed(0))
    return plain[picked].to(table.device)
