"""What a process shares between all of its code: tables, hooks, settings and patched functions, by name.

The text of this file runs in the process that is looked at. OF_KERNEL and OF_TASKS list what tfmagic changes for
the other code of a process, with the reason; a name ends with a star if what begins like it is meant.
"""

OF_KERNEL = {
    "logger.dill": "dill makes a logger at its import",
}
OF_TASKS = {
    **OF_KERNEL,
    "copyreg.*": "TensorFlow's import lets tblib register the exception classes that exist by then",
    "environ.TF_CONFIG": "the task's place in the cluster",
    "environ.TFMAGIC_LAUNCHER": "the mark by which left processes are found",
    "faulthandler": "the stacks of a crash go into a file beside the log",
    "builtins.input": "the notebook asks",
    "builtins.get_ipython": "the task's own shell",
    "builtins.execfile": "debugpy is of the kernel",
    "builtins.runfile": "debugpy is of the kernel",
    "builtins.__tfmagic_assigned__": "how a cell notes what it assigns",
    "logger.IPKernelApp": "there is no ipykernel",
    "logger.tornado": "there is no ipykernel",
    "logger.traitlets": "there is no ipykernel",
    "pandas.display.encoding": "the same encoding, spelled otherwise by the log and by ipykernel",
    "signal.SIGINT": "an interrupt ends the cell for which it was meant, and no later one",
    "sys.breakpointhook": "the notebook is the debugger's prompt",
    "sys.displayhook": "a cell's value is shown in the notebook",
    "sys.excepthook": "there is no ipykernel, whose threads' errors look otherwise",
    "sys.unraisablehook": "an interrupt in a finalizer is raised again",
    "sys.meta_path": "the finders of absl and six are in another order",
    'warnings.ignore re.compile(".*Trio*': "the loop of ipykernel's sockets is not there",
    "patched.IPython.core.interactiveshell.InteractiveShell._instance": "the task's own shell",
    "patched.builtins.input": "the notebook asks",
    "patched.getpass.getpass": "the notebook asks",
    "patched.comm.*": "widgets of the task are shown in the notebook",
    "patched.sys.*": "the hooks above",
    "patched.tensorflow.*": "the table of patches: tfmagic/task/tensorflow/patches.py",
    "patched.keras.*": "the table of patches: tfmagic/task/tensorflow/patches.py",
}


def process_state():
    """Return the state of this process as text, by name."""
    import asyncio
    import builtins
    import copyreg
    import decimal
    import faulthandler
    import gc
    import json
    import locale
    import logging
    import multiprocessing
    import os
    import pickle
    import resource
    import signal
    import socket
    import sys
    import tempfile
    import threading
    import types
    import warnings

    def name(value):
        if isinstance(value, types.MethodType):
            return f"{name(type(value.__self__))}.{value.__name__}"
        where, what = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        return f"{where}.{what}" if what else f"{type(value).__module__}.{type(value).__qualname__}"

    def names(table):
        return {name(key) if isinstance(key, type) else str(key): name(value) for key, value in table.items()}

    mask = os.umask(0o77)
    os.umask(mask)
    wakeup = signal.set_wakeup_fd(-1)
    if wakeup != -1:
        signal.set_wakeup_fd(wakeup)
    found = {f"pickle.{k}": v for k, v in names(pickle._Pickler.dispatch).items()}
    found |= {f"unpickle.{k}": name(v) for k, v in pickle._Unpickler.dispatch.items()}
    found |= {f"copyreg.{k}": v for k, v in names(copyreg.dispatch_table).items()}
    found |= {f"builtins.{k}": name(v) for k, v in vars(builtins).items() if k != "_"}
    found |= {f"environ.{k}": v for k, v in os.environ.items()}
    found |= {
        f"signal.{n.name}": name(signal.getsignal(n)) for n in signal.valid_signals() if hasattr(n, "name")
    }
    found |= {
        f"logger.{k}": str((v.level, v.propagate, v.disabled, list(map(name, v.handlers))))
        for k, v in {"root": logging.root, **logging.root.manager.loggerDict}.items()
        if isinstance(v, logging.Logger) and (v is logging.root or v.level or v.handlers or not v.propagate)
    }
    for kind in ("AS", "CORE", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK"):
        found[f"limit.{kind}"] = str(resource.getrlimit(getattr(resource, f"RLIMIT_{kind}")))
    for module in ("sys", "threading", "warnings"):
        for hook in (
            "excepthook",
            "unraisablehook",
            "displayhook",
            "breakpointhook",
            "showwarning",
            "formatwarning",
        ):
            if hasattr(sys.modules[module], hook):
                found[f"{module}.{hook}"] = name(getattr(sys.modules[module], hook))
    found |= {f"warnings.{f[0]} {f[1]} {name(f[2])} {f[3]}": "there" for f in warnings.filters}
    found |= {
        "logging": str(
            (logging.root.manager.disable, logging.raiseExceptions, name(logging.getLoggerClass()))
        ),
        "signals blocked": str(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "signals' file": str(wakeup != -1),
        "umask": oct(mask),
        "nice": str(os.nice(0)),
        "locale": str(locale.setlocale(locale.LC_ALL)),
        "faulthandler": str(faulthandler.is_enabled()),
        "gc": str((gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(map(name, gc.callbacks)))),
        "sys": str(
            (sys.getrecursionlimit(), sys.getswitchinterval(), name(sys.gettrace()), name(sys.getprofile()))
        ),
        "threading": str(
            (name(threading._trace_hook), name(threading._profile_hook), threading.stack_size())
        ),
        "sys.path_hooks": str(list(map(name, sys.path_hooks))),
        "sys.meta_path": str([name(f) for f in sys.meta_path]),
        "sys.dont_write_bytecode": str(sys.dont_write_bytecode),
        "asyncio": name(type(asyncio.get_event_loop_policy())),
        "socket": str(socket.getdefaulttimeout()),
        "multiprocessing": str(multiprocessing.get_start_method(allow_none=True)),
        "decimal": str(decimal.getcontext()),
        "tempfile": str(tempfile.tempdir),
        "folder": str(os.getcwd() in sys.path or "" in sys.path),
        "json": name(json._default_encoder) + name(json._default_decoder),
    }
    if numpy := sys.modules.get("numpy"):
        found["numpy"] = str((numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions()))
    if pandas := sys.modules.get("pandas"):
        options = pandas._config.config._registered_options
        found |= {f"pandas.{key}": str(pandas.get_option(key)) for key in options if "use_inf" not in key}
    if "matplotlib" in sys.modules:
        found |= {f"rcParams.{k}": str(v) for k, v in sys.modules["matplotlib"].rcParams.items()}
    for path, module in list(sys.modules.items()):
        if path.startswith(("tfmagic", "__main__")) or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            inside = vars(value).items() if isinstance(value, type) and value.__module__ == path else ()
            for inner, member in ((key, value), *((f"{key}.{k}", v) for k, v in inside)):
                made = getattr(member, "__module__", "")
                if (
                    isinstance(made, str)
                    and made.startswith("tfmagic")
                    and not isinstance(member, types.ModuleType)
                ):
                    found[f"patched.{path}.{inner}"] = name(member)
    return found


def differences(one, other, meant):
    """Return what differs between two states, without what is meant to."""
    stars = tuple(key[:-1] for key in meant if key.endswith("*"))
    names = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    return {
        key: (one.get(key), other.get(key)) for key in names if key not in meant and not key.startswith(stars)
    }
