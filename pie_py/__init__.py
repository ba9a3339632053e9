"""pie_py: a programmable LLM serving system. This package is what users touch.

It holds the command line, the client SDK, the wire protocols, the configuration and the benchmarks.
It starts the control process and the inference worker but never imports them otherwise.
"""

__version__ = "0.1.0"
