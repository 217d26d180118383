"""Check Python, TensorFlow, Keras and the packages of the panels, by their metadata, and the settings."""

import contextlib
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from email.message import Message
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tfmagic.clusters.launch.settings import TFCluster
from tfmagic.features.doctor.findings import Case, Finding, note, parts_finding, trouble
from tfmagic.frontends.notebook import patches
from tfmagic.frontends.notebook.awaited_cells import can_await
from tfmagic.system.advice import Step, in_notebook
from tfmagic.system.installed_packages import find_package

_LEAST_TENSORFLOW = (2, 16)
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-rocm")
_KERASES = ("keras", "keras-nightly")
_LIVE_BUTTONS = (7, 4)  # the first ipykernel that handles a page's messages while a cell is awaited
_PANEL_PACKAGES = (("ipywidgets", (8, 1)), ("anywidget", (0, 9, 13)))
_PARTNERS = ("protobuf", "keras", "numpy", "ml-dtypes")  # break the import when they do not fit
_IMPORTED_WHOLE = ("tensorflow", "keras", "tf_keras", "numpy")
_TRUE = ("1", "true")
_IMPORT_S = 20.0  # for TensorFlow from a cold disk on a busy machine; 5 s on an idle one
_GRACES = ("failure_grace_s", "interrupt_grace_s", "cancel_grace_s", "abort_grace_s")


def python(case: Case) -> Iterator[Finding]:
    """Check the interpreter and the system. (A Python that is too old cannot install tfmagic.)"""
    what = f"Python {platform.python_version()}"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        yield trouble(
            f"{what} on Linux {platform.release()}",
            "the system refuses pidfd_open, by which tasks are watched: it needs Linux 5.3 or newer and, "
            "in a container, a seccomp profile that allows it:  docker run --security-opt seccomp=unconfined",
        )
    else:
        yield Finding(what)


def processor(case: Case, cpuinfo: Path = Path("/proc/cpuinfo")) -> Iterator[Finding]:
    """Check for AVX: without it TensorFlow's wheels for x86 end by SIGILL (tensorflow.org, install/pip)."""
    if platform.machine() != "x86_64":
        return
    try:
        with cpuinfo.open() as file:
            text = file.read(8192)  # the first processor; the file has all of them
    except OSError:
        return
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if flags and "avx" not in flags[1].split():
        yield trouble(
            "the processor has no AVX",
            "TensorFlow's wheels end with SIGILL on it: use another machine or, in a virtual one, let it "
            "show its host's processor (QEMU:  -cpu host)",
        )


def tensorflow(case: Case) -> Iterator[Finding]:
    """Check which TensorFlow is installed, and whether its partner packages fit."""
    found = [p for name in _TENSORFLOWS if (p := find_package(name))]
    if not found:
        if importlib.util.find_spec("tensorflow") is None:
            yield trouble("TensorFlow is missing", "pip install tensorflow")
        else:
            yield Finding("TensorFlow, of a build without a version")
        return
    what = _named(found)
    if release(found[0]["Version"]) < _LEAST_TENSORFLOW:
        yield trouble(what, f"tfmagic needs 2.16 or newer:  pip install -U {found[0]['Name']}")
    elif len(found) > 1:
        yield _several(found, " ".join(p["Name"] for p in found))
    else:
        yield Finding(what)
    yield from _partners(found[0])


def _several(found: list[Message], names: str) -> Finding:
    one = f"pip uninstall -y {names} && pip install {found[0]['Name']}"
    return note(_named(found), f"they overwrite each other's files; keep one:  {one}")


def _named(found: list[Message]) -> str:
    return " and ".join(f"{p['Name']} {p['Version']}" for p in found)


def _partners(tensorflow: Message) -> Iterator[Finding]:
    """Find packages whose version TensorFlow's requirements exclude."""
    for wanted, installed in _unmet(tensorflow):
        fix = f"pip install '{wanted.name}{wanted.specifier}'"
        if canonicalize_name(wanted.name) not in _PARTNERS:
            continue
        if installed is None:
            yield trouble(f"{wanted.name} is missing", f"{tensorflow['Name']} needs it:  {fix}")
        else:
            asks = f"{tensorflow['Name']} {tensorflow['Version']} asks for {wanted.specifier}"
            yield trouble(f"{wanted.name} {installed['Version']}", f"{asks}:  {fix}")


