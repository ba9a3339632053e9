"""A model that the server serves, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inferlet import raw
from inferlet._generated import awaited
from inferlet.branches import gather
from inferlet.errors import PieError
from inferlet.raw._convert import check_several

# Inputs of an encoder in one call, whose characters and numbers have bounds.
CALL_INPUTS, CALL_CHARACTERS, CALL_NUMBERS = 256, 200_000, 1 << 19

# What an encoder reads: a text, a pair of texts, or token ids with the marks around a text.
Input = str | Sequence[str] | Sequence[int]


class Tokenizer:
    """Text to tokens and back."""

    __slots__ = ("model",)

    def __init__(self, model: str) -> None:
        self.model = model

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens written in it are recognised, none is added."""
        return raw.tokenize(self.model, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD."""
        return raw.detokenize(self.model, list(tokens) if isinstance(tokens, bytes) else tokens)

    def vocabs(self) -> tuple[list[int], list[bytes]]:
        """All token ids, and the bytes of each. Large: ask once."""
        table = raw.get_vocabs(self.model)
        return list(range(len(table))), table

    def special_tokens(self) -> tuple[list[int], list[bytes]]:
        """Ids of the special tokens, and the bytes of each."""
        pairs = raw.special_tokens(self.model)
        return [token for _, token in pairs], [text.encode() for text, _ in pairs]

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool = False,
        **arguments: Any,
    ) -> str:
        """Text of a conversation, `[{"role": ..., "content": ...}, ...]`, in the model's format.

        Args:
            messages: of the conversation.
            add_generation_prompt: whether to append what starts the assistant's turn.
            arguments: what else the template takes: `tools`, `documents`, `enable_thinking`,
                `reasoning_effort`, ...; `chat_template` names one of several templates.

        Raises:
            PieError: `unsupported` if the model has no chat template, `invalid-argument` if the
                template refuses the messages, `limit-exceeded` if it takes too long.
        """
        request = {**arguments, "messages": list(messages)} if arguments else list(messages)
        return raw.apply_chat_template(self.model, json.dumps(request), add_generation_prompt)


class Model:
    """A model. `Model.load()` is the server's default one."""

    def __init__(self, name: str) -> None:
        """Raises PieError `unknown-model` if no model is called so."""
        info: dict[str, Any] = json.loads(raw.model_info(name))
        self.name = name
        self.info = info  # everything the server says of it, see `model-info` in the contract
        self.tokenizer = Tokenizer(name)
        self.page_size: int = info["page_size"]  # tokens a KV page
        self.vocab_size: int = info["vocab_size"]
        self.max_position: int = info["max_position"]  # tokens of context
        self.max_batch_tokens: int = info["max_batch_tokens"]  # largest forward
        self.bos_token: int | None = info["bos_token"]
        self.stop_tokens: list[int] = info["stop_tokens"]
        self.has_chat_template: bool = info["has_chat_template"]
        self.chat_arguments: list[str] = info.get("chat_arguments", [])
        # What the checkpoint recommends: `temperature`, `top_p`, ..., as `Sampler` has them.
        self.generation_defaults: dict[str, Any] = info.get("generation_defaults", {})
        # How many contexts of this inferlet hold a page, where it is more than one.
        self.shared_pages: dict[int, int] = {}
        # Those of them that are exported or in the prefix cache, and can't change.
        self.frozen_pages: set[int] = set()
        self._encoding: int | None = None  # the queue of what is encoded
        self.encoded_tokens = 0  # that this inferlet has had it read as an encoder

    @classmethod
    def load(cls, name: str | None = None) -> Model:
        """The model of this name, or the server's default model.

        Raises:
            PieError: `unknown-model`, naming the models there are.
        """
        if name is None:
            models = raw.available_models()
            name = models[0] if models else ""
        model = _loaded.get(name)
        if model is None:
            model = _loaded[name] = cls(name)
        return model

    @property
    def traits(self) -> list[str]:
        """Names of the traits that the model offers."""
        return raw.available_traits(self.name)

    @property
    def adapters(self) -> list[str]:
        """Names of the LoRA adapters that contexts of the model may go through."""
        return raw.available_adapters(self.name)

    async def embed(self, texts: Sequence[Input], **options: Any) -> list[list[float]]:
        """An embedding of each text, as the model's sentence-transformers files say.

        Args:
            texts: to be embedded, all in one batch, with those of other inferlets.
            options: of the contract's `encode`: `prompt` (such as "query", of `info["prompts"]`),
                `most` tokens of each text that are read, `raw`.

        Raises:
            PieError: `unsupported` if the model is no encoder, or has a head (`classify`).
        """
        self._check("embed", "embeddings", "its head's numbers: `score`, `classify`")
        return await self.encode(texts, **options)

    async def score(self, pairs: Sequence[Input], **options: Any) -> list[float]:
        """How well the two texts of each pair go together: the one number of a cross-encoder's or
        a reward model's head, which takes single texts too; of an embedding model the cosine.

        Args:
            pairs: of texts.
            options: as of `embed`.

        Raises:
            PieError: `unsupported` if the model is no encoder, or its head has several numbers.
        """
        if self.info["task"] == "classify":
            several = len(self.info["labels"]) > 1
            self._check("embed" if several else "classify", "one score", "several: `classify`")
            return [row[0] for row in await self.encode(pairs, **options)]
        sides = [text for pair in pairs for text in _two(pair)]
        rows = [_unit(row) for row in await self.encode(sides, **options)]
        return [sum(map(float.__mul__, *both)) for both in zip(rows[::2], rows[1::2], strict=True)]

    async def classify(self, texts: Sequence[Input], **options: Any) -> list[dict[str, float]]:
        """The probability of each label, of each text or pair of texts.

        Args:
            texts: to be classified.
            options: as of `embed`; with `raw` the head's own numbers.

        Raises:
            PieError: `unsupported` if the model has no head.
        """
        self._check("classify", "classes", "embeddings: `embed`")
        labels = self.info["labels"]
        return [dict(zip(labels, row, strict=True)) for row in await self.encode(texts, **options)]

    def _check(self, task: str, wanted: str, what: str) -> None:
        """Raises PieError `unsupported` unless the model is an encoder for the task."""
        fits = (self.info["task"] == "classify") == (task == "classify")
        if not fits or "encode" not in self.traits:
            gives = what if "encode" in self.traits else "text: it is no encoder"
            raise PieError(f"unsupported: model {self.name!r} gives no {wanted}, but {gives}")

    async def encode(self, inputs: Sequence[Input], **options: Any) -> list[list[float]]:
        """The vector of each input by an encoder, `info["width"]` numbers: see `embed`, `score` and
        `classify`, which are this for models of one kind each.
        """
        check_several("inputs", inputs)
        if self._encoding is None:
            self._encoding = raw.create_queue(self.name)
        said, width = json.dumps(options), self.info["width"]
        calls: list[str] = []
        group: list[str] = []
        for one in map(json.dumps, inputs):
            full = len(group) == min(CALL_INPUTS, max(1, CALL_NUMBERS // width))
            if group and (full or sum(map(len, group)) + len(one) > CALL_CHARACTERS):
                calls.append(f"[{','.join(group)}]")
                group = []
            group.append(one)
        if group:
            calls.append(f"[{','.join(group)}]")
        rows: list[list[float]] = []
        queue = self._encoding
        for tokens, numbers in await gather(*(awaited.encode(queue, c, said) for c in calls)):
            self.encoded_tokens += tokens
            rows += [numbers[at : at + width] for at in range(0, len(numbers), width)]
        return rows

    def __repr__(self) -> str:
        return f"Model({self.name!r})"


_loaded: dict[str, Model] = {}


def _two(pair: Input) -> Sequence[Any]:
    if isinstance(pair, str) or len(pair) != 2:
        raise PieError("invalid-argument: an embedding model scores pairs of texts")
    return pair


def _unit(row: list[float]) -> list[float]:
    length = sum(x * x for x in row) ** 0.5 or 1.0
    return [x / length for x in row]
