"""A conversation grown turn by turn is what the chat template makes of the whole."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import small_tokenizer

from inferlet._conversation import Conversation
from pie_control.models.tokenizer import TextCodec

# How templates of known families treat a conversation's past.
TEMPLATES = {
    "plain": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "trims": "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "system last": "{% for m in messages if m.role != 'system' %}"
    "{% if m.role == 'user' %}[{% if loop.last and messages[0].role == 'system' %}"
    "{{ messages[0].content }}\n\n{% endif %}{{ m.content }}]"
    "{% else %} {{ m.content }}<|end|>{% endif %}{% endfor %}",
    "drops thinking": "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content if loop.last else m.content.split('~')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>~{% endif %}",
    "counts": "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
}


@cache
def model() -> Any:
    """A model as `Conversation` knows it, with the templates by name."""
    folder = Path(tempfile.mkdtemp(prefix="pie-"))
    tokenizer = small_tokenizer()
    tokenizer.chat_template = TEMPLATES
    tokenizer.save_pretrained(folder)
    codec = TextCodec(folder)

    def apply(messages: list[dict[str, Any]], cue: bool, **arguments: Any) -> str:
        return codec.apply_chat_template(json.dumps({**arguments, "messages": messages}), cue)

    made = SimpleNamespace(encode=codec.encode, decode=codec.decode, apply_chat_template=apply)
    return SimpleNamespace(tokenizer=made, stop_tokens=codec.encode("<|end|>"))


TEXT = st.text(st.sampled_from("ab ~<|é\n"), max_size=8)
# What the program does: a message; the assistant's turn, the tokens it is given, if it is sealed.
STEPS = st.lists(
    st.tuples(st.sampled_from(["user", "system", "flush"]), TEXT)
    | st.tuples(st.lists(st.integers(3, 200), max_size=6), st.booleans()),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60)
@given(steps=STEPS)
def test_turn_by_turn_is_the_whole(name: str, steps: list[Any]) -> None:
    chat = Conversation(model(), {"chat_template": name})
    messages: list[dict[str, Any]] = []
    tokens: list[int] = []
    apply = model().tokenizer.apply_chat_template

    def render(cue: bool) -> None:
        nonlocal tokens
        before = chat.recomputed
        keep, new = chat.render(cue=cue, tokens=tokens)
        assert chat.recomputed - before == len(tokens) - keep
        tokens = tokens[:keep] + new
        wanted = apply(messages, cue, chat_template=name)
        assert model().tokenizer.decode(tokens) == wanted
        assert chat.copy().render(cue=cue, tokens=tokens) == (len(tokens), [])

    for first, second in steps:
        if isinstance(first, list):
            if not chat.unanswered:
                continue
            render(True)
            tokens += first + model().stop_tokens * second
            said = first[:-1] if not second and first[-1:] == model().stop_tokens else first
            answer = model().tokenizer.decode(said)
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": "on"},
            ]
            chat.add(messages[-1], tokens)
        elif first == "flush":
            if chat.waiting:
                render(False)
        else:
            messages.append({"role": first, "content": second})
            chat.add(messages[-1], tokens)
    if chat.waiting:
        render(False)


def test_nothing_is_recomputed_where_the_past_stays() -> None:
    chat = Conversation(model(), {"chat_template": "plain"})
    tokens: list[int] = []
    for turn in range(4):
        chat.add({"role": "user", "content": f"question {turn}"}, tokens)
        keep, new = chat.render(cue=True, tokens=tokens)
        tokens = tokens[:keep] + new + model().tokenizer.encode("So it is")
    assert chat.recomputed == 0