def _unmet(package: Message) -> Iterator[tuple[Requirement, Message | None]]:
    """Yield the requirements of a package that are not met, with what is installed instead."""
    for line in package.get_all("Requires-Dist", []):
        try:
            wanted = Requirement(line)
        except InvalidRequirement:  # an old build has such lines
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            installed = find_package(wanted.name)
            version = "" if installed is None else installed["Version"]
            if not version or not wanted.specifier.contains(version, prereleases=True):
                yield wanted, installed


def tried_versions(case: Case) -> Iterator[Finding]:
    """Note packages of versions with which tfmagic was not tested: its own requirements exclude them."""
    own = find_package("tfmagic")
    for wanted, installed in _unmet(own) if own is not None else ():
        if installed is not None:
            yield note(
                f"{installed['Name']} {installed['Version']}",
                f"tfmagic is tested with {wanted.specifier}. A repair that does not fit is left out:  "
                f"pip install '{wanted.name}{wanted.specifier}'",
            )


def keras(case: Case) -> Iterator[Finding]:
    """Check the Keras that the tasks get, and whether its `fit` works under multi-worker strategies."""
    legacy = case.environ.get("TF_USE_LEGACY_KERAS", "").lower() in _TRUE
    if case.task_settings.keras == 2 or legacy:
        yield _tf_keras(legacy and case.task_settings.keras != 2)
        return
    found = [p for name in _KERASES if (p := find_package(name))]
    if not found:
        yield trouble("Keras is missing", "pip install keras")
        return
    what = _named(found)
    if len(found) > 1:  # TensorFlow's pre-releases ask for keras-nightly
        yield _several(found, " ".join(_KERASES))
    elif case.task_settings.keras_fix:
        yield Finding(
            f"{what}: model.fit under multi-worker strategies, broken upstream (keras#20585), is repaired in "
            "the tasks if this Keras needs it (--no-keras-fix switches that off)"
        )
    else:
        yield note(
            f"{what} with --no-keras-fix",
            "model.fit under multi-worker strategies fails (keras#20585): leave that out, or use  --keras 2",
        )
    yield from _keras_backend(case)


def _tf_keras(by_environment: bool) -> Finding:
    installed, tensorflow = find_package("tf_keras"), find_package("tensorflow")
    pair = ".".join(map(str, release(tensorflow["Version"])[:2])) if tensorflow else ""
    fix = f'pip install "tf_keras=={pair}.*"' if pair else "pip install tf_keras"
    if installed is None:
        why = "TF_USE_LEGACY_KERAS is set" if by_environment else "--keras 2 uses it"
        return trouble("tf_keras is missing", f"{why}:  {fix}")
    what = f"tf_keras {installed['Version']}"
    if pair and not installed["Version"].startswith(f"{pair}."):
        return note(what, f"is made for another TensorFlow than {pair}:  {fix}")
    if by_environment:
        return note(
            what,
            "TF_USE_LEGACY_KERAS is set: tf.keras is Keras 2 in the tasks, also without --keras 2. For "
            f"Keras 3:  {Step('unset', 'TF_USE_LEGACY_KERAS')}",
        )
    return Finding(what)


