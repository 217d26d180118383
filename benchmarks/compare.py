"""`make bench-compare BASE=<commit>`: this checkout against another commit of it, in alternate rounds.

Each round is a process of its own (`compare_script`), whose PYTHONPATH begins with one of the two trees; both
use the packages of this environment. A ratio is the median of the ratios of single rounds, whose spread is
shown beside it. Ends with 1 if a ratio is above LIMIT.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 1.15


def main() -> int:
    """Compare, print a table, and return 1 if something has become slower."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="old against new")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=7, help="of each version; 7 by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tfmagic-bench-") as folder:
        base = Path(folder, "base")
        git = ["git", "-C", os.fspath(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", base, asked.base], check=True)
        try:
            rounds = [(_times(ROOT, folder), _times(base, folder)) for _ in range(asked.rounds)]
        finally:
            subprocess.run([*git, "remove", "--force", base], check=True)
    slower = []
    print(f"{'':12} {'new':>9} {'old':>9}  ratio  spread of the rounds")
    for name in rounds[0][0]:
        new, old = zip(*((new[name], old[name]) for new, old in rounds), strict=True)
        each = [one / other for one, other in zip(new, old, strict=True)]
        ratio = statistics.median(each)
        ours, theirs = (f"{1000 * statistics.median(times):.1f} ms" for times in (new, old))
        print(f"{name:12} {ours:>9} {theirs:>9}  {ratio:.2f}   {min(each):.2f} to {max(each):.2f}")
        slower += [name] if ratio > LIMIT else []
    if slower:
        print(f"slower than {asked.base} by more than {LIMIT - 1:.0%}: {', '.join(slower)}")
    return 1 if slower else 0


def _times(tree: Path, folder: str) -> dict[str, float]:
    """Run one round of a version; return its seconds by name."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.fspath(tree),
        "TFMAGIC_STATE_DIR": f"{folder}/state",
        "IPYTHONDIR": f"{folder}/ipython",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, ROOT / "benchmarks" / "compare_script.py", tree]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ, cwd=folder)
    times: dict[str, float] = json.loads(done.stdout)
    return times


if __name__ == "__main__":
    sys.exit(main())
