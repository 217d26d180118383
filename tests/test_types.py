"""The types of the public interface, as mypy infers them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfmagic

CODE = """# mypy: disable-error-code="empty-body"
import asyncio, functools
import tfmagic

def plain(n: int) -> int: ...
async def awaited(n: int) -> str: ...
def nothing() -> None: ...

async def main(cluster: tfmagic.Cluster) -> None:
    reveal_type(cluster.run(plain, 1, on="worker", timeout=3))  # TaskResults[int]
    reveal_type(cluster.run(awaited, 1, view="quiet"))  # TaskResults[str]
    reveal_type(cluster.run(nothing))  # TaskResults[None]
    reveal_type(cluster.run(lambda: 3))  # TaskResults[int]
    reveal_type(cluster.run(functools.partial(plain, n=1)))  # TaskResults[int]
    reveal_type(cluster.run(plain, 1)["worker-0"])  # int
    reveal_type(cluster.run(plain, 1).of("worker"))  # list[int]
    reveal_type(cluster.run(plain, 1).profile)  # Profile | None
    reveal_type(tfmagic.track)  # def (step: float | None =, **values: Any)
    reveal_type(cluster.submit(plain, 1))  # CallFuture[TaskResults[int]]
    reveal_type(cluster.submit(awaited, 1).result())  # TaskResults[str]
    reveal_type(await cluster.arun(plain, 1))  # TaskResults[int]
    reveal_type(await cluster.arun(awaited, 1))  # TaskResults[str]
    reveal_type(cluster.map(plain, [1, 2]))  # list[int]
    reveal_type(cluster.map(awaited, [1, 2], on="worker"))  # list[str]

@tfmagic.cluster
def train(lr: float, *, steps: int = 3) -> int: ...
reveal_type(train)  # def (lr: float, *, steps: int =) -> TaskResults[int]

@tfmagic.cluster(workers=2, timeout=60)
def train_on_two(lr: float) -> int: ...
reveal_type(train_on_two)  # def (lr: float) -> TaskResults[int]

@tfmagic.cluster(workers=2)
async def train_awaited(lr: float) -> int: ...
reveal_type(train_awaited)  # def (lr: float) -> Coroutine[Any, Any, TaskResults[int]]

with tfmagic.Cluster(workers=2) as started:
    reveal_type(started)  # Cluster
    reveal_type(tfmagic.current_task().index)  # int
"""
MISTAKES = """# mypy: disable-error-code="empty-body"
import tfmagic
cluster = tfmagic.Cluster(workers="2")  # wrong
cluster.run(3)  # wrong
cluster.run(print, on=3)  # wrong
cluster.map(print, 3)  # wrong
@tfmagic.cluster
def train(lr: float) -> int: ...
train("fast")  # wrong
cluster.run(print).mode  # wrong
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return mypy's message for each line: {file name: {line: text}}."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "code.py").write_text(CODE)
    (folder / "mistakes.py").write_text(MISTAKES)
    # with the settings of `make check`, by which it does not read what numpy, IPython and others have
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache")]
    command += [str(folder / "code.py"), str(folder / "mistakes.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(tfmagic.__file__).parents[1])
    assert not done.stderr
    found = {"code.py": {}, "mistakes.py": {}}
    for line in done.stdout.splitlines():
        place = re.match(rf"{re.escape(str(folder))}/(.*\.py):(\d+): (.*)", line)
        if place and re.search(": error:|Revealed type", line):
            found[place[1]].setdefault(int(place[2]), place[3])
    return found


@pytest.mark.timeout(300)
def test_type_checkers_know_what_calls_return(told):
    wanted = {n: line.partition("  # ")[2] for n, line in enumerate(CODE.splitlines(), 1) if "reveal" in line}
    shown = {n: re.search(r'"(.*)"', text)[1] for n, text in told["code.py"].items()}
    module = r"\b(tfmagic|concurrent|builtins|typing|collections)\.([a-z_]+\.)*"
    assert {n: re.sub(module, "", text) for n, text in shown.items()} == wanted


@pytest.mark.timeout(300)
def test_type_checkers_find_mistakes(told):
    wanted = {n for n, line in enumerate(MISTAKES.splitlines(), 1) if "  # wrong" in line}
    assert set(told["mistakes.py"]) == wanted
