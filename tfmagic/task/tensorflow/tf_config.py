"""Keep a task in its cluster when the program sets TF_CONFIG to addresses of another one, as tutorials do.

    give ──→ os.environ ──→ the program can change it ──→ TensorFlow's resolver reads it: reading

Under a tutorial's line every task would be worker 0 of machines that do not exist, and wait for them where no
interrupt arrives. So TensorFlow's one reader gets the task's own value back, and a line says so. A value with
this cluster's addresses only (or with none, as after ``os.environ.pop("TF_CONFIG")``) is the program's wish
and is kept, and so is that of a process which the program has forked.
"""

import json
import os
from collections.abc import Callable
from typing import Any

from tfmagic.task.tensorflow.notices import print_once

_NAME = "TF_CONFIG"
_NOTICE = (
    "tfmagic: this program has set TF_CONFIG to another cluster ({addresses}). That is ignored, and taken "
    "back: tfmagic sets TF_CONFIG on each task. Leave the line out; to train without the other tasks, write "
    'os.environ.pop("TF_CONFIG") instead.'
)
_own = ""


def give(tf_config: str) -> None:
    """Set TF_CONFIG of this process. When it enters a further cluster, what the program has set stays."""
    global _own
    if not _own or os.environ.get(_NAME) == _own:
        os.environ[_NAME] = tf_config
    _own = tf_config


def reading(original: Callable[[], Any]) -> Callable[[], Any]:
    """Read the task's own TF_CONFIG instead of one with addresses of another cluster."""
    task_process = os.getpid()

    def _load_tf_config() -> Any:
        others = _addresses(os.environ.get(_NAME, "")) - _addresses(_own)
        if others and os.getpid() == task_process:
            os.environ[_NAME] = _own
            print_once(_NOTICE, addresses=", ".join(sorted(others)[:2]))
        return original()

    return _load_tf_config


def _addresses(tf_config: str) -> set[str]:
    """Return all addresses of a cluster spec in JSON; none of what TensorFlow will refuse."""
    try:
        jobs = json.loads(tf_config)["cluster"].values()
        return {str(a) for job in jobs for a in (job.values() if isinstance(job, dict) else job)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
