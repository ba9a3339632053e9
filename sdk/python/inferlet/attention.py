"""Policies of the literature for what layers read of a context while it is generated, given as
`context.generate(attend=attention.quest(pages=64))`.

Each is a short program of the stage `attend`, whose text the server has
(`pie_py/device_programs/rules/attention.py`), to be read, changed, or put together with others in
one of `device.attend`. What is not kept is not read. Prompts are read in full, and tell those that
ask for it what they attend to.
"""

from __future__ import annotations

from inferlet.device import Attend, per_token


def sinks(first: int = 4, window: int = 1020) -> Attend:
    """The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024).

    Keys keep their positions. With `first=0` it is a sliding window.
    """
    return Attend("sinks", {"first": first, "window": window})


def quest(pages: int, full_layers: int = 2, *, together: bool = False) -> Attend:
    """In each layer but the first, for each head the pages that its query can have the largest
    weights in (Tang et al., Quest, 2024). Heads that share keys read what one of them chooses; or
    they choose `together`, what is likely for one of them, and read as many pages as one.
    """
    return Attend("quest", {"pages": pages, "full_layers": full_layers, "together": together})


def tova(budget: int) -> Attend:
    """The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al.,
    TOVA, 2024).
    """
    return Attend("tova", {"budget": budget})


def h2o(heavy: int, recent: int, *, together: bool = False) -> Attend:
    """The newest tokens, and of the others for each head those with the largest sums of weights,
    those that the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads
    that share keys read what one of them keeps; or all heads of a layer choose `together`, whose
    sums take a part of the memory.
    """
    constants = {"heavy": heavy, "recent": recent, "together": together}
    return Attend("h2o", constants, {"sums": per_token(0.0, by_head=not together)})


def snapkv(budget: int, window: int = 32, kernel: int = 7) -> Attend:
    """The prompt's last tokens, `window` of them, for each head the tokens before that these give
    the largest weights, with those around them, `budget` of the prompt together, and all generated
    ones (Li et al., SnapKV, 2024). Heads that share keys read what one of them keeps.
    """
    return Attend("snapkv", {"budget": budget, "window": window, "kernel": kernel})
