"""The prefix cache: pages that hold the beginning of a text, found by its tokens."""

from pie_control.prefix.cache import PrefixCache

__all__ = ["PrefixCache"]
