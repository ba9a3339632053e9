"""pie_py: a programmable LLM serving system. This package is what users touch.

`config`, `wire` and `build` are the floor: the control process and the worker stand on them too.
`client`, `bench` and `cli` are the roof: they start these processes and never import them.
"""

__version__ = "0.1.0"
