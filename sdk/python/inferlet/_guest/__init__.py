"""Changes that let CPython run inside the server, where there is no operating system.

Imported while the component is built; nothing of it is for programs.
"""
