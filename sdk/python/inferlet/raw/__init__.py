"""The contract as it is: one function each, on plain numbers and lists.

This is the paper's API (Pie, section 4.2). `Context` and `Generator` are built from it; call it
directly for what those do not offer. Handles are `int`. Pages and embeds are passed as spans, a
flat list `[start, count, start, count, ...]`. A function that takes time returns the handle of a
future: `await inferlet.ready(future)`, then consume it with the `take` function that its
documentation names.

Every function raises `PieError` for the codes that its documentation lists. It raises TypeError,
ValueError or OverflowError for arguments that are not of the types given.
"""

from inferlet.raw._functions import *  # noqa: F403
from inferlet.raw._functions import __all__ as __all__
