"""Opens the compiled kernels, or says why there are none.

The library is one per process, as its thread pool is; calls from several Python threads wait for each other.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_double, c_float, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from surefoot.errors import OptionError, TargetError
from surefoot.native.records import RECORDS
from surefoot.options import Environment

ABI = 6
"""The number of the interface, the one in ``source/library.cpp``."""

INSTRUCTIONS = ("avx512_bf16", "avx512", "avx2", "portable")
"""Every instruction set the kernels are written for, the best first. Each is row-exact; their bits differ."""

FUNCTIONS = {
    "surefoot_forward": ((c_void_p,), c_int64),
    "surefoot_product": ((c_void_p,), c_int64),
    "surefoot_replay": ((c_void_p,), None),
    "surefoot_move": ((c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int64), None),
    "surefoot_normalise": ((c_int64, c_void_p, c_int64, c_int64, c_void_p, c_double, c_void_p), None),
    "surefoot_race": ((c_uint64, c_void_p, c_int64, c_double, c_double, c_float, c_void_p), None),
    "surefoot_mass_above": ((c_void_p, c_int64, c_double, c_double, c_float, c_void_p), c_double),
    "surefoot_best": ((c_void_p, c_int64, c_int64, c_int64, c_void_p), None),
    "surefoot_likeliest": ((c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p), c_int64),
    "surefoot_packed_bytes": ((c_int64, c_int64, c_int64), c_int64),
    "surefoot_pack": ((c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64), None),
    "surefoot_pack_in_place": ((c_int64, c_void_p, c_int64, c_int64), c_int64),
    "surefoot_unpack": ((c_int64, c_void_p, c_void_p, c_int64, c_void_p), None),
    "surefoot_allocate": ((c_int64,), c_void_p),
    "surefoot_free": ((c_void_p,), None),
    "surefoot_set_threads": ((c_int64,), None),
    "surefoot_threads": ((), c_int64),
    "surefoot_instructions": ((), c_char_p),
    "surefoot_choose": ((c_char_p,), c_int64),
}
"""Arguments and result of every function but the two that are asked before these are known to be right."""


@dataclass(frozen=True, slots=True)
class Absent:
    """No kernels, and why."""

    reason: str


class Library:
    """The kernels. Pointers are addresses, and whoever calls keeps alive what they point to."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        """Takes a library whose interface was checked."""
        for name, (arguments, result) in FUNCTIONS.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = arguments, result
        self._forward, self._product = functions.surefoot_forward, functions.surefoot_product
        self._replay, self.move_rows = functions.surefoot_replay, functions.surefoot_move
        self._set_threads, self._threads = functions.surefoot_set_threads, functions.surefoot_threads
        self._instructions, self._choose = functions.surefoot_instructions, functions.surefoot_choose
        self._allocate, self._packed_bytes = functions.surefoot_allocate, functions.surefoot_packed_bytes
        self.normalise_rows = functions.surefoot_normalise
        self.pack_rows, self.unpack_rows = functions.surefoot_pack, functions.surefoot_unpack
        self.pack_in_place = functions.surefoot_pack_in_place
        self.free = functions.surefoot_free
        self.best, self._likeliest = functions.surefoot_best, functions.surefoot_likeliest
        self._race, self._mass_above = functions.surefoot_race, functions.surefoot_mass_above
        self._wanted: int | None = None
        self._set = int(self._threads())

    @property
    def instructions(self) -> str:
        """The instruction set in use, one of ``INSTRUCTIONS``."""
        return str(self._instructions().decode())

    def choose(self, instructions: str) -> bool:
        """Uses another instruction set from now on; False where the processor or the compiler lacked it."""
        return int(self._choose(instructions.encode())) == 0

    @property
    def threads(self) -> int:
        """How many threads the next call runs on."""
        self._follow()
        return int(self._threads())

    def use_threads(self, count: int | None) -> None:
        """Runs on ``count`` threads from now on; None follows torch's count, as it does from the start."""
        if count is not None and count < 1:
            raise OptionError(f"{count} threads were asked for; expected at least 1, or None to follow torch")
        self._wanted = count

    def forward(self, call: int) -> int:
        """Runs the forward of the ``Call`` at an address: 0, or 1 where no memory was left."""
        self._follow()
        return int(self._forward(call))

    def replay(self, replay: int) -> None:
        """Runs the ``Replay`` at an address."""
        self._follow()
        self._replay(replay)

    def product(self, product: int) -> int:
        """Runs the ``Product`` at an address: 0, or 1 where no memory was left."""
        self._follow()
        return int(self._product(product))

    def likeliest(self, logits: int, shape: tuple[int, int, int], most: int, tokens: int) -> int:
        """Writes to int64 ``tokens [N, most]`` the likeliest tokens of each row of fp32 logits, ``shape`` being their
        number, their stride and their width: 0, or 1 where no memory was left."""
        return int(self._likeliest(logits, *shape, most, tokens))

    def race(self, key: int, row: tuple[int, int, float, float], floor: float, least: int) -> None:
        """Writes to ``least`` bounds of a row's Gumbel race, of its logits above ``floor``: see ``race.hpp``.

        ``row``: the address of its fp32 logits, their number, the largest, the temperature.
        """
        self._race(key, *row, floor, least)

    def mass_above(self, row: tuple[int, int, float, float], bound: float) -> tuple[float, float]:
        """The sum of ``e^((x - top) / temperature)`` over the logits above a bound, and over all."""
        total = c_double()
        return float(self._mass_above(*row, bound, byref(total))), total.value

    def packed_bytes(self, code: int, outputs: int, inputs: int) -> int:
        """The size of a packed matrix."""
        return int(self._packed_bytes(code, outputs, inputs))

    def allocate(self, code: int, outputs: int, inputs: int) -> int:
        """The address of memory for a packed matrix, which ``free`` takes back. Raises ``TargetError``."""
        size = self.packed_bytes(code, outputs, inputs)
        address = self._allocate(size)
        if not address:
            raise TargetError(f"no memory was left for a weight; expected {size:,} bytes; use a smaller model or dtype")
        return int(address)

    def _follow(self) -> None:
        wanted = torch.get_num_threads() if self._wanted is None else self._wanted
        if wanted != self._set:
            self._set_threads(wanted)
            self._set = wanted


