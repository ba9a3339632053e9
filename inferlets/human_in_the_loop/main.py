"""A human in the loop: a call waits for a person, who allows, changes or refuses it.

The program sends `{"call": ...}` and receives "yes", "no", or another call in its place; what the
context holds stays where it is meanwhile, or goes as the server's policy says. It is for instruct
models: those with a chat template.
"""

from inferlet import Context, Grammar, Model, runtime, session, tools
from inferlet.interception import interception

VALUE = {"type": ["string", "number", "boolean"]}


def schema(parameters: str) -> dict[str, object]:
    """Of the arguments of a function with these parameters: all of them, and no others."""
    names = [name for name in parameters.split(", ") if name]
    properties = dict.fromkeys(names, VALUE)
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


async def main(
    functions: list[str],
    request: str,
    answer: str | None = None,
    policy: str = "preserve",
    max_tokens: int = 96,
) -> dict[str, object]:
    """Returns the call that was made, if one was, and the model's last words.

    Args:
        functions: those that the model may call: `name(parameter, ...)` each.
        request: what is wanted.
        answer: the person's; without it the client sends it, for which the program waits.
        policy: what becomes of the context's pages while a person thinks.
        max_tokens: most tokens of the call, and of the words.
    """
    parts = [function.rstrip(")").partition("(") for function in functions]
    schemas = {name: schema(parameters) for name, _, parameters in parts}
    system = f"You call functions: {', '.join(functions)}."
    context = Context(Model.load()).system(system).user(request)
    grammar = Grammar.json_schema(tools.schema(schemas))
    call = await context.generate(grammar=grammar, max_tokens=max_tokens).collect_text()
    session.send({"call": call})
    if answer is None:
        runtime.log('waiting for the client: "yes", "no", or another call')
        async with interception(context, policy, tool="person"):
            answer = await session.receive()
    made = [] if answer == "no" else tools.parse(call if answer == "yes" else answer)
    context.user(f"The call was {'made' if made else 'refused'}. What was done?")
    words = await context.generate(max_tokens=max_tokens).collect_text()
    return {"made": [one.name for one in made], "answer": words}
