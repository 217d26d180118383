"""Call a function in a task process that is set up as TensorFlow's own `MultiProcessRunner` does it."""

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setup:
    """The state of TensorFlow in the process that requests the call."""

    is_v2: bool = True  # version 2 behaviour
    is_eager: bool = True
    argv: tuple[str, ...] = ()
    tf_config: str = ""  # of a single process that was given another cluster spec


def call_plain(setup: Setup, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call ``fn(*args, **kwargs)`` as TensorFlow's runner does, in a task process that ends with it."""
    prepare_plain(setup)
    from tensorflow.python.eager import context

    with context.eager_mode() if setup.is_eager else context.graph_mode():
        return fn(*args, **kwargs)


def prepare_plain(setup: Setup) -> None:
    """Write stacks of crashes and SIGTERM and absl's log to the output, parse flags, set the behaviour."""
    if setup.tf_config:
        os.environ["TF_CONFIG"] = setup.tf_config
    sys.argv = list(setup.argv) or sys.argv
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)
    from absl import flags, logging

    if not flags.FLAGS.is_parsed():
        with contextlib.suppress(flags.Error):  # the arguments can be those of pytest or of a kernel
            flags.FLAGS(sys.argv, known_only=True)
        flags.FLAGS.mark_as_parsed()
    logging.use_absl_handler()
    logging.set_verbosity(logging.INFO)
    logging.set_stderrthreshold(logging.DEBUG)
    from tensorflow.python.compat import v2_compat

    (v2_compat.enable_v2_behavior if setup.is_v2 else v2_compat.disable_v2_behavior)()
