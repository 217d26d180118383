"""Refuse other systems than Linux, in one sentence that says what to do.

`import tfmagic`, ``tfmagic --help`` and pytest's plugin work everywhere. Task processes need Linux: pidfds,
parents' death signals, abstract sockets. The packages for data lock and replace files by Linux' rules.
"""

import sys

_ELSEWHERE = {
    "win32": "Windows: use WSL2 (in PowerShell:  wsl --install , then install tfmagic in it)",
    "darwin": "macOS: use a Linux container or virtual machine",
}
_ANYWHERE = "a Jupyter server on a Linux machine, or Google Colab"


def why_not() -> str:
    """Return why tasks cannot run on this system, and what to do, as one sentence; "" on Linux."""
    if sys.platform == "linux":
        return ""
    here = _ELSEWHERE.get(sys.platform, f"{sys.platform}: use a Linux machine")
    return f"tfmagic runs tasks on Linux, and this is {here}, {_ANYWHERE}"


def check() -> None:
    """Raise `ImportError` on another system."""
    if sentence := why_not():
        raise ImportError(sentence)
