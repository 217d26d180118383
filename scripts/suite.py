"""Run the tests on one Python after another, and print at the end how each run ended.

`make test` runs the whole suite on the Python of the environment, then the quick part on Debian's own Python
if that is another version: pickling, for example, differs even between 3.11.2 and 3.11.7. `make quick` and
`make test-oldest` run the quick part alone. Further arguments go to pytest.

The order of the tests is drawn from a seed, which is printed: TEST_SEED=7 repeats one. No test gets a second
try. The last lines say where the time went, and what is in quarantine: see `tests/support/quarantine.py`.

After a run of the whole suite, `tests/support/durations.json` has what each file takes of the time of all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import runpy
import signal
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)

# Tests of code that depends on the version of Python or of a dependency: the protocol, pickling, the capture
# of notebook variables, tracebacks, and real cells, kernels, strategies and scripts. It takes about a minute.
QUICK = (
    "tests/integration/test_every_interpreter.py",
    "tests/integration/test_kernel.py",
    "tests/task/test_tf_functions.py",
    "tests/contract",
    "tests/serialization/test_capture.py",
    "tests/serialization/test_definitions.py",
    "tests/test_errors.py",
    "tests/supervisor/test_lifecycle.py",
    "tests/serialization/test_free_names.py",
    "tests/frontends/test_options.py",
    "tests/protocol/test_cluster_spec.py",
    "tests/serialization/test_tracebacks.py",
    "tests/protocol/test_channel.py",
)
# Four at once, on two cores: tests often wait. The tests of a file stay together: they share much.
# A process that dies ends the run: after a replacement, pytest-xdist 3.8 has waited for ever.
AT_ONCE = (
    *("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"),
    "--durations=10",
)
LIMIT_S = 70 * 60  # of one run, which takes half an hour on two slow cores
SUPPORT = ROOT / "tests" / "support"
SLOWEST = 10
SEED = 11  # the order in which the whole suite has run; `make chaos` draws others


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run of pytest.

    Attributes:
        exit_code: The exit code of pytest.
        lines: What is to be said at the end, in lines; the first is a summary.
    """

    exit_code: int
    lines: tuple[str, ...]


def main(words: list[str]) -> int:
    """Run the requested tests. Return the first exit code of a run that failed, or 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run the quick part alone")
    parser.add_argument("--also", metavar="PYTHON", help="run the quick part on this one too, if it differs")
    parser.add_argument("--orders", type=int, default=1, help="run in so many orders")
    options, more = parser.parse_known_args(words)
    seed = int(os.environ.get("TEST_SEED") or (random.randrange(10_000) if options.orders > 1 else SEED))
    results = [
        passes(sys.executable, more, quick=options.quick, seed=seed + number)
        for number in range(options.orders)
    ]
    if options.also:
        results.append(passes_on_another(options.also, more, seed))
    print("\n" + "\n".join(f"=== {line}" for result in results for line in result.lines))
    return next((result.exit_code for result in results if result.exit_code), 0)


def passes(python: str, more: list[str], *, quick: bool, seed: int, called: str = "") -> Result:
    """Run the suite, or its quick part, on an interpreter that has the needed packages."""
    version = ".".join(map(str, version_of(python)))
    title = f"Python {version} ({called or python}), {'quick part' if quick else 'whole suite'}"
    order = f"TEST_SEED={seed} repeats the order"
    print(f"\n=== {title}; {order}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report, times = Path(folder, "report.xml"), Path(folder, "times.json")
        command = [python, "-m", "pytest", *AT_ONCE, f"--junitxml={report}", *(QUICK if quick else ()), *more]
        # hundreds of processes import tfmagic, and would each compile it
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ |= {"TEST_SEED": str(seed), "TEST_TIMES": str(times)}
        is_whole = not quick and not more  # further arguments choose a part, whose modules are soon compiled
        if is_whole:
            compile_tests(python, environ)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        exit_code = run([*command, "-o", f"cache_dir={folder}"], environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = report.read_text("utf-8") if report.exists() else ""
        nothing: dict[str, Any] = {"cpu": {}, "wall": {}, "imports": {}}
        found = json.loads(times.read_text("utf-8")) if times.exists() else nothing
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counts = f"{counts_of(text)}, {cpu_s:.0f} s of CPU; {order}" if text else "no test was run"
    if failed := failed_tests(text):
        counts += f"; failed: {', '.join(failed[:SLOWEST])}{' ...' if len(failed) > SLOWEST else ''}"
    if is_whole and exit_code == 0:
        keep_durations(found["wall"])
    state = "passed" if exit_code == 0 else f"FAILED ({exit_code})"
    return Result(exit_code, (f"{title}: {state}: {counts}", *(times_of(found) if is_whole else ())))


def times_of(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return where the time went, and what is in quarantine, in four lines."""
    kinds: dict[str, float] = defaultdict(float)
    files: dict[str, float] = defaultdict(float)
    for name, seconds in found["cpu"].items():
        file, _, kind = name.partition(" ")
        kinds[kind] += seconds
        files[file] += seconds

    imports = {file: seconds for file, (_, seconds) in found["imports"].items()}
    count = sum(number for number, _ in found["imports"].values())
    importing = f"CPU seconds of {count} imports of TensorFlow: all {sum(imports.values()):.0f}"

    def listed(table: dict[str, float], most: int) -> str:
        longest = sorted(table.items(), key=lambda row: -row[1])[:most]
        return ", ".join(f"{name.removeprefix('tests/')} {seconds:.0f}" for name, seconds in longest)

    quarantine = runpy.run_path(str(SUPPORT / "quarantine.py"))["QUARANTINE"]
    return [
        f"CPU seconds by what tests start: {listed(kinds, len(kinds))}",
        f"CPU seconds of the first {SLOWEST} files: {listed(files, SLOWEST)}",
        f"{importing}, {listed(imports, SLOWEST)}",
        f"in quarantine: {'; '.join(f'{test} ({why})' for test, why in quarantine.items()) or 'no test'}",
    ]


