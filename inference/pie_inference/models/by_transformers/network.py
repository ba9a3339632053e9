"""The network whose layers are transformers' module."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from pie_inference.attention import PreparedAttention
from pie_inference.errors import LoadError
from pie_inference.layers.lora import AdapterRows
from pie_inference.memory.embeds import ImageInputs
from pie_inference.models.by_transformers.images import BEFORE, GeneralImages, Trial
from pie_inference.models.by_transformers.interface import NAME, Attend, Given, attending
from pie_inference.models.by_transformers.layers import Paged
from pie_inference.models.by_transformers.own_attention import give_ours
from pie_inference.models.by_transformers.probe import (
    ROWS,
    Whole,
    alike,
    layers_of,
    rows_apart,
)
from pie_inference.models.by_transformers.products import adapting, give_products, sites_of
from pie_inference.models.by_transformers.states import give_states
from pie_inference.models.few_bits import BITS
from pie_inference.models.network import Network
from pie_inference.models.shape import ModelShape
from pie_inference.vision.images import BadImage

DIGITS, BASE = 3, 256  # of a token's number: so large ones are exact in bfloat16


class ByTransformers(Network):
    """A module with a head, in two parts: what makes hidden states, and what makes logits of them.

    The second is the whole module, whose inner one is replaced: so what families do with logits is
    their own code, too.
    """

    no_images = ""  # why a model that has a tower reads text alone

    def __init__(
        self,
        module: Any,
        positions: int,
        dtype: torch.dtype,
        folder: Path | None = None,
    ) -> None:
        """Takes a module with its weights, how many positions to serve, and the checkpoint's folder
        for its processor of images. Raises `LoadError` if its results are not its own under another
        attention; if that is so with images alone, it reads text.
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
        self._child = name, child
        self._decoder: nn.Module = decoder
        tokens = _tokens(module.config, self._embedding)
        trial = None
        if folder is not None and hasattr(module.config, "vision_config"):
            with self._without_images():
                trial = Trial.of(module, tokens, folder)
        self._probe(name, tokens)
        if trial is not None:
            with self._without_images():
                self._try_images(trial, tokens)
        self._tried = tokens

    def use_products(self, quantize: str | None) -> None:
        """Computes with products of ours from now on, as was tried with the module's, of weights in
        that form. Raises `LoadError` if none can have it.
        """
        tokens = self._tried
        if self.shape.recurrent is not None and quantize is None:
            return  # their layers are run on rows of their own
        with self._whole() as module:  # for the names
            products = give_products(module, self._inner, quantize)
        positions = torch.arange(len(tokens), device=tokens.device)
        self._run(self.embed(tokens), positions, Whole(self._positions))
        self.few_bits = sorted({BITS[quantize]}) if quantize else ()
        if self.shape.recurrent is None:
            self.sites = sites_of(products, len(tokens))

    def _probe(self, inner: str, tokens: torch.Tensor) -> None:
        """Looks at the module (`probe.py`), and gives it our attention."""
        module, positions = self._module, self._positions
        wanted = module(input_ids=tokens[None], use_cache=False).logits[0]
        parts = [module, self._child[1], *self._decoder.modules()]
        ours = {id(part.config) for part in parts if hasattr(part, "config")}
        for part in module.modules():  # those too that have no way to be told
            if hasattr(part, "config"):
                tower = "sdpa" if getattr(part, "_supports_sdpa", False) else "eager"
                used = NAME if id(part.config) in ours else tower
                part.config._attn_implementation_internal = used
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

    @contextmanager
    def _without_images(self) -> Iterator[None]:
        """Notes why there are none."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  of transformers' code
            self.images = None
            own = isinstance(error, LoadError | BadImage)
            self.no_images = str(error) if own else f"{type(error).__name__}: {error}"

    @contextmanager
    def _whole(self) -> Iterator[Any]:
        """The module with its inner one, while it is needed."""
        setattr(self._module, *self._child)
        try:
            yield self._module
        finally:
            setattr(self._module, self._child[0], self._given)

    def _try_images(self, trial: Trial, tokens: torch.Tensor) -> None:
        """Raises `LoadError` unless an image in a text gives what the module gives by itself."""
        self.images = GeneralImages(
            self._whole, self._decoder, trial, self._image_embeds, self._dtype
        )
        seen = self.images.tried
        first, last = tokens.tensor_split((BEFORE,))
        hidden = torch.cat([self.embed(first), seen.hidden, self.embed(last)])
        end = BEFORE + len(seen.hidden)
        positions = torch.arange(len(hidden), device=tokens.device)
        inputs = None
        if seen.places is not None:
            features = seen.features
            if features is None:
                features = seen.hidden.new_zeros(len(seen.hidden), 0, self.shape.hidden)
            self.shape = replace(self.shape, image_layers=features.shape[1])
            inputs = ImageInputs(positions[BEFORE:end].clone(), seen.places, features)
        if self.images.in_rows:
            assert seen.places is not None
            positions[end:] += BEFORE + int(seen.places.max()) + 1 - end
            positions[BEFORE:end] = BEFORE
        whole = Whole(self._positions, inputs if self.images.whole else None)
        found = self.logits(self._run(hidden, positions, whole, inputs))
        if not alike(found.log_softmax(-1), trial.wanted.log_softmax(-1)):
            raise LoadError("results of an image are others than by the module itself")

    def _image_embeds(
        self, tokens: torch.Tensor, hidden: torch.Tensor, looked_up: torch.Tensor | None
    ) -> torch.Tensor:
        """Inputs of what the language model is given for tokens. Raises `LoadError` if its layers
        look up what is no token's.
        """
        hidden = hidden.to(self._dtype)
        if looked_up is None:
            return hidden
        text = self._module.config.get_text_config(decoder=True)
        for other in (getattr(text, "pad_token_id", None) or 0, 0):
            found = self._inner.get_per_layer_inputs(tokens[None])[0]
            wrong = (found - looked_up).flatten(1).abs().amax(1) > 0
            tokens = torch.where(wrong, other, tokens)
        if not torch.equal(self._inner.get_per_layer_inputs(tokens[None])[0], looked_up):
            raise LoadError("its layers look up of an image what is no token's")
        return torch.cat([hidden, self._digits(tokens)], 1)

    def _digits(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.tensor([BASE**i for i in range(DIGITS)], device=tokens.device)
        return (tokens[:, None] // places % BASE).to(self._dtype)

    def _run(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        by: Attend,
        images: ImageInputs | None = None,
    ) -> torch.Tensor:
        more: dict[str, Any] = {}
        if self._takes_positions:
            more["position_ids"] = positions[None] + self._first
        if images is not None and self.images is not None and self.images.in_rows:
            three = more["position_ids"].repeat(3, 1)
            three[:, images.rows] += images.places.T
            more["position_ids"] = three[:, None]
        if images is not None and images.features.shape[1]:
            seen = torch.zeros_like(positions, dtype=torch.bool)
            seen[images.rows] = True
            more["visual_pos_masks"] = seen[None]
            more["deepstack_visual_embeds"] = list(images.features.unbind(1))
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
            found = torch.cat([found.to(self._dtype), self._digits(tokens)], 1)
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
        with adapting(adapters):
            found = self._run(hidden, positions, by, images)
        return found if outputs is None else found.index_select(0, outputs)

    def logits(
        self, hidden: torch.Tensor, *, every: bool = False, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """See `Network.logits`."""
        hidden = hidden[None, :, : hidden.shape[1] - self._numbers]
        self._given.output = (hidden,)
        found: torch.Tensor = self._module(inputs_embeds=hidden, use_cache=False).logits[0]
        if every or self.no_tokens is None:
            return found
        return found.index_fill(1, self.no_tokens, -torch.inf)


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
