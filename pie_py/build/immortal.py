"""Makes the objects in a component's memory immortal, so that instances share their pages.

CPython writes the reference count of an object that it only looks at, unless the object is
immortal (PEP 683), which an object is whose count is large enough. `inferlet._guest.image` lists
the objects that there are.
"""

from __future__ import annotations

from struct import Struct

from pie_py.build.image import Image

_MARK = b"\0\1immortal list:"
_HEAD = Struct("<II")  # numbers that follow; the count of an object that is immortal
_OBJECT = Struct("<II")  # how every object begins: count and type

# Of objects that have died since they were listed, the allocator has made something else: at their
# count stands the address of the next free block, or 0. No address is as low.
_LOWEST_ADDRESS = 1 << 18


def make_immortal(component: bytes) -> bytes:
    """The component with all objects immortal that it lists.

    Raises:
        ValueError: if there is no list.
    """
    image = Image(component)
    data = image.component
    start = data.find(_MARK)
    if start < 0:
        raise ValueError("the component does not list its objects")
    start += len(_MARK)
    count, immortal = _HEAD.unpack_from(data, start)
    start += _HEAD.size
    end = start + 4 * count
    for address, kind in _OBJECT.iter_unpack(bytes(data[start:end])):
        place = image.find(address)
        if place is None:
            continue
        references, found_kind = _OBJECT.unpack_from(data, place)
        if found_kind == kind and 0 < references < _LOWEST_ADDRESS:
            _OBJECT.pack_into(data, place, immortal, kind)
    data[start:end] = bytes(end - start)
    return bytes(data)
