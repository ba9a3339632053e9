"""Answers a question: once, or several times at once, as text or as JSON of a schema.

Several answers are forks of one context: the question is read once, and they grow in one batch.
"""

import json
from typing import Any

from inferlet import Context, Grammar, Model, PieError, Sampler, gather, session

# How tokens of several answers are chosen where the model recommends nothing; one is greedy.
PLAIN = {"temperature": 0.2, "top_p": 0.9}
ROUND = "the answer went round and round, and was stopped: try --temperature 0.7, or a larger model"
PLACES = "<image>", "<|image_pad|>"  # what chat templates write where an image belongs


async def ask(model: Model, system: str, question: str, images: int) -> Context:
    """A context with the question, up to where the answer begins; images come from the client."""
    context = Context(model)
    if images and "input-image" not in model.traits:
        raise SystemExit(f"{model.name} reads no images")
    if not model.has_chat_template:
        return context.fill(f"{system}\n{question}\n".lstrip())
    if not images:
        return (context.system(system) if system else context).user(question)
    content = [*[{"type": "image"}] * images, {"type": "text", "text": question}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    rest = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    for _ in range(images):
        place = next((place for place in PLACES if place in rest), None)
        if place is None:
            raise SystemExit(f"the chat template of {model.name!r} has no place for images")
        before, _, rest = rest.partition(place)
        context.fill(before)
        await context.image(await session.receive_blob())
    return context.fill(rest)


async def main(
    question: str,
    system: str = "",
    model: str = "",
    n: int = 1,
    json_schema: str = "",
    images: int = 0,
    facts: bool = False,
    max_tokens: int = 1024,
    temperature: float | None = None,
    seed: int | None = None,
) -> Any:
    """Streams a single text; returns anything else.

    Args:
        question: what is asked.
        system: what the model is told before it.
        model: its name; the server's first one by default.
        n: how many answers.
        json_schema: each answer is JSON that fits it.
        images: how many the client sends before the answer.
        facts: return the answers as JSON, with how many tokens they have.
        max_tokens: most tokens of an answer.
        temperature: 0 is greedy; what the model recommends by default.
        seed: makes the choices repeatable; the answers' are this one and those that follow it.
    """
    loaded = Model.load(model or None)
    given = {} if temperature is None else {"temperature": temperature}
    plain = PLAIN if n > 1 else {"temperature": 0.0}
    sampler = Sampler(**{**plain, **loaded.generation_defaults, **given})
    grammar = Grammar.json_schema(json_schema, strict=True) if json_schema else None
    try:
        if grammar:
            await grammar.matcher(loaded)
        context = await ask(loaded, system, question, images)
    except (PieError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if loaded.has_chat_template and not images:
        context.cue()
    if len(context) >= loaded.max_position:
        raise SystemExit(
            f"the question has {len(context)} tokens, and {loaded.name} reads"
            f" {loaded.max_position} at most with its answer: ask about a part"
        )

    def generator(branch: Context, number: int) -> Any:
        own = None if seed is None else seed + number
        made = branch.generate(sampler, max_tokens=max_tokens, grammar=grammar, seed=own)
        return made.stop_round()

    if n == 1 and not (grammar or facts):
        answer = generator(context, 0)
        await answer.send_text()
        if answer.went_round:
            print(ROUND)
        return ""
    await context.flush()
    read, cached = context.seq_len, context.sequence.found
    answers = [generator(context.fork(), number) for number in range(n)]
    texts: list[Any] = await gather(*[answer.collect_text() for answer in answers])
    went_round = any(answer.went_round for answer in answers)
    whole = [text for answer, text in zip(answers, texts, strict=True) if answer.is_complete]
    if len(whole) < n:
        told = f"{n - len(whole)} of {n} answers are no whole JSON after {max_tokens} tokens"
        if not whole:
            raise SystemExit(ROUND if went_round else f"{told}: allow more by --max-tokens")
        print(f"{told}, and left out")
    if went_round:
        print(ROUND)
    if not facts:
        return "\n".join(whole) if grammar else "\n\n---\n\n".join(whole)
    return {
        "model": loaded.name,
        "answers": [json.loads(text) for text in whole] if grammar else whole,
        "tokens": [answer.tokens_generated for answer in answers if answer.is_complete],
        "prompt_tokens": read,
        "cached_tokens": cached,
        "went_round": [answer.went_round for answer in answers],
    }
