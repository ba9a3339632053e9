"""ReAct: thoughts, actions and observations, with tools over HTTP.

An action runs beside the model, and its observation is filled in where the context is: no token of
the conversation is computed twice.
"""

from inferlet import Context, Model, http, session, tools

SYSTEM = """Answer with thoughts and actions.
lookup(name, property): one property of a person
search(text): the name of the person of whom the text is true
add(a, b): the sum of two numbers"""


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
        system: tells the model of the tools.
        steps: most actions.
        max_tokens: most tokens of a line.
    """
    context = Context(Model.load()).system(system).user(question).cue()
    calls: list[str] = []
    while len(calls) <= steps:
        stop: list[int | str] = ["\n", *context.model.stop_tokens]
        line = await context.generate(max_tokens=max_tokens, stop=stop).collect_text()
        session.send(line + "\n")
        if line.startswith("Answer:"):
            answer = line.removeprefix("Answer:").strip()
            return {"answer": answer, "calls": calls, "tokens": len(context)}
        for call in tools.parse(line) if line.startswith("Action:") else ():
            given = {**call.arguments, **{str(i): v for i, v in enumerate(call.values)}}
            observation = await (await http.get(f"{url}/{call.name}", params=given)).text()
            calls.append(f"{call.name}{call.values}: {observation}")
            context.fill(f"Observation: {observation}\n")
        if not line:
            break
    raise ValueError(f"no answer after {len(calls)} actions: {calls}")
