"""Images of models that transformers runs: its processor, and the module up to its language model.

The processor says which tokens an image takes, and what the tower reads. The module then runs as
far as to its language model, and what that would have read is what an image is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Never

import torch
from PIL import Image
from torch import nn

from pie_inference.errors import LoadError
from pie_inference.memory.embeds import Seen
from pie_inference.models.by_transformers.interface import (
    Asked,
    Attend,
    MaskFunction,
    Mixer,
    attending,
)
from pie_inference.vision.images import BadImage, Measured
from pie_py.wire.images import ImageSize

REMEMBERED = 4096  # sizes of images that were measured
BEFORE = 8  # tokens of the text that is tried before its image
# What processors give for each token, and for those of a text around.
PER_TOKEN = {"input_ids": 0, "attention_mask": 1, "token_type_ids": 0, "mm_token_type_ids": 0}
Inputs = dict[str, torch.Tensor]


class Processor:
    """transformers' processor of a checkpoint, of images alone."""

    def __init__(self, model_type: str, folder: Path) -> None:
        """Raises `LoadError` if there is none, or it needs what is not installed."""
        try:
            self._processor = _processor(model_type, folder)
            self.place: str = self._processor.image_token
        except Exception as error:
            what = str(error).strip().split("\n")[0] or type(error).__name__
            raise LoadError(f"its processor cannot be had: {what}") from error

    def check_several(self, image: Image.Image) -> None:
        """Raises `LoadError` if an image beside another takes other tokens than alone: where it
        stands is not known when it is read.
        """

        def tokens(count: int) -> int:
            given = {"images": [[image] * count], "text": [self.place * count]}
            found = self._processor(**given, return_tensors="pt", add_special_tokens=False)
            return int(found["input_ids"].shape[1])

        try:
            one, two = tokens(1), tokens(2)
        except (ValueError, TypeError, IndexError):  # it takes one, or lists of another form
            return
        if two != 2 * one:
            raise LoadError(f"an image takes {one} tokens, and two of them together {two}")

    def __call__(self, image: Image.Image, device: torch.device, dtype: torch.dtype) -> Inputs:
        """The arguments of the module for an image alone."""
        found = self._processor(
            images=[image], text=[self.place], return_tensors="pt", add_special_tokens=False
        )
        return {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in found.items()
            if isinstance(value, torch.Tensor)
        }


