"""Constrained decoding: grammars are compiled by llguidance and walked beside the model.

`service` compiles and caches, `matcher` is one walk through a grammar.
"""

from pie_control.grammar.compiling import KINDS
from pie_control.grammar.matcher import Matcher
from pie_control.grammar.service import Grammar, GrammarService

__all__ = ["KINDS", "Grammar", "GrammarService", "Matcher"]
