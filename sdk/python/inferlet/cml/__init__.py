"""CML: asynchronous function calls as models write them, and the machinery around a generation.

The parts of AsyncLM, section 5: `Monitor` (with `Parser`), `InterruptManager`, `TrapHandler`; `TokenStream`
chooses tokens within CML. `inferlet.tools` runs the calls, `inferlet.calling` puts all together.
"""

from inferlet.cml.calls import Call, CallError, Syntax, parse_call, write_call, write_value
from inferlet.cml.dialect import Dialect, Marker, call_block, interrupt_block
from inferlet.cml.grammars import Signature, Strictness, block_grammar
from inferlet.cml.interrupts import Interrupt, InterruptManager
from inferlet.cml.monitor import Monitor
from inferlet.cml.parser import CallBlock, CmlError, Parser, State, TextPart, TrapBlock
from inferlet.cml.script import Order, Script, ScriptedCall
from inferlet.cml.stream import TokenStream
from inferlet.cml.traps import POLICIES, Action, TrapHandler

__all__ = [
    "POLICIES",
    "Action",
    "Call",
    "CallBlock",
    "CallError",
    "CmlError",
    "Dialect",
    "Interrupt",
    "InterruptManager",
    "Marker",
    "Monitor",
    "Order",
    "Parser",
    "Script",
    "ScriptedCall",
    "Signature",
    "State",
    "Strictness",
    "Syntax",
    "TextPart",
    "TokenStream",
    "TrapBlock",
    "TrapHandler",
    "block_grammar",
    "call_block",
    "interrupt_block",
    "parse_call",
    "write_call",
    "write_value",
]
