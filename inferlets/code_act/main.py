"""CodeAct: the model acts by Python code, which runs in the instance's own sandbox.

What the code prints is the observation; after an error the model tries again, with the variables
that there are. It is for instruct models: those with a chat template.
"""

import contextlib
import io
import traceback

from inferlet import Context, Grammar, Model, session

SYSTEM = """Answer with Python code that prints the result. The answer to "What is 5 + 6?" is:
```python
print(5 + 6)
```"""


def run(code: str, variables: dict[str, object]) -> tuple[str, bool]:
    """The output of code, or its error, and whether it has printed something and had none."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "step", "exec"), variables)
    except Exception as error:
        return "".join(traceback.format_exception_only(error)), False
    return out.getvalue() or "nothing was printed\n", bool(out.getvalue())


async def main(
    task: str = "What is 478 * 356?",
    grammar: str | None = None,
    steps: int = 4,
    max_tokens: int = 200,
) -> dict[str, object]:
    """Returns what the first code without an error has printed, all that code has printed or its
    errors, and how many tokens there were.

    Args:
        task: what is to be done, by a model that can write Python.
        grammar: a regular expression for the model's code; for models that write none by
            themselves.
        steps: most pieces of code.
        max_tokens: most tokens of a step.
    """
    context = Context(Model.load()).system(SYSTEM).user(task).cue()
    shape = Grammar.regex(grammar) if grammar else None
    stop: list[int | str] = ["```", *context.model.stop_tokens]
    variables: dict[str, object] = {}
    observations: list[str] = []
    for _ in range(steps):
        context.fill("```python\n")
        code = await context.generate(
            grammar=shape, max_tokens=max_tokens, stop=stop
        ).collect_text()
        told, worked = run(code, variables)
        observations.append(told)
        session.send(f"{code}\n{told}")
        if worked:
            return {"answer": told.strip(), "observations": observations, "tokens": len(context)}
        context.fill(f"{'```' if grammar else ''}\nObservation: {told}\n")
    raise SystemExit(
        f"none of the model's {steps} pieces of code ran and printed something: {told}"
    )
