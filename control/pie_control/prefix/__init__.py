"""The prefix cache: pages that hold shared prefixes, found by their tokens."""

from pie_control.prefix.cache import PrefixCache

__all__ = ["PrefixCache"]
