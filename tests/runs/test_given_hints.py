"""The hints of cells on disk: equal ones of several tasks are one, and a line that was cut short costs no other."""

from tfmagic.runs.folder import RunFolder
from tfmagic.runs.given_hints import Hint, append_hint, hints_path, read_hints


def test_equal_hints_of_several_tasks_are_one_and_those_of_other_cells_stay_apart(tmp_path):
    run = RunFolder(tmp_path)
    assert read_hints(run, 1) == []
    append_hint(run, 1, Hint("a-name", "Do it.", ("worker-1",)))
    append_hint(run, 2, Hint("another", "Do that.", ("worker-0",)))
    append_hint(run, 1, Hint("a-name", "Do it.", ("worker-0",)))
    append_hint(run, 1, Hint("a-name", "Do it.", ("worker-0",)))
    assert read_hints(run, 1) == [Hint("a-name", "Do it.", ("worker-0", "worker-1"))]
    assert [hint.name for hint in read_hints(run)] == ["a-name", "another"]


def test_a_line_that_was_cut_short_costs_no_other(tmp_path):
    run = RunFolder(tmp_path)
    append_hint(run, 1, Hint("a-name", "Do it.", ("worker-0",)))
    with hints_path(run).open("a") as file:
        file.write('{"cell": 1, "name": "cut\nnull\n')
    append_hint(run, 1, Hint("another", "Do that."))
    assert [hint.name for hint in read_hints(run, 1)] == ["a-name", "another"]


def test_a_hint_as_a_line_has_few_names(tmp_path):
    many = tuple(f"worker-{index}" for index in range(64))
    assert Hint("a-name", "Do it.", many).note.startswith(
        "hint: Do it. (worker-0, worker-1, worker-2, worker-3 and 60 more; "
    )
    assert Hint("", "Do it.").note == "hint: Do it." and Hint().note == ""
