"""A model that the server serves, and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inferlet import raw


class Tokenizer:
    """Text to tokens and back."""

    __slots__ = ("model",)

    def __init__(self, model: str) -> None:
        self.model = model

    def __call__(self) -> Tokenizer:
        """Itself, so that `model.tokenizer()` works as well."""
        return self

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens written in it are recognised, none is added."""
        return raw.tokenize(self.model, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD."""
        return raw.detokenize(self.model, tokens if isinstance(tokens, list) else list(tokens))

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

    def __repr__(self) -> str:
        return f"Model({self.name!r})"


_loaded: dict[str, Model] = {}
