"""Find the examples in the docstrings of installed packages, as programs.

    python docstring_examples.py PACKAGE     prints [[name, [statement, ...]], ...] as JSON

It runs in a process of its own because it imports the package: a test's process imports no TensorFlow.
"""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sys
import warnings
from typing import Any

MODULES = {
    "pandas": ("pandas", "pandas.api.types", "pandas.tseries.offsets"),
    "numpy": (
        "numpy",
        "numpy.linalg",
        "numpy.fft",
        "numpy.ma",
        "numpy.char",
        "numpy.polynomial",
        "numpy.random",
    ),
    "scipy": (
        "scipy.stats",
        "scipy.optimize",
        "scipy.linalg",
        "scipy.sparse",
        "scipy.signal",
        "scipy.special",
    ),
    "sklearn": (
        *("sklearn.preprocessing", "sklearn.linear_model", "sklearn.metrics", "sklearn.model_selection"),
        *("sklearn.svm", "sklearn.pipeline", "sklearn.cluster", "sklearn.tree", "sklearn.decomposition"),
    ),
    "tensorflow": (
        *("tensorflow", "tensorflow.math", "tensorflow.data", "tensorflow.strings", "tensorflow.ragged"),
        *("tensorflow.io", "tensorflow.nn", "tensorflow.random", "tensorflow.sparse", "tensorflow.linalg"),
        *("tensorflow.lookup", "tensorflow.train", "tensorflow.image", "tensorflow.debugging"),
    ),
    "keras": (
        *("keras.layers", "keras.losses", "keras.metrics", "keras.ops", "keras.initializers", "keras.utils"),
        *("keras.optimizers", "keras.activations", "keras"),
    ),
}
PREAMBLES = {
    "pandas": "import numpy as np\nimport pandas as pd",
    "numpy": "import numpy as np",
    "scipy": "import numpy as np",
    "sklearn": "import numpy as np",
    "tensorflow": "import numpy as np\nimport tensorflow as tf",
    "keras": "import numpy as np\nimport keras",
}
_NOT_ALONE = re.compile(  # uses the network, settings of the process, files, clocks, or never ends
    r"https?://|fetch_|download|connect_to|compat\.v1|v1\.|set_session|run_functions_eagerly|set_option|seterr|"
    r"set_printoptions|set_global_policy|set_floatx|set_dtype|set_backend|set_config|enable_|disable_|option_context|"
    r"set_soft_device_placement|set_log_device_placement|"
    r"\.show\(|input\(|memmap|time\.|timeit|now\(|today\(|getpid|sys\.exit|distribute|Server\(|threading|"
    r"read_csv\(|read_excel|read_sql|read_html|to_clipboard|read_clipboard|np\.empty|empty_like|n_jobs|profiler"
)


def find_examples(package: str) -> list[tuple[str, list[str]]]:
    """Return the name and the statements of every example, each object once."""
    finder = doctest.DocTestFinder()
    found: dict[str, list[str]] = {}
    for module_name in MODULES[package]:
        try:
            module = importlib.import_module(module_name)
        except ImportError:  # a name of TensorFlow that is only an attribute
            parent, _, attribute = module_name.rpartition(".")
            module = getattr(importlib.import_module(parent), attribute)
        for name in sorted(n for n in dir(module) if not n.startswith("_")):
            thing = getattr(module, name, None)
            if getattr(thing, "__doc__", None) and (callable(thing) or isinstance(thing, type)):
                for test in _find(finder, thing, f"{module_name}.{name}"):
                    sources = [
                        e.source.rstrip("\n") for e in test.examples if not e.options.get(doctest.SKIP)
                    ]
                    text = "\n".join(sources)
                    if sources and not _NOT_ALONE.search(text) and text not in found.values():
                        found.setdefault(test.name, sources)
    return sorted(found.items())


def _find(finder: doctest.DocTestFinder, thing: Any, name: str) -> list[doctest.DocTest]:
    try:
        return finder.find(thing, name, module=False, globs={})
    except Exception:  # an example that does not parse, or an object that cannot be inspected
        return []


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(find_examples(sys.argv[1])))