def open_library(path: Path, environment: Environment) -> Library | Absent:
    """Opens the library at ``path`` as the environment asks. Raises ``OptionError`` for instructions it cannot use."""
    if not environment.native:
        return Absent("SUREFOOT_NATIVE=0 switches the kernels off")
    if not path.exists():
        return Absent(f"{path.name} was not built: install g++ or clang++, then install surefoot again")
    try:
        functions = ctypes.CDLL(str(path))
        functions.surefoot_abi.restype = functions.surefoot_layout.restype = c_int64
        found = functions.surefoot_abi()
    except (OSError, AttributeError) as error:
        return Absent(f"{path.name} does not open: {error}; install surefoot again")
    if found != ABI:
        return Absent(f"{path.name} has interface {found}, expected {ABI}; install surefoot again")
    for record in RECORDS:
        size = functions.surefoot_layout(record.__name__.encode())
        if size != ctypes.sizeof(record):
            expected = ctypes.sizeof(record)
            return Absent(f"{path.name} has {record.__name__} of {size} bytes, expected {expected}; install again")
    library = Library(functions)
    if environment.instructions and not library.choose(environment.instructions):
        raise OptionError(
            f"SUREFOOT_INSTRUCTIONS is {environment.instructions!r}; expected one of {', '.join(INSTRUCTIONS)} that "
            f"this processor has; {library.instructions} is its best"
        )
    return library


@cache
def _opened() -> Library | Absent:
    return open_library(Path(__file__).with_name("libsurefoot.so"), Environment.read())


def available() -> Library | None:
    """The kernels, opened once; None where there are none. Raises ``OptionError`` as ``open_library`` does."""
    opened = _opened()
    return opened if isinstance(opened, Library) else None


def why_not() -> str | None:
    """Why there are no kernels; None where there are."""
    opened = _opened()
    return opened.reason if isinstance(opened, Absent) else None


def required() -> Library:
    """The kernels. Raises ``TargetError`` where there are none; ask ``available`` first."""
    opened = _opened()
    if isinstance(opened, Absent):
        raise TargetError(f"there are no kernels: {opened.reason}; expected to compute with torch then")
    return opened
