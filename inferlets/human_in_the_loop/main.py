"""A human in the loop: each call waits for a person, who allows, changes or refuses it.

The program sends `{"call": ...}` and receives "yes", "no", or another call in its place; what the
context holds stays where it is meanwhile, or goes as the server's policy says.
"""

from inferlet import Context, Model, session, tools
from inferlet.interception import interception


async def main(
    functions: list[str],
    request: str,
    policy: str = "preserve",
    max_tokens: int = 96,
) -> dict[str, object]:
    """Returns the calls that were made, and the model's last words.

    Args:
        functions: a line for each that the model may call: `name~NN(parameter, ...)`.
        request: what is wanted.
        policy: what becomes of the context's pages while a person thinks.
        max_tokens: most tokens of a turn.
    """
    head = "Calls: one at a time.\n" + "\n".join(functions)
    context = Context(Model.load()).system(head).user(request).cue()
    made: list[str] = []
    while True:
        text = await context.generate(max_tokens=max_tokens).collect_text()
        calls = tools.parse(text)
        if not calls or len(made) == 8:
            return {"made": made, "answer": text}
        session.send({"call": text})
        async with interception(context, policy, tool="person"):
            answer = await session.receive()
        if answer == "no":
            return {"made": made, "answer": "refused"}
        made += [call.name for call in (tools.parse(answer) if answer != "yes" else calls)]
        mark = text.partition("[CALL]")[2].partition("[")[0]
        context.fill(
            f"<|end|>\n<|tool|>\n[INTR]{mark}[HEAD]{len(made)}[END]<|end|>\n<|assistant|>\n"
        )
