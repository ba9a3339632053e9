"""ReAct: thoughts, actions and observations, with tools over HTTP.

An action runs beside the model, and its observation is filled in where the context is: no token of
the conversation is computed twice. A grammar holds the form, so any model's action can be run. It
is for instruct models: those with a chat template.
"""

import re

from inferlet import Context, Grammar, Model, http, session, tools

SYSTEM = """Answer with thoughts and actions.
lookup(name, property): one property of a person
search(text): the name of the person of whom the text is true
add(a, b): the sum of two numbers"""


def step(system: str, *, first: bool, last: bool) -> Grammar:
    """A thought, and an action with a function that the system message has, or the answer."""
    value = r'("[^"\n]{1,60}"|-?[0-9]{1,9})'
    functions = re.findall(r"^(\w+)\((.*)\):", system, re.M)
    calls = [rf"{name}\({', '.join([value] * len(of.split(',')))}\)" for name, of in functions]
    action = rf"Action: ({'|'.join(calls)})"
    ends = [*([] if last else [action]), *([] if first else [r"Answer: [^\n]{1,200}"])]
    return Grammar.regex(rf"Thought: [^\n]{{1,200}}\n({'|'.join(ends)})\n")


async def main(
    question: str,
    url: str,
    system: str = SYSTEM,
    steps: int = 8,
    max_tokens: int = 96,
) -> dict[str, object]:
    """Sends the thoughts; returns the answer, the calls, and the tokens that were computed.

    Args:
        question: what to answer.
        url: the tools: an action `f(x, y)` is `GET URL/f?0=x&1=y`, whose body is the observation.
        system: tells the model of the tools, a line `f(x, y): ...` for each.
        steps: most actions, one at least; then it has to answer.
        max_tokens: most tokens of a step.
    """
    context = Context(Model.load()).system(system).user(question).cue()
    calls: list[str] = []
    while True:
        shape = step(system, first=not calls, last=len(calls) == steps)
        generator = context.generate(grammar=shape, max_tokens=max_tokens)
        text = await generator.collect_text()
        session.send(text)
        if not generator.is_complete:
            raise SystemExit(f"{text!r} is no whole step: give more --max-tokens")
        _, _, answer = text.rpartition("Answer: ")
        if answer != text:
            return {"answer": answer.strip(), "calls": calls, "tokens": len(context)}
        (call,) = tools.parse(text.splitlines()[-1])
        given = {**call.arguments, **{str(i): v for i, v in enumerate(call.values)}}
        observation = await (await http.get(f"{url}/{call.name}", params=given)).text()
        calls.append(f"{call.name}{call.values}: {observation}")
        context.fill(f"Observation: {observation}\n")
