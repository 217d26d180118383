"""Lesson 7: checkpoints and the chief."""

import os
import struct
from pathlib import Path

from tfmagic.features.course.exercises import Answers, exercise, expect, expect_new, result_of

_VALUES_OF_OTHER = struct.pack("<100f", *[2.0] * 100)
_stayed: dict[tuple[Path, int], object] = {}  # the first results that were blamed for a file of worker-1


@exercise(
    "7.1",
    "is_chief decides; the name of the task does not say who is the chief.",
    "the name of a task is unlike all others: a path that contains it has one writer.",
)
def _(answers: Answers) -> None:
    path_for = answers.value("path_for")
    expect(callable(path_for), "`path_for` should be a function of a folder, a task's name and `is_chief`.")
    for tasks, chief in (
        (("worker-0", "worker-1", "worker-2"), "worker-0"),
        (("chief-0", "worker-0", "worker-1", "evaluator-0"), "chief-0"),
    ):
        paths = {task: result_of(path_for, "runs/7", task, task == chief) for task in tasks}
        cluster = f"in a cluster of {', '.join(tasks)}, with {chief} as chief,"
        for task, path in paths.items():
            expect(isinstance(path, (str, os.PathLike)), f"{cluster} the path of {task} should be a text.")
        normal = {task: os.path.abspath(path) for task, path in paths.items()}
        expect(
            normal[chief] == os.path.abspath("runs/7/model.keras"),
            f"{cluster} the chief does not save where it should.",
        )
        others = [path for task, path in normal.items() if task != chief]
        expect(normal[chief] not in others, f"{cluster} another task writes to the path of the chief.")
        expect(len(set(others)) == len(others), f"{cluster} two tasks that are not the chief share a path.")


@exercise(
    "7.2",
    'tfmagic.logdir.task_logdir(folder / "exercise") gives each task the folder that is right for it.',
    "with `with`, the temporary folder of worker-1 is deleted at the end of the block.",
)
def _(answers: Answers) -> None:
    written = answers.results("written", "worker-0", "worker-1")
    folder = Path(answers.value("folder", (str, os.PathLike), "the folder of this lesson")) / "exercise"
    for task, path in written.items():
        expect(isinstance(path, (str, os.PathLike)), f"{task} should return a path.")
    chiefs, other = (Path(written[task]) for task in ("worker-0", "worker-1"))
    expect(chiefs != other, "both workers return one path: each needs a path of its own to write to.")
    expect(chiefs == folder / "state", "the chief has not written to `state` in the folder of the exercise.")
    stayed = [path for path in folder.parent.rglob("*.data-*") if _VALUES_OF_OTHER in path.read_bytes()]
    stayed += other.parent.glob(f"{other.name}.*") if other.parent.is_dir() else []
    stayed = [p for p in stayed if _stayed.setdefault((p, p.stat().st_mtime_ns), written) is written]
    expect(not stayed, f"files of worker-1 have stayed, perhaps of an earlier try: {next(iter(stayed), '')}")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    expect("state.index" in names, "the folder of the exercise has no state.index.")
    data = [folder / name for name in names if name.startswith("state.data-")]
    expect(len(data) == 1, "the folder of the exercise should have one file state.data-....")
    expect_new("7.2", answers.value("written"), [*data, folder / "state.index"])
    expect(
        struct.pack("<100f", *[1.0] * 100) in data[0].read_bytes(), "the values are not those of the chief."
    )


@exercise(
    "7.3",
    "saves.restore() puts the newest saved value into v; make saves with the same name for v as before.",
    "restore first, then add 10 twice.",
)
def _(answers: Answers) -> None:
    found = answers.numbers("ended", "worker-0", "worker-1")
    for task, v in found.items():
        expect(v != 20, f"on {task}, `v` began at 0: nothing was restored.")
        expect(v != 40, f"on {task}, `v` is what the checkpoint has: no step came after it.")
        expect(v != 100, f"on {task}, six steps came after the checkpoint: the first four are in it already.")
        expect(v == 60, f"on {task}, `v` is {v:g}: it is not what the checkpoint has, and two steps more.")
