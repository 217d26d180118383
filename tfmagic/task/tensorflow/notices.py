"""Lines that a task prints about a repair, and hints on training that differs from one process."""

from tfmagic.system.advice import Step

_printed: set[str] = set()


def print_once(notice: str, **words: object) -> None:
    """Print a notice with these words, once in this process."""
    if notice not in _printed:
        _printed.add(notice)
        print(notice.format(**words), flush=True)


def print_hint(name: str, advice: str) -> None:
    """Print a hint, whose name `explain` knows."""
    _printed.add(name)
    print(f"tfmagic: hint: {advice} ({Step('explain', name)})", flush=True)


def hint_once(name: str, advice: str, **words: object) -> None:
    """Print a hint with these words, once in this process."""
    if not was_printed(name):
        print_hint(name, advice.format(**words))


def was_printed(name: str) -> bool:
    """Check whether this process has printed a hint."""
    return name in _printed


def forget() -> None:
    """Let each notice and hint be printed again: another program begins."""
    _printed.clear()
