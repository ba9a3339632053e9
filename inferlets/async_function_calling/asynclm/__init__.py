"""AsyncLM: function calls that run while the model writes on.

`cml` is the language of calls and interrupts, `tools` runs the calls, `calling` runs a generation.
Packages import nothing themselves: a launch pays for each module that it imports.
"""
