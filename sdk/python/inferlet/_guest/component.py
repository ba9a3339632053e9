"""The component's entry: what the server calls."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable

import wit_world
from componentize_py_types import Err

from inferlet._guest import image, program, rehearsal, sandbox
from inferlet._guest.modules import Program
from inferlet._guest.streams import LogStream

# There though nothing imports them.
STANDARD = """
abc annotationlib argparse array ast asyncio asyncio.graph base64 bdb binascii bisect builtins
calendar cmath cmd code codecs codeop collections collections.abc colorsys concurrent.futures
concurrent.futures.thread configparser contextlib contextvars copy copyreg csv dataclasses
datetime decimal difflib dis email email.generator email.header email.headerregistry
email.iterators email.message email.mime.multipart email.mime.text email.parser email.policy
encodings.aliases encodings.ascii encodings.base64_codec encodings.big5 encodings.charmap
encodings.cp1250 encodings.cp1251 encodings.cp1252 encodings.cp1253 encodings.cp1254
encodings.cp437 encodings.cp850 encodings.cp932 encodings.cp949 encodings.euc_jp
encodings.euc_kr encodings.gb18030 encodings.gb2312 encodings.gbk encodings.hex_codec
encodings.idna encodings.iso8859_1 encodings.iso8859_15 encodings.iso8859_2 encodings.iso8859_5
encodings.iso8859_9 encodings.koi8_r encodings.latin_1 encodings.mac_roman encodings.punycode
encodings.quopri_codec encodings.raw_unicode_escape encodings.rot_13 encodings.shift_jis
encodings.undefined encodings.unicode_escape encodings.utf_16 encodings.utf_16_be
encodings.utf_16_le encodings.utf_32 encodings.utf_32_be encodings.utf_32_le encodings.utf_7
encodings.utf_8 encodings.utf_8_sig encodings.zlib_codec enum errno fileinput fnmatch fractions
functools gc genericpath getopt getpass gettext glob graphlib gzip hashlib heapq hmac html
html.entities html.parser http http.client http.cookiejar http.cookies importlib importlib.abc
importlib.metadata importlib.resources importlib.resources._adapters importlib.resources.abc
importlib.resources.readers importlib.util inspect io ipaddress itertools json json.decoder
json.encoder keyword linecache locale logging logging.config logging.handlers marshal math
mimetypes numbers opcode operator optparse os os.path pathlib pdb pickle pickletools pkgutil
platform posixpath pprint queue quopri random re reprlib sched secrets select selectors shlex
shutil signal socket stat statistics string string.templatelib stringprep struct subprocess
symtable sys sysconfig tempfile textwrap threading time timeit token tokenize tomllib traceback
types typing unicodedata unittest unittest.mock urllib.error urllib.parse urllib.request
urllib.response urllib.robotparser uuid warnings weakref xml.dom.minidom xml.etree.ElementTree
xml.sax xml.sax.expatreader xml.sax.saxutils zipfile zipfile._path zlib zoneinfo _compat_pickle
_markupbase _pydatetime _pydecimal _strptime
""".split()  # noqa: SIM905 - a list of 130 lines otherwise


def _import_standard() -> None:
    """Imports them, so that they are part of the component's memory."""
    # The C implementation of datetime reads WASI's clock, which is not there; the Python one asks
    # the `time` module, which is ours.
    sys.modules["_datetime"] = None  # type: ignore[assignment]
    sys.modules["_zoneinfo"] = None  # type: ignore[assignment]  # needs the C datetime
    for name in STANDARD:
        importlib.import_module(name)


_import_standard()

REHEARSED = 64  # tokens: enough for CPython to settle on how it runs the code
STARTS = 30  # of programs, for the same reason


class Runner(wit_world.WitWorld):  # type: ignore[misc]
    """Runs a program; a component's `WitWorld` derives from it and says where the program is."""

    def program(self, args: list[str]) -> tuple[Program, list[str]]:
        """The program and its arguments, by default those of `run`. Raises ProgramError: if there
        is no code.
        """
        raise NotImplementedError

    def run(self, args: list[str]) -> str:
        """The export of the world; see the contract."""
        try:
            found, args = self.program(args)
            sandbox.start(found.file, args)
            return program.run(found, args)
        except program.ProgramError as error:
            raise Err(program.as_text(str(error))) from None
        finally:
            for stream in _streams:
                stream.finish()


_streams: list[LogStream] = []


def seal(rehearse: Callable[[int], None] = rehearsal.rehearse) -> None:
    """Ends the build: from here on there is no operating system.

    Args:
        rehearse: runs a program that generates so many tokens, as the component runs programs.
    """
    _streams[:] = sandbox.seal()
    rehearse(REHEARSED)
    for _ in range(STARTS):
        rehearse(4)
    gc.collect()
    image.list_objects()
    image.fill_gaps()
    gc.freeze()  # what the build made lives until the end: no collection needs to look at it
