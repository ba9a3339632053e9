"""CML: asynchronous function calls as models write them, and what surrounds a generation.

The parts of AsyncLM, section 5: `monitor` (with `parser`), `interrupts` and `traps`; `stream`
chooses tokens within CML.
"""
