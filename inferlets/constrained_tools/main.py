"""Constrained tool calls: any model's call is one of the tools', with valid arguments.

The model is told of the tools' schemas, and the grammar is made of them; the program runs the call.
It is for instruct models: those with a chat template.
"""

import json

from inferlet import Context, Grammar, Model, Sampler, tools

TOOLS = {
    "add": {
        "description": "The sum of a and b.",
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "set_colour": {
        "description": "Paints it in a colour.",
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


def run(call: tools.ToolCall) -> object:
    """The tools' results."""
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
    listed = "\n".join(f"{name}: {json.dumps(schema)}" for name, schema in TOOLS.items())
    system = f"Answer with JSON only.\n{listed}"
    context = Context(Model.load()).system(system).user(request)
    generator = context.generate(
        Sampler.multinomial(temperature, seed),
        grammar=Grammar.json_schema(tools.schema(TOOLS)),
        max_tokens=max_tokens,
    )
    text = await generator.collect_text()
    if not generator.is_complete:
        raise SystemExit(f"cut short: give more --max-tokens than the call needs, {text!r}")
    (call,) = tools.parse(text)
    return {"call": json.loads(text), "result": run(call)}