def _processor(model_type: str, folder: Path) -> Any:
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    if not any((folder / f"{name}_config.json").exists() for name in ("preprocessor", "processor")):
        raise LoadError("the checkpoint has no preprocessor_config.json")
    name = PROCESSOR_MAPPING_NAMES.get(model_type)
    if name is None:
        raise LoadError(f"transformers has none for {model_type!r}")
    kind = getattr(transformers, name)
    module: Any = inspect.getmodule(kind)
    if getattr(module, "num2words", True) is None:  # SmolVLM's, for videos
        module.num2words = str
    # Processors of videos and of sounds have libraries of their own, and are left out.
    bare: Any = type(name, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    local = {"local_files_only": True}
    parts: dict[str, Callable[[], Any]] = {
        "image_processor": lambda: transformers.AutoImageProcessor.from_pretrained(
            folder, backend="pil", **local
        ),
        "tokenizer": lambda: transformers.AutoTokenizer.from_pretrained(folder, **local),
    }
    given = [parts[part]() if part in parts else None for part in kind.get_attributes()]
    options, _ = kind.get_processor_dict(folder, **local)
    return bare.from_args_and_dict(given, options)


class Trial(NamedTuple):
    """A text with an image within, and what the module makes of it by itself."""

    processor: Processor
    image: Image.Image
    wanted: torch.Tensor  # [n, vocab_size] logits

    @staticmethod
    def of(module: Any, tokens: torch.Tensor, folder: Path) -> Trial:
        """Raises `LoadError` if it can't be made, which has many reasons."""
        processor = Processor(module.config.model_type, folder)
        image = Image.linear_gradient("L").resize((84, 56)).convert("RGB")
        processor.check_several(image)
        given = processor(image, tokens.device, module.dtype)
        first, last = tokens.tensor_split((BEFORE,))
        for name in PER_TOKEN.keys() & given.keys():
            own, fill = given[name][0], torch.full_like(tokens, PER_TOKEN[name])
            around = (first, last) if name == "input_ids" else fill.tensor_split((BEFORE,))
            given[name] = torch.cat([around[0].to(own), own, around[1].to(own)])[None]
        return Trial(processor, image, module(**given, use_cache=False).logits[0])


class GeneralImages:
    """The images of a module: `place` is what a chat template writes where one belongs; `in_rows`
    they have rows and columns, so that their embeds stand at one position; `whole` if inputs of one
    see each other, those behind them too.
    """

    def __init__(
        self,
        whole: Callable[[], AbstractContextManager[Any]],
        decoder: nn.Module,
        trial: Trial,
        embeds: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        """Takes what has the module with all its layers, its language model, and what makes inputs
        of tokens, of what the language model is given for them, and of what its layers look up.
        Raises `LoadError` if the image that is tried is read in a way that is not known here.
        """
        self._whole, self._decoder, self._processor = whole, decoder, trial.processor
        self._embeds, self._dtype = embeds, dtype
        self._device = trial.wanted.device
        self.place = trial.processor.place
        # The cost of an image of a size. Raises `BadImage` for one that the model does not read.
        self.measure: Callable[[ImageSize], Measured] = lru_cache(REMEMBERED)(self._measure)
        self.tried, blocks = self._seen(trial.image)
        self.whole = blocks is not None
        self.in_rows = not self.whole and self.tried.places is not None

    def _measure(self, size: ImageSize) -> Measured:
        blank = Image.new("RGB", (size.width, size.height))
        inputs = self._inputs(blank)
        embeds = inputs["input_ids"].shape[1]
        if not self.in_rows:
            return Measured(embeds, embeds)
        with _refusing("the model"), self._whole() as module:
            places = _places(module, inputs)
        return Measured(embeds, int(places.max()) + 1)

    def encode(self, image: Image.Image) -> Seen:
        """The model's input for an image. Raises `BadImage` if it does not read it."""
        with _refusing("the model"):
            seen, blocks = self._seen(image)
        if (blocks is not None) != self.whole:
            raise BadImage("the model sees it otherwise than other images")
        return seen

    def _inputs(self, image: Image.Image) -> Inputs:
        with _refusing("the model's processor"):
            return self._processor(image, self._device, self._dtype)

    def _seen(self, image: Image.Image) -> tuple[Seen, torch.Tensor | None]:
        """The request of the module to its language model for an image; and blocks of inputs that
        see each other.
        """
        inputs = self._inputs(image)
        ids = inputs["input_ids"][0]
        looking = _Looking()
        with attending(looking, torch.arange(len(ids), device=self._device)):
            given = self._given(inputs)
        hidden = given["inputs_embeds"][0]
        positions = given.get("position_ids")
        places = features = None
        if looking.blocks is not None:
            places = looking.blocks
        elif positions is not None and positions.dim() == 3:
            places = positions[-3:, 0].T - positions[-3:, 0].min()
        if deep := given.get("deepstack_visual_embeds"):
            features = hidden.new_zeros(len(hidden), len(deep), hidden.shape[1])
            features[given["visual_pos_masks"][0]] = torch.stack(tuple(deep), 1).to(hidden.dtype)
        layered = given.get("per_layer_inputs")
        own = self._embeds(ids, hidden, None if layered is None else layered[0])
        return Seen(own, places, features), looking.blocks

    def _given(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        def reached(_: nn.Module, args: object, given: dict[str, Any]) -> Never:
            raise _Reached(given)

        hook = self._decoder.register_forward_pre_hook(reached, with_kwargs=True)
        try:
            with self._whole() as module:
                module(**inputs, use_cache=False)
        except _Reached as found:
            given: dict[str, Any] = found.args[0]
            if given.get("inputs_embeds") is None:
                raise LoadError("its language model is given no embeds") from None
            return given
        finally:
            hook.remove()
        raise LoadError("an image does not reach its language model")


@contextmanager
def _refusing(who: str) -> Iterator[None]:
    """Whatever transformers' code raises for an image, others are read. Raises `BadImage`."""
    try:
        yield
    except (BadImage, torch.AcceleratorError):
        raise
    except Exception as error:
        raise BadImage(f"{who} does not take it: {error}") from error


class _Reached(Exception):
    """The language model was reached; the argument is what it was given."""


def _places(module: Any, inputs: Inputs) -> torch.Tensor:
    """Positions of an image's inputs in three directions, `[3, n]`."""
    rule = next(part.get_rope_index for part in module.modules() if hasattr(part, "get_rope_index"))
    taken = inspect.signature(rule).parameters
    found, _ = rule(**{name: value for name, value in inputs.items() if name in taken})
    positions: torch.Tensor = found[-3:, 0]
    return positions - positions.min()


class _Looking(Attend):
    """Notes which inputs of an image see those behind them."""

    def __init__(self) -> None:
        self.blocks: torch.Tensor | None = None  # [n, 3], see `Seen.places`

    def mask(self, rows: int, seen: MaskFunction, device: torch.device) -> torch.Tensor:
        """See `Attend.mask`."""
        own = torch.arange(rows, device=device)
        none = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
        made = seen(none, none, own.view(1, 1, -1, 1), own.view(1, 1, 1, -1))
        made = made.expand(1, 1, rows, rows)
        ahead = made[0, 0].triu(1)
        if ahead.any():
            last = torch.where(ahead.any(1), rows - 1 - ahead.flip(1).int().argmax(1), own)
            self.blocks = _blocks((last + 1).tolist()).to(device)
        return made

    def attend(self, asked: Asked) -> torch.Tensor:
        """Raises `LoadError`: nothing attends so before the language model does."""
        raise LoadError(f"{type(asked.module).__name__} attends to an image")

    def mix(self, hidden: torch.Tensor, mixer: Mixer) -> torch.Tensor:
        """Raises `LoadError`, likewise."""
        raise LoadError("a layer with a state reads an image")


def _blocks(ends: list[int]) -> torch.Tensor:
    """Places in blocks, of where what each input sees ends; the length is 1 of one that sees none
    behind it.
    """
    found: list[tuple[int, int, int]] = []
    while (first := len(found)) < len(ends):
        length = max(1, ends[first] - first)
        found += [(i, length, 0) for i in range(length)]
    return torch.tensor(found[: len(ends)])
