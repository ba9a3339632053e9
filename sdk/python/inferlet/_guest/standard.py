"""The part of the standard library that is there: imported while the component is built."""

from __future__ import annotations

import importlib
import sys

MODULES = """
abc annotationlib argparse array ast asyncio base64 binascii bisect builtins calendar cmath codecs
codeop collections collections.abc colorsys concurrent.futures configparser contextlib contextvars
copy copyreg csv dataclasses datetime decimal difflib dis email email.message email.mime.text
email.parser email.policy encodings.aliases encodings.ascii encodings.cp1252 encodings.idna
encodings.latin_1 encodings.punycode encodings.raw_unicode_escape encodings.unicode_escape
encodings.utf_16 encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_8
encodings.utf_8_sig enum errno fnmatch fractions functools gc genericpath getopt getpass gettext
glob graphlib gzip hashlib heapq hmac html html.entities html.parser http http.cookies importlib
importlib.abc importlib.metadata importlib.resources importlib.util inspect io ipaddress itertools
json json.decoder json.encoder keyword linecache locale logging logging.config logging.handlers
marshal math mimetypes numbers opcode operator optparse os os.path pathlib pickle pickletools
pkgutil platform pprint posixpath queue quopri random re reprlib sched secrets select selectors
shlex shutil signal socket stat statistics string string.templatelib stringprep struct subprocess
symtable sys sysconfig tempfile textwrap threading time timeit token tokenize tomllib traceback
types typing unicodedata unittest unittest.mock urllib.error urllib.parse urllib.request uuid
warnings weakref xml.dom.minidom xml.etree.ElementTree xml.sax.saxutils zipfile zlib zoneinfo
_strptime _pydatetime _pydecimal
""".split()  # noqa: SIM905 - a list of 130 lines otherwise


def import_all() -> None:
    """Imports them, so that they are part of the component's memory."""
    # The C implementation of datetime reads WASI's clock, which is not there; the Python one asks
    # the `time` module, which is ours.
    sys.modules["_datetime"] = None  # type: ignore[assignment]
    sys.modules["_zoneinfo"] = None  # type: ignore[assignment]  # needs the C datetime
    for name in MODULES:
        importlib.import_module(name)
