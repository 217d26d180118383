"""What is installed in this environment, without an import of it."""

from email import message_from_string
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution


def find_package(name: str) -> Message | None:
    """Return the metadata of an installed package, or None.

    Only the header is parsed, and once. importlib.metadata parses the long description as well, for each
    question: 2.6 ms instead of 0.6 for TensorFlow, and a start asks for a dozen packages.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    return message_from_string(text.partition("\n\n")[0])
