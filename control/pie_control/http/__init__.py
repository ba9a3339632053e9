"""HTTP requests of inferlets: what they may reach, and the exchanges themselves.

`policy` says which hosts and addresses are allowed, `network` connects to nothing else, `request`
checks what a program asks for, `exchange` carries one request out and streams its answer, and
`client` owns them all with their limits.
"""

from pie_control.http.client import HttpClient

__all__ = ["HttpClient"]
