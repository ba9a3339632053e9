"""CodeAct: the model acts by Python code, which runs in the instance's own sandbox.

What the code prints is the observation; its variables stay for the next step.
"""

import contextlib
import io
import re
import traceback

from inferlet import Context, Grammar, Model, session

BLOCK = r"```python\n(.*?)```"


def run(code: str, variables: dict[str, object]) -> str:
    """What code prints, or its error."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "step", "exec"), variables)
    except Exception as error:
        out.write("".join(traceback.format_exception_only(error)))
    return out.getvalue()


async def main(
    task: str = "What is 478 * 356?",
    grammar: str | None = None,
    steps: int = 4,
    max_tokens: int = 200,
) -> dict[str, object]:
    """Returns the answer, what its code has printed, and how many tokens there were.

    Args:
        task: what is to be done.
        grammar: a regular expression for the model's code; for models that write none by
            themselves.
        steps: most pieces of code.
        max_tokens: most tokens of a step.
    """
    context = Context(Model.load()).user(task).cue()
    variables: dict[str, object] = {}
    observations: list[str] = []
    answer = ""
    for _ in range(steps):
        if grammar:
            context.fill("```python\n")
            shape = Grammar.regex(grammar)
            code = await context.generate(grammar=shape, max_tokens=max_tokens).collect_text()
            context.fill("```")
        else:
            answer = await context.generate(max_tokens=max_tokens).collect_text()
            found = re.search(BLOCK, answer, re.DOTALL)
            if found is None:
                break
            code = found[1]
        observations.append(run(code, variables))
        answer = observations[-1].strip()
        session.send(f"{code}\n{observations[-1]}")
        context.fill(f"\nObservation: {observations[-1]}\n")
    return {"answer": answer, "observations": observations, "tokens": len(context)}
