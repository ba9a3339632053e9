"""Retrieval: the best of stored texts answers a question, and stays computed for the next one.

Texts lie in the store, added as they are or from a URL; the search is BM25, in the program, or an
encoder's. It is for instruct models: those with a chat template.
"""

import math
import re
from collections import Counter
from hashlib import sha256

from inferlet import Context, Model, PieError, gather, http, store

PREFIX = "retrieval/"


def words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return re.findall(r"\w+", text.lower())


def best(query: str, texts: list[str], k: float = 1.5, b: float = 0.75) -> str:
    """The text that fits a query best (Okapi BM25)."""
    counts = [Counter(words(text)) for text in texts]
    mean = sum(c.total() for c in counts) / len(counts)

    def score(one: Counter[str]) -> float:
        total = 0.0
        for word in set(words(query)):
            having = sum(word in other for other in counts)
            rarity = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            part = one[word] * (k + 1) / (one[word] + k * (1 - b + b * one.total() / mean))
            total += rarity * part
        return total

    return texts[max(range(len(texts)), key=lambda n: score(counts[n]))]


async def main(
    question: str = "",
    add: list[str] | None = None,
    add_url: str = "",
    max_tokens: int = 24,
    encoder: str = "",
) -> dict[str, object]:
    """Adds texts, or returns an answer, the text that it is from, and the tokens computed.

    Args:
        question: what to answer from the texts.
        add: texts to be kept.
        add_url: where a text to be kept is.
        max_tokens: most tokens of the answer.
        encoder: an embedding model or cross-encoder that is served, to search by.
    """
    new = [*(add or ()), *([await (await http.get(add_url)).text()] if add_url else ())]
    await gather(*(store.set(PREFIX + sha256(t.encode()).hexdigest(), t.encode()) for t in new))
    keys = [key async for key in store.keys(PREFIX)]
    if not question:
        return {"texts": len(keys)}
    found = [value.decode() for key in keys if (value := await store.get(key)) is not None]
    if not found:
        raise SystemExit("no texts are stored: add some with `--add`")
    text, model = best(question, found), Model.load()
    if encoder:
        pairs = [(question, each) for each in found]
        scores = await Model.load(encoder).score(pairs, most=Model.load(encoder).max_position)
        text = found[scores.index(max(scores))]
    name = PREFIX + sha256(text.encode()).hexdigest()
    messages = [{"role": "user", "content": f"{text}\n\n{question}"}]
    prompt = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    shared = prompt.index(text) + len(text)
    context = Context.open(model, name)
    known = len(context) if context else 0
    if context is None:
        context = Context(model, prefix_cache=False).fill(prompt[:shared])
        await context.flush()
        try:
            context.save(name)
        except PieError as error:
            if error.code != "already-exists":  # another launch has saved it
                raise
    context.fill(prompt[shared:])
    computed = len(context) - known
    answer = await context.generate(max_tokens=max_tokens).collect_text()
    return {"answer": answer, "source": text, "computed": computed}
