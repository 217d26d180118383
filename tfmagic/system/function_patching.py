"""Let a function of a loaded C library return 0 at once, for the life of the process.

The beginning of its code is overwritten, so that calls within its own library count, too, which
`symbol_interposing` cannot reach. Other threads may call it meanwhile: the code is changed in one write,
behind the first two instructions, which build the stack frame. That is possible on x86-64 Linux, for
functions that begin so (clang's with frame pointers, as in TensorFlow 2.21); others are left as they are.
The code cannot be put back: a thread may stand between the instructions that would change.
"""

import ctypes
import platform

from tfmagic.system.symbol_interposing import write_word

_FRAME = b"\x55\x48\x89\xe5"  # push rbp; mov rbp, rsp
_RETURN_0 = b"\x31\xc0\x5d\xc3"  # xor eax, eax; pop rbp; ret


def return_zero(library: ctypes.CDLL, function: str) -> bool:
    """Overwrite a function; return whether it returns 0 from now on.

    Args:
        library: A loaded library.
        function: The name of its symbol.

    Raises:
        AttributeError: There is no such function.
        OSError: The system does not allow it.
    """
    address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
    is_known = platform.machine() == "x86_64" and platform.system() == "Linux"
    if not is_known or address % 8 or ctypes.string_at(address, 4) != _FRAME:
        return False  # only an aligned word is written at once
    write_word(address, int.from_bytes(_FRAME + _RETURN_0, "little"))
    return True
