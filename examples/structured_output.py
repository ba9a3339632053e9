"""Structured output: the model can only write JSON of a given shape, one of some words, or a date.

Run: pie-py run examples/structured_output.py -- --text "Alice met Bob in Paris on 3 May 2024."
"""

import json

from inferlet import Context, Grammar, Model, Sampler, gather

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "role": {"enum": ["host", "guest", "unknown"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "role", "age"],
    "additionalProperties": False,
}
QUESTIONS = {
    "people": Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}),
    "mood": Grammar.choice(["glad", "sad", "neither"]),
    "date": Grammar.regex(r"20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
}


async def main(text: str = "Alice met Bob in Paris on 3 May 2024.") -> dict[str, object]:
    """Returns the answers. Each of them keeps to its grammar, however small the model."""
    context = Context(Model.load()).fill(f"{text}\n")
    await context.flush()

    async def ask(question: str, grammar: Grammar) -> str:
        with context.fork() as fork:
            fork.fill(f"{question}: ")
            sampler = Sampler(temperature=0.7, top_p=0.9, frequency_penalty=0.2, seed=1)
            return await fork.generate(sampler, max_tokens=200, grammar=grammar).collect_text()

    texts = await gather(*[ask(*item) for item in QUESTIONS.items()])
    answers: dict[str, object] = dict(zip(QUESTIONS, texts, strict=True))
    return answers | {"people": json.loads(texts[0])}
