"""The line of a message that says what went wrong, where a library puts pages around it.

TensorFlow writes the place first, with the frames of Keras; Keras the arguments last; gRPC and Ray stacks of
their own. Nothing is lost: the traceback of a failure has its whole message. Other messages stay as they are.
"""

import re

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NODES = re.compile(r"\s*\[\[\{\{node [^\n]*\}\}\]\][^\n]*")  # [[{{node MatMul}}]] [Op:__inference_f_54]
_FUNCTION = re.compile(r"^\{\{function_node \S+\}\} ")
_OP = re.compile(r" \[Op:\w+\](?: name:[^\n]*)?\s*$")
_ERROR_LINE = re.compile(r"^\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Warning)): .*")
_KERAS = re.compile(
    r"^Exception encountered when calling ([^\n]*?)\.?\n\n(.*?)(?:\n\nArguments received by .*)?$", re.DOTALL
)
_RPC = re.compile(r"status = StatusCode\.(\w+)\s+details = \"([^\n]*)\"")


def headline(kind: str, message: str) -> str:
    """Return the part of an exception's message that says what went wrong.

    Args:
        kind: The name of its class.
    """
    text = _ANSI.sub("", message).strip()
    for find in (_of_graph, _of_autograph, _of_keras, _of_rpc, _of_foreign_stack):
        text = find(text).strip() or text
    text = _OP.sub("", _FUNCTION.sub("", _NODES.sub("", text))).strip()
    is_known = text != _ANSI.sub("", message).strip()
    return text.removeprefix(f"{kind}: ") if is_known and text else message


def first_line(kind: str, message: str) -> str:
    """Return the first line of the headline."""
    return next(iter(headline(kind, message).strip().splitlines()), "")


def _of_graph(text: str) -> str:
    """Leave out where an operation was detected: the paragraphs of frames."""
    if not text.startswith("Graph execution error"):
        return text
    lines = [line for line in text.splitlines()[1:] if line.strip() and not line.startswith("  File ")]
    return "\n".join(line for line in lines if not line.startswith("Detected at node"))


def _of_autograph(text: str) -> str:
    """Take what follows the last frame of "in user code:"."""
    if not text.startswith("in user code:"):
        return text
    lines = text.splitlines()
    frames = [n for n, line in enumerate(lines) if line.lstrip().startswith('File "')]
    after = lines[frames[-1] + 1 :] if frames else lines[1:]
    while after and (not after[0].strip() or after[0].startswith(" " * 8)):  # the source of that frame
        del after[0]
    return "\n".join(line.removeprefix("    ") for line in after)


def _of_keras(text: str) -> str:
    found = _KERAS.match(text)
    return f"{found[2]} (in {found[1]})" if found else text


def _of_rpc(text: str) -> str:
    text = text.partition("\nAdditional GRPC error information")[0]
    found = _RPC.search(text) if "RPC that terminated with" in text else None
    return f"{found[1]}: {found[2]}" if found else text


def _of_foreign_stack(text: str) -> str:
    """Take what stands before a stack of another process or thread, and the exception that ends the stack."""
    text = text.partition("\nThe op is created at")[0]
    before, mark, stack = text.partition("Traceback (most recent call last):")
    if text.startswith("ray::"):
        before, mark, stack = "", "ray", text
    if not mark:
        return text
    ends = [line.strip() for line in stack.splitlines() if _ERROR_LINE.match(line)]
    last = ends[-1] if ends else ""
    return before if last in before else "\n".join(filter(None, [before.strip(), last]))
