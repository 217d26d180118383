"""Let a function of a loaded C library return 0 at once, and make it itself again.

The beginning of its code is overwritten, so that calls within its own library count, too, which
`symbol_interposing` cannot reach. Other threads may call it meanwhile: the code is changed in one write,
behind the first two instructions, which build the stack frame. That is possible on x86-64 Linux, for
functions that begin so (clang's with frame pointers, as in TensorFlow 2.21); others are left as they are.
"""

import ctypes
import platform

from tfmagic.system.symbol_interposing import write_word

_FRAME = b"\x55\x48\x89\xe5"  # push rbp; mov rbp, rsp
_RETURN_0 = b"\x31\xc0\x5d\xc3"  # xor eax, eax; pop rbp; ret


class ReturnsZero:
    """A function that returns 0 between `begin` and `end`.

    Args:
        library: A loaded library.
        function: The name of its symbol.

    Raises:
        AttributeError: There is no such function.
    """

    def __init__(self, library: ctypes.CDLL, function: str):
        self._address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
        self._before = b""

    def begin(self) -> bool:
        """Overwrite the function; return whether that was possible.

        Raises:
            OSError: The system does not allow it.
        """
        code = ctypes.string_at(self._address, 8)
        is_known = platform.machine() == "x86_64" and platform.system() == "Linux" and code.startswith(_FRAME)
        if not is_known or self._address % 8:  # only an aligned word is written at once
            return False
        self._write(_FRAME + _RETURN_0)
        self._before = code
        return True

    def end(self) -> None:
        """Make the function itself again. Do nothing if it is."""
        if self._before:
            self._write(self._before)
            self._before = b""

    def _write(self, code: bytes) -> None:
        write_word(self._address, int.from_bytes(code, "little"))
