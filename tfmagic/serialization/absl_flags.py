"""absl's flags on their way to a task: its own, with the values that they have here.

`absl.flags.FLAGS` refuses to be pickled, and a function of a script that reads a flag needs it. The task has
those of every module that it imports; those of the script are made anew, with what they came to here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_OTHERS = ("absl.", "tensorflow.")  # whose flags the task has, with values of its own


def is_flags(obj: object) -> bool:
    """Whether it is absl's set of all flags, asked without importing absl."""
    module = sys.modules.get("absl.flags")
    return module is not None and obj is module.FLAGS


def reduce_flags(flags: Any) -> tuple[Any, ...]:
    """How they are pickled: the values of the script's flags, and of those that were given by hand."""
    values = {
        flag.name: flag.value
        for module, found in flags.flags_by_module_dict().items()
        for flag in found
        if flag.present or not module.startswith(_OTHERS)
    }
    return take_flags, (values, flags.is_parsed())


def take_flags(values: Mapping[str, Any], is_parsed: bool) -> Any:
    """The flags of this process, with these values. A value stands as it is: it was parsed and checked."""
    from absl import flags

    for name, value in values.items():
        if name not in flags.FLAGS:
            flags.FLAGS[name] = flags.Flag(flags.ArgumentParser(), None, name, None, "as the caller has it")
        flags.FLAGS[name].value = value
    if is_parsed:
        flags.FLAGS.mark_as_parsed()
    return flags.FLAGS