def keep_durations(wall: dict[str, float]) -> None:
    """Write what each file takes of the time of all, in thousandths, if one is far from what is noted."""
    path, total = SUPPORT / "durations.json", sum(wall.values())
    noted: dict[str, int] = json.loads(path.read_text("utf-8"))
    shares = {file: round(1000 * seconds / total) for file, seconds in wall.items()}
    shares = {file: share for file, share in sorted(shares.items()) if share}

    def is_far(file: str) -> bool:
        low, high = sorted((noted.get(file, 0), shares.get(file, 0)))
        return high >= 5 and high > 2 * low

    if any(map(is_far, noted.keys() | shares.keys())):
        path.write_text(json.dumps(shares, indent=0) + "\n", "utf-8")


def run(command: list[str], environ: dict[str, str]) -> int:
    """Run pytest; return its exit code. At the time limit, show where its processes stand, and end them."""
    pytest = psutil.Popen(command, cwd=ROOT, env=environ)
    try:
        return pytest.wait(LIMIT_S)
    except psutil.TimeoutExpired:
        below = pytest.children(recursive=True)
        print(f"\n=== not over after {LIMIT_S} s; its processes, and the stacks of pytest's:", flush=True)
        for process in (pytest, *below):
            with contextlib.suppress(psutil.Error):
                print(process.pid, process.ppid(), process.status(), *process.cmdline()[:6], flush=True)
        for process in (*pytest.children(), pytest):  # pytest's faulthandler prints the stacks
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGABRT)
                process.wait(10)
        for process in (pytest, *below):
            with contextlib.suppress(psutil.Error):
                process.kill()
        return 1


def compile_tests(python: str, environ: dict[str, str]) -> None:
    """Let two processes compile the tests, and one make the table of characters that Hypothesis keeps.

    Else each process of a parallel run would compile all, and each that draws text make the table: 3.5 s.
    """
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py"))
    words = [["-m", "pytest", "--collect-only", "-q", *half] for half in (files[::2], files[1::2])]
    words.append(["-c", "from hypothesis import strategies; strategies.text().validate()"])
    started = [
        subprocess.Popen([python, *each], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL) for each in words
    ]
    for process in started:
        process.wait()


def counts_of(report: str) -> str:
    """Return the numbers of tests that passed, failed and were skipped, from a report in JUnit's format."""
    suite = next(ET.fromstring(report).iter("testsuite"))
    total, *others = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    parts = [f"{n} {name}" for n, name in zip(others, ("failed", "errors", "skipped"), strict=True) if n]
    return ", ".join([f"{total - sum(others)} passed", *parts]) + f" in {float(suite.get('time', 0)):.0f} s"


def failed_tests(report: str) -> list[str]:
    """Return the names of the tests that failed, from a report in JUnit's format."""
    cases = ET.fromstring(report).iter("testcase") if report else ()
    return [case.get("name", "") for case in cases if {"failure", "error"} & {part.tag for part in case}]


def passes_on_another(python: str, more: list[str], seed: int) -> Result:
    """Run the quick part on an interpreter whose version differs from ours. Return why not otherwise."""
    if not Path(python).exists():
        return Result(0, (f"{python} is not there, so that no other Python was tried",))
    version = version_of(python)
    found = f"{python} is Python {'.'.join(map(str, version))}"
    if version == sys.version_info[:3]:
        return Result(0, (f"{found} as well, so that no other Python was tried",))
    if version < OLDEST:
        return Result(0, (f"{found}: tfmagic needs {'.'.join(map(str, OLDEST))}",))
    environment = ROOT / f".venv-{'.'.join(map(str, version))}"
    try:
        prepare(environment, python, version)
    except subprocess.CalledProcessError as error:
        return Result(error.returncode or 1, (f"{found}: FAILED: no environment could be made for it",))
    return passes(str(environment / "bin" / "python"), more, quick=True, seed=seed, called=python)


def version_of(python: str) -> tuple[int, ...]:
    """Return the version of an interpreter as three numbers."""
    code = "import sys; print(*sys.version_info[:3])"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return tuple(map(int, done.stdout.split()))


def prepare(environment: Path, python: str, version: tuple[int, ...]) -> None:
    """Create an environment for another interpreter.

    It shares the packages of this environment if the minor version is the same: nothing is installed twice.
    """
    minor = ".".join(map(str, version[:2]))
    if version[:2] != sys.version_info[:2]:
        install = [ROOT / "scripts" / "install", "dev", environment.name]
        subprocess.run(install, check=True, env={**os.environ, "PYTHON": python})
        return
    print(f"\n{environment.name}: an environment of {python}, with the packages of {sys.prefix}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", environment], check=True)
    packages = environment / "lib" / f"python{minor}" / "site-packages"
    ours = sysconfig.get_path("purelib")
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({ours!r})\n", "utf-8")
    for folder in ("etc", "share"):  # Jupyter's kernels and server extensions
        (environment / folder).symlink_to(Path(sys.prefix, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
