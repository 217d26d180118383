"""Check what has changed since a commit: lint, format, types, layout, and the tests of the changed packages.

    git: changed files ──→ tests_of ──→ pytest; beside it what `make check` does

`make near` takes the commit at which this branch has left `main`, and what is not committed; `make near
SINCE=HEAD~3` another commit. It is no replacement for `make test`: what crosses packages is not run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ("tests/test_layout.py", "tests/test_inside.py", "tests/test_public_interface.py")
CHECKED = ("tfmagic", "tests", "benchmarks", "scripts")
RUNNER = ("multi_process_runner", "pytest_plugin.py")  # of tfmagic; their tests are in tests/runner
DOCS = ("tests/test_docs_pages.py", "tests/test_docs_site.py")


def main(words: list[str]) -> int:
    """Run the checks and the tests. Return 0 if all pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("since", nargs="?", default="", help="a commit")
    changed = changed_files(parser.parse_args(words).since or base())
    tests = tests_of(changed, {str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*")})
    print(f"{len(changed)} files have changed; their tests: {' '.join(tests)}", flush=True)
    tool = Path(sys.executable).parent
    commands = (
        [str(tool / "ruff"), "check", *CHECKED],
        [str(tool / "ruff"), "format", "--check", *CHECKED],
        [str(tool / "mypy")],
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *tests],
    )
    return max([subprocess.run(command, cwd=ROOT).returncode for command in commands])


def base() -> str:
    """Return the commit at which this branch has left the main one; on that one, the last commit."""
    return git("merge-base", "HEAD", "main")[0]


def changed_files(since: str) -> list[str]:
    """Return what has changed since a commit, new files included."""
    found = {*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(found)


def tests_of(changed: Iterable[str], present: set[str]) -> list[str]:
    """Return the tests that stand for changed files, as arguments of pytest.

    Args:
        present: The files and folders in tests, as paths from the root.
    """
    found = set(ALWAYS)
    for path in changed:
        parts = Path(path).parts
        if parts[0] == "tests" and parts[-1].startswith("test_") and path in present:
            found.add(path)
        elif parts[0] == "tfmagic" and len(parts) > 2 and f"tests/{parts[1]}" in present:
            found.add(f"tests/{parts[1]}")
        elif parts[0] == "tfmagic" and parts[1] in RUNNER:
            found.add("tests/runner")
        elif parts[0] == "tfmagic":
            found.add("tests/test_errors.py")
        elif parts[0] == "docs" or path.endswith(".md"):
            found |= set(DOCS)
        elif parts[0] == "scripts":
            found |= {"tests/test_near.py", "tests/test_suite.py"}
        if "features" in parts:
            found.add("tests/test_features.py")
    return sorted(found)


def git(*words: str) -> list[str]:
    """Return the lines that git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