def _keras_backend(case: Case) -> Iterator[Finding]:
    """Check the backend: only Keras with TensorFlow can be imported as tf.keras (TensorFlow 2.21)."""
    chosen, what = case.environ.get("KERAS_BACKEND"), "KERAS_BACKEND is"
    if not chosen:
        path = Path(case.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "keras.json"
        what = f"{path} chooses the backend"
        with contextlib.suppress(OSError, ValueError, AttributeError):  # Keras ignores such a file, too
            chosen = str(json.loads(path.read_text()).get("backend", ""))
    if chosen and chosen != "tensorflow":
        yield trouble(
            f"{what} {chosen}",
            f"TensorFlow cannot load Keras then:  {Step('assign', KERAS_BACKEND='tensorflow')}",
        )


def hidden_modules(case: Case) -> Iterator[Finding]:
    """Find files of the user's that are imported in place of a package or of a module of Python.

    IPython puts the notebook's folder before the packages, and ``sys.path.insert(0, ...)`` puts a folder
    before Python's own modules. The notebook keeps the modules that it has loaded, but the process that
    imports TensorFlow loads them again, by the same path.
    """
    for name in _IMPORTED_WHOLE:
        spec = PathFinder.find_spec(name)  # searches the path also if the notebook has loaded the package
        if spec is not None and spec.origin and not spec.origin.endswith("__init__.py"):
            yield _hides(Path(spec.origin), f"the package {name}")
    stdlib = os.path.dirname(os.__file__)
    before = sys.path[: sys.path.index(stdlib)] if stdlib in sys.path else []
    for folder in dict.fromkeys(os.path.abspath(entry) for entry in before):
        own = {path.stem for path in Path(folder).glob("*.py")}
        for name in sorted(own & sys.stdlib_module_names & set(sys.modules)):
            yield _hides(Path(folder, f"{name}.py"), f"Python's own module {name}")


def _hides(path: Path, what: str) -> Finding:
    free = path.with_stem(f"my_{path.stem}")
    why = "the process that imports TensorFlow gets this file instead"
    step = Step("type", f"mv '{path}' '{free}'")
    return trouble(f"{path} hides {what}", f"{why}:  {step}")


def front_end(case: Case) -> Iterator[Finding]:
    """Check whether there are panels, and whether their buttons work while a cell runs."""
    if case.shell is not None:
        from tfmagic.frontends.notebook.view_choice import can_update  # IPython takes its time
    if case.shell is None or not can_update(case.shell):
        yield Finding("a terminal or console: output is prefixed text; panels are for notebooks")
        return
    for name, least in _PANEL_PACKAGES:
        installed = find_package(name)
        fix = f'pip install -U "{name}>={".".join(map(str, least))}", then restart the kernel'
        if installed is None:
            yield trouble(f"{name} is missing", f"there are no panels without it, but  --view text:  {fix}")
        elif release(installed["Version"]) < least:
            yield note(f"{name} {installed['Version']}", f"panels might not appear with it:  {fix}")
    yield _buttons(case)


def _buttons(case: Case) -> Finding:
    installed = find_package("ipykernel")
    what = f"ipykernel {installed['Version'] if installed else '?'}"
    if installed is not None and release(installed["Version"]) < _LIVE_BUTTONS:
        return note(
            what,
            "the buttons of a panel work only after the cell; everything else is the same:  "
            'pip install -U "ipykernel>=7.4"',
        )
    if not can_await(case.shell):
        return note(what, "cells are not awaited, so that buttons wait for their end:  %autoawait asyncio")
    return Finding(f"{what}: buttons work while a cell runs")


def ipython_parts(case: Case) -> Iterator[Finding]:
    """Check the private parts of IPython on which the notebook relies."""
    if case.shell is not None:
        yield parts_finding("private parts of IPython", len(patches.TABLE.rows), patches.TABLE.left_out())


def timeouts(case: Case) -> Iterator[Finding]:
    """Check the time-outs."""
    found = list(_bad_timeouts(case))
    yield from found or [Finding(f"time-outs: {case.setting('start_timeout_s'):g} s for a start")]


def _bad_timeouts(case: Case) -> Iterator[Finding]:
    start_s, heartbeat_s = case.setting("start_timeout_s"), case.setting("heartbeat_timeout_s")
    what, fix = f"start_timeout_s is {start_s:g}", Step("configure", start_timeout_s=120)
    if start_s <= 0:
        yield trouble(what, f"no task is ready by then:  {fix}")
    elif start_s < _IMPORT_S:
        yield note(what, f"the import of TensorFlow can take longer:  {fix}")
    what, fix = f"heartbeat_timeout_s is {heartbeat_s:g}", Step("configure", heartbeat_timeout_s=3)
    if heartbeat_s <= 0:
        yield note(what, f"no heartbeat can be in time:  {fix}")
    elif heartbeat_s < 1:
        yield note(what, f"the others give up a task that a busy machine holds up for so long:  {fix}")
    graces = {name: case.setting(name) for name in _GRACES}
    for name, seconds in graces.items():
        if seconds < 0:
            fix = Step("configure", **{name: TFCluster.class_traits()[name].default_value})
            yield note(f"{name} is {seconds:g}", f"a grace cannot be below 0:  {fix}")
    if sum(max(graces[name], 0) for name in _GRACES[1:]) == 0:
        yield note(
            "interrupt_grace_s, cancel_grace_s and abort_grace_s are 0",
            f"Ctrl-C kills the tasks, and they lose their variables:  {Step('configure', abort_grace_s=0.8)}",
        )


def tf_config(case: Case) -> Iterator[Finding]:
    """Note a TF_CONFIG that tfmagic did not set."""
    if "TF_CONFIG" in case.environ:
        whose = in_notebook("the notebook's") or "yours"
        yield note(
            "TF_CONFIG is set here",
            f"each task gets its own instead; {whose} is left as it is. If nothing else needs it:  "
            f"{Step('unset', 'TF_CONFIG')}",
        )


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, (2, 16) for ``2.16rc1``; () for an invalid version."""
    try:
        return Version(version).release
    except InvalidVersion:
        return ()
