"""Medusa-like speculation: a tree of drafts is verified in one forward, by its mask.

A small model drafts a chain; at each place its second choice is a branch of its own. The path that
the model agrees with stays, and its keys and values with it.
"""

from inferlet import Context, Model


async def main(
    prompt: str = "Once upon a time there was a small fox called Rena. She",
    drafter: str | None = None,
    depth: int = 4,
    choices: int = 2,
    max_tokens: int = 64,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and how many forwards of the large model it took.

    Args:
        prompt: what to continue.
        drafter: a small model that is served, with the same tokenizer; by default the large one
            itself, which is right most of the time and saves nothing.
        depth: tokens of the chain.
        choices: of each of its places.
        max_tokens: tokens of the text.
        model_name: the large model.
    """
    served = Model.load(model_name)
    context = Context(served).fill(prompt)
    small = Context(Model.load(drafter or model_name)).fill(prompt)
    token = (await context.distribution(1)).tokens[0]
    out: list[int] = []
    forwards = 1
    while len(out) < max_tokens:
        before = len(context)
        tokens, parents, last = [token], [-1], 0
        small.append([token])
        for _ in range(depth):
            likely = (await small.distribution(choices)).tokens
            parents += [last] * choices
            last = len(tokens)
            tokens += likely
            small.append(likely[:1])
        found = await context.forward(tokens, 1, parents=parents)
        path = [0]
        while (token := found[path[-1]].tokens[0]) in (
            children := _children(tokens, parents, path[-1])
        ):
            path.append(children[token])
        context.keep(before, path)
        out += [tokens[i] for i in path]
        small.truncate(before).append(tokens[i] for i in path)
        forwards += 1
    out = out[:max_tokens]
    return {"text": served.tokenizer.decode(out), "tokens": out, "forwards": forwards}


def _children(tokens: list[int], parents: list[int], node: int) -> dict[int, int]:
    """The nodes that follow one, by their tokens."""
    return {tokens[i]: i for i, parent in enumerate(parents) if parent == node}
