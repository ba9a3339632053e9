"""Constrained tool calls: any model's call is one of the tools', with valid arguments.

The grammar is made of the tools' schemas; the program runs the call and reads the result back.
"""

import json

from inferlet import Context, Grammar, Model, Sampler, tools

TOOLS = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "set_colour": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


def run(call: tools.ToolCall) -> object:
    """What the tools do."""
    if call.name == "add":
        return call.arguments["a"] + call.arguments["b"]
    return f"it is {call.arguments['colour']} now"


async def main(
    request: str = "Make a call: name add, a 17, b 25.",
    temperature: float = 0.0,
    max_tokens: int = 96,
    seed: int = 1,
) -> dict[str, object]:
    """Returns the call and its result.

    Args:
        request: what is wanted.
        temperature: of the choice of tokens.
        max_tokens: most tokens of the call.
        seed: makes it repeatable.
    """
    context = Context(Model.load()).system("Answer with JSON only.").user(request)
    generator = context.generate(
        Sampler.multinomial(temperature, seed),
        grammar=Grammar.json_schema(tools.schema(TOOLS)),
        max_tokens=max_tokens,
    )
    text = await generator.collect_text()
    (call,) = tools.parse(text)
    return {"call": json.loads(text), "result": run(call)}
