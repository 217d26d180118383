"""The expected differences on a task, each with its reason. An entry that no longer differs fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """The aspects of a program that differ, and the reason why that is correct."""

    aspects: frozenset[str]
    reason: str


def _because(reason: str, *aspects: str) -> Difference:
    return Difference(frozenset(aspects), reason)


_SEMICOLON = _because("--out takes the value, also if a semicolon hides it", "value")
_EXIT = _because("sys.exit ends no task; the error explains that and names the alternative", "error")
_BEFORE_ANYTHING = "a cell with a syntax error starts nothing; IPython runs the statements above it"
_NO_STOP = (
    "a notebook awaits the cell, and a coroutine cannot raise StopIteration: it is the cause of another"
)
_STOP_ITERATION = _because(_NO_STOP, "error")
_STOP_IN_TENSORFLOW = _because(_NO_STOP, "error", "calls")

_GROUP = _because(
    "IPython prints an exception group and keeps no last error; a task keeps it", "printed", "value", "error"
)
_LAST_VALUE = _because(
    "the value exists, only its repr fails: the error is printed, and the cell has not failed",
    *["printed", "value", "error"],
)
_NEVER_SENT = "an object of one process is refused by name before anything runs"
_REFUSED = _because(_NEVER_SENT, "printed", "value", "error")
_CANCELLATION = _because(
    "TensorFlow runs the function with a cancellation manager, so that an interrupt reaches it", "calls"
)
MEANT: dict[str, Difference] = {
    "tensorflow_basics: tf.function: an error while it runs": _CANCELLATION,
    "language_expressions: a semicolon hides the value": _SEMICOLON,
    "language_expressions: a value whose repr raises": _LAST_VALUE,
    "language_expressions: a value whose repr is no string": _LAST_VALUE,
    "language_statements: an exception group": _GROUP,
    "language_statements: except star": _GROUP,
    "library: asyncio: a task group with an error": _GROUP,
    "language_statements: StopIteration of a cell": _STOP_ITERATION,
    "language_statements: return outside of a function": _because(_BEFORE_ANYTHING, "names"),
    "language_statements: an unclosed bracket": _because(
        "IPython calls any unfinished cell incomplete", "error"
    ),
    "language_statements: KeyboardInterrupt raised by the cell": _because(
        "a KeyboardInterrupt is reported as an interrupt: the place, no frames", "error"
    ),
    "language_statements: an exception whose str raises": _because(
        "IPython fails to show it; a task shows the name of its class", "error"
    ),
    "language_statements: an exception whose getattr raises": _because(
        "IPython fails to show it; a task shows it", "printed", "value", "error"
    ),
    "language_statements: an empty cell": _because("a line asks whether %tfcluster was meant", "printed"),
    "library: input is refused where nobody can type": _because(
        "the message names the task, and there is no frame of ipykernel", "error", "calls"
    ),
    "ipython: help with a question mark": _because("a task has no pager: the help is printed", "printed"),
    "notebook: a context variable, a weak reference and a lock": _REFUSED,
    "notebook: an open file": _because(_NEVER_SENT, "printed", "value", "error"),
    "notebook: a name that is deleted by the cell": _because("the notebook keeps its own variable", "names"),
    "notebook_tensorflow: a data set from a generator": _REFUSED,
    "notebook_tensorflow: a lookup table": _REFUSED,
    "notebook_tensorflow: an iterator of a data set": _REFUSED,
    "tensorflow_keras: the summary of a model": _because(
        "rich writes html only if the shell has ipykernel's own class", "printed", "displayed"
    ),
    "language_statements: sys.exit with a number": _EXIT,
    "language_statements: sys.exit with zero": _EXIT,
    "language_statements: sys.exit with a message": _EXIT,
    "language_statements: raise SystemExit": _EXIT,
    "library: argparse and sys.argv in a cell": _EXIT,
    "scripts: a syntax error": _because("reported before a process is started", "output"),
    "scripts: input at the end of a file": _because(
        "the message explains that tasks have no input", "output"
    ),
    "tensorflow_data: an iterator over several cells": _STOP_IN_TENSORFLOW,
    "tensorflow_data: out of a data set by next": _STOP_IN_TENSORFLOW,
}

# Known defects, with a description. Delete an entry with the correction: one that no longer differs fails.
DEFECTS: dict[str, str] = {}

# Types whose objects belong to one process: an example with one in the notebook is refused by name.
REFUSED = frozenset(
    {
        "memoryview",
        "generator",
        "lock",
        "RLock",
        "OwnedIterator",
        "TextIOWrapper",
        "BufferedReader",
        "mmap",
        "memmap",
        "BufferedRandom",
        "NpzFile",
        "flagsobj",
        "flatiter",
        "nditer",
        "broadcast",
        "busdaycalendar",
    }
    | {
        "StaticHashTable",
        "StaticVocabularyTable",
        "MutableHashTable",
        "DenseHashTable",
        "FIFOQueue",
        "GradientTape",
        "module",
    }
)

# Reasons for which an object is refused although others of its class can be sent.
REFUSED_FOR = (
    "a tf.data.Dataset that calls Python",
    "Dataset that uses a lookup table",
    "Tensor of dtype variant",
)

_WARNED = "Python warns once a process: first in the notebook, then on the task"
_PICKLES = "pickle itself changes the type: an IsoCalendarDate becomes a tuple"
_BLAS = "BLAS has one thread on a task: the last digits differ"
# Docstring examples that differ, by the name of the program.
EXAMPLES: dict[str, str] = {
    **dict.fromkeys(
        [
            f"pandas: {name}.isocalendar {form}"
            for name in (
                "pandas.DatetimeTZDtype.type",
                "pandas.api.types.DatetimeTZDtype.type",
                "pandas.Timestamp",
            )
            for form in ("as a whole", "parted")
        ],
        _PICKLES,
    ),
    "tensorflow: tensorflow.control_dependencies as a whole": "two ops of a graph fail, in any order",
    "tensorflow: tensorflow.io.RaggedFeature as a whole": "a protobuf's map is serialized in any order",
    "tensorflow: tensorflow.TensorArray.stack parted": "the object that warns of an unused result stays behind",
    "tensorflow: tensorflow.math.accumulate_n parted": _WARNED,
    **dict.fromkeys(
        [
            f"numpy: numpy.ma.{name} parted"
            for name in (
                *(
                    "anom",
                    "anomalies",
                    "MaskedArray.anom",
                    "masked_array.anom",
                    "average",
                    "ediff1d",
                    "getmask",
                ),
                *("put", "masked_object", "ptp", "MaskedArray.ptp", "masked_array.ptp"),
                *("MaskedArray.shrink_mask", "masked_array.shrink_mask"),
            )
        ],
        "a masked array without a mask is pickled with one, and with another fill value",
    ),
    **dict.fromkeys(
        [
            f"numpy: numpy.{name} parted"
            for name in ("require", "ma.MaskedArray.iscontiguous", "ma.masked_array.iscontiguous")
        ],
        "pickle changes whether an array owns its memory",
    ),
    "numpy: numpy.linalg.norm parted": _WARNED,
    "numpy: numpy.bmat parted": "it searches its caller's variables for the names in its text",
    "numpy: numpy.shares_memory parted": "variables of a gigabyte are refused",
    "keras: keras.layers.RandomBrightness as a whole": "IPython calls any unfinished cell incomplete",
    "pandas: pandas.read_json as a whole": "it reads `_`, the value of the cell before",
    "scipy: scipy.optimize.shgo as a whole": _BLAS,
    "scipy: scipy.linalg.norm parted": _WARNED,
    "sklearn: sklearn.linear_model.PassiveAggressiveClassifier parted": _WARNED,
    "sklearn: sklearn.linear_model.PassiveAggressiveRegressor parted": _WARNED,
}
