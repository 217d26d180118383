"""Each lesson, run as a learner does: its claims hold, wrong answers are found, and solutions are right."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import lessons as lessons_of_tests
import nbformat
import pytest
import wrong_answers
from course_run import CourseRun, take, take_without
from no_namespaces import without_namespaces

from tfmagic import course
from tfmagic.features.course.classroom import solutions
from tfmagic.features.course.classroom import wrong_answers as plain_wrong_answers
from tfmagic.features.course.exercises import find

_spec = importlib.util.spec_from_file_location(
    "course_script", Path(__file__).parents[3] / "scripts" / "course.py"
)
record = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(record)
NAMES = [path.name for path in course.lesson_files()]


def wrong_of(name):
    return getattr(wrong_answers, f"LESSON_{name[:2]}")


def assert_checks(run, wrong):
    """Assert that each check takes the solution, and neither the empty cell nor a wrong answer."""
    for number, said in run.said.items():
        *faults, last = said
        assert last == f"✔ {number}: right.", last
        assert len(faults) == (1 + len(wrong[number]) if number in wrong else 2)
        for fault in faults:
            assert fault.startswith(f"✘ {number}: not yet: "), fault
        assert len(set(faults[1:])) > 1 or len(faults) < 3, f"{number}: one sentence for all wrong answers"
    assert set(wrong) <= set(run.said)


def values(shown):
    """Return the values in the table of a cell's results, as their texts, by task."""
    return dict(re.findall(r"^(\S+-\d+) +\S+ +(.*)$", shown, re.M))


def test_the_links_between_notebooks_lead_somewhere():
    folder = course.lesson_files()[0].parents[1]
    for path in folder.rglob("*.ipynb"):
        text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("http") or (path.parent / link).exists(), f"{path.name}: {link}"
            alone = path.parent.name == "course" and not link.startswith("http")
            assert not alone or "/" not in link, f"{path.name} is copied without {link}"


def test_the_recorded_outputs_name_no_folder_of_the_machine_that_ran_them():
    folder = course.lesson_files()[0].parents[1]
    for path in folder.rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            found = re.findall(r"(?<![\w.~])/[^ \"]*site-packages/", str(cell.get("outputs")))
            assert not found, f"{path.name}: {found[0]}"


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_has_all_its_parts(name):
    notebook = nbformat.read(next(p for p in course.lesson_files() if p.name == name), as_version=4)
    sources = [cell.source for cell in notebook.cells]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.match(rf"# {int(name[:2])}\. ", sources[0]) and "**Question:**" in sources[0]
    assert "%pip install" in sources[1] and "%load_ext tfmagic" in sources[1]
    assert text.count("**Predict:**") >= 2 and "## Break it" in text and "## What you know now" in text
    assert "**Predict:**" not in text.partition("## Exercises")[2], "the exercises come last"
    for before, after in pairwise(notebook.cells):
        if "**Predict:**" in before.source:
            last = before.source.rstrip().split("\n\n")[-1]
            assert last.startswith("**Predict:**") and after.cell_type == "code", "predict, then run"
    numbers = list(solutions(notebook))
    assert 2 <= len(numbers) <= 3 and all(number.startswith(f"{int(name[:2])}.") for number in numbers)
    for number in numbers:
        assert f'tfmagic.course.check("{number}")' in sources
        assert find(number).hints, "a hint on request"
        assert len(plain_wrong_answers(notebook)[number] or wrong_of(name)[number]) >= 3
    for cell in notebook.cells:
        if cell.cell_type == "code" and not cell.source.lstrip().startswith(("%", "!", "#")):
            ast.parse(cell.source)
    assert any(cell.get("outputs") for cell in notebook.cells), "outputs of a real run"
    assert "**After this lesson you can**" in sources[0] and "tfmagic.course.reset()" in text


def reads(notebook):
    """Return the text of a lesson without its solutions."""
    texts = [c for c in notebook.cells if c.cell_type == "markdown" and not c.metadata.get("tfmagic")]
    return "\n".join(cell.source for cell in texts)


def test_words_that_lessons_explain_are_in_the_glossary():
    glossary = (course.lesson_files()[0].parent / "glossary.md").read_text()
    rows = re.findall(r"^\| (.+) \(([\d, ]+)\) \| \w", glossary, re.M)
    assert len(rows) >= 30 and [word.lower() for word, _ in rows] == sorted(word.lower() for word, _ in rows)
    notebooks = {path.name[:2]: nbformat.read(path, as_version=4) for path in course.lesson_files()}
    for words, numbers in rows:
        for number in numbers.split(", "):
            text = reads(notebooks[f"{int(number):02}"]).lower()
            for word in re.split(r", ", words.replace("`", "").lower()):
                assert word in text.replace("`", ""), f"{word}, lesson {number}"


def test_learners_and_teachers_are_told_the_measured_minutes(tmp_path, monkeypatch):
    """The script that records a lesson writes the numbers; written again from its data they are the same."""
    page, totals = record.TEACHING.read_text("utf-8"), []
    for path in course.lesson_files():
        notebook = nbformat.read(path, as_version=4)
        running_s = notebook.metadata.tfmagic.running_s
        assert 1 < running_s < 120
        row = round(running_s), *record.minutes(notebook)
        assert (
            f"About {row[1]} minutes to read and run, and {row[2]} for the exercises"
            in notebook.cells[0].source
        )
        assert f"(../notebooks/course/{path.name}) | {row[0]} s | {row[1]} min | {row[2]} min |" in page
        totals.append(row)
    assert "| all | {} s | {} min | {} min |".format(*map(sum, zip(*totals, strict=True))) in page
    monkeypatch.setattr(record, "TEACHING", tmp_path / "teaching.md")
    record.TEACHING.write_text(re.sub(r"\| \d+ s \| \d+ min", "| 9 s | 9 min", page), "utf-8")
    record.write_timetable()
    assert record.TEACHING.read_text("utf-8") == page
    assert all(str(rate) in page for rate in (record.WORDS_A_MINUTE, round(60 * record.CODE_LINES_A_MINUTE)))


def test_a_recorded_lesson_has_the_time_of_its_cells(tmp_path, monkeypatch):
    cells = ["import time", "time.sleep(0.3)", "1 + 1"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    first = "About 0 minutes to read and run, and 0 for the exercises."
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(first + " word" * 175 * 12))
    nbformat.write(notebook, tmp_path / "99-short.ipynb")
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "TEACHING", tmp_path / "teaching.md")
    record.TEACHING.write_text("| [99](../notebooks/course/99-short.ipynb) | ?\n| all | ?\n")
    for words, shows in ((["--times"], False), ([], True)):
        assert record.main(words) == 0
        made = nbformat.read(tmp_path / "99-short.ipynb", as_version=4)
        assert made.metadata.tfmagic.running_s >= 0.3
        assert made.cells[0].source.startswith("About 10 minutes to read and run, and 0 for")
        assert bool(made.cells[3].outputs) == shows and not made.cells[3].metadata
    assert re.search(
        r"99-short.ipynb\) \| \d+ s \| 10 min \| 0 min \|\n\| all \| ", record.TEACHING.read_text()
    )


def test_files_of_the_repository_that_lessons_name_are_there():
    root = course.lesson_files()[0].parents[2]
    for path in course.lesson_files():
        text = reads(nbformat.read(path, as_version=4))
        for name in re.findall(r"`((?:docs|how-to)/[\w./-]+)`", text):
            assert (root / name).exists() or (root / "notebooks" / name).exists(), f"{path.name}: {name}"


def test_a_lesson_is_begun_again_in_one_line(lessons):
    cells = (
        "import tfmagic\n%load_ext tfmagic",
        "%%tfcluster --workers 2\nhere = 1",
        "here = 1\ntfmagic.course.reset()",
        "import tfmagic\nassert 'here' not in globals()",
        "%%tfcluster --workers 2 --out found\n'here' in globals()",
        "assert dict(found) == {'worker-0': False, 'worker-1': False}",
    )
    lessons.run(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells]))


def test_a_first_cluster(lessons):
    run = take(lessons, "01-first-cluster.ipynb", wrong_answers.LESSON_01)
    assert_checks(run, wrong_answers.LESSON_01)
    assert "I am worker-1, one of 2" in run.shown("%%tfcluster --workers 2")
    assert "[worker-1]:    x is 10" in run.shown('%%tfcluster\nprint("x is", x)')
    assert "x is the notebook's" in run.shown('print("x is", x)')
    assert run.shown("sum(doubled") == "4\n"
    assert "ZeroDivisionError" in run.after("## Break it") and "raised on worker-1" in run.after(
        "## Break it"
    )
    assert run.shown('%%tfcluster\nprint("still here")').count("still here") == 2
    empty, everywhere, *_, printed, _right = run.said["1.3"]
    assert "of *Break it*" in empty and "both workers" in everywhere and "no new exception" in printed


def test_what_a_task_is(lessons):
    run = take(lessons, "02-tf-config.ipynb", wrong_answers.LESSON_02)
    assert_checks(run, wrong_answers.LESSON_02)
    acts = run.shown("%%tfcluster\nme = tfmagic.current_task()\nprint(me.name, ")
    assert "worker-0 acts as chief: True" in acts and acts.count("False") == 2
    broken = run.after("## Break it")
    assert broken.count("of 3 workers") == 2 and "[worker-2]:    I am worker 2 of 2 workers" in broken
    late = run.shown('%%tfcluster\nprint("my address is"')
    assert late.count("my address is 127") == 2 and "No task with index 2" in late and "on worker-2" in late


def test_collectives(lessons):
    run = take(lessons, "03-collectives.ipynb", wrong_answers.LESSON_03)
    assert_checks(run, wrong_answers.LESSON_03)
    assert run.shown('%%tfcluster\nprint("the sum is"').count("the sum is 30") == 2
    assert run.after("## The same as a collective").count("together: 30.0") == 2
    steps = run.after("## Train one model")
    of_step = re.findall(r"step 2: my gradient +(\S+), mean +(\S+), w = (\S+)", steps)
    assert len(of_step) == 2 and of_step[0][0] != of_step[1][0] and of_step[0][1:] == of_step[1][1:]
    alone, trained = values(run.shown("alone")), values(run.shown("trained"))
    assert alone["worker-0"] != alone["worker-1"] and trained["worker-0"] == trained["worker-1"]
    broken = run.after("## Break it")
    assert broken.count("all-reduce 1 gives 2.0") == 2 and "all-reduce 2" not in broken
    assert "TaskTimeoutError" in broken and "stopped on worker-0" in broken
    assert run.after("**3.1**").strip() == ""
    assert "raised TaskTimeoutError: such a cell binds no results" in run.said["3.3"][0]
    again = [c for c in run.notebook.cells if "workers that answer" in c.source]
    assert str(again[0].outputs).count("workers that answer: 2.0") >= 2


def test_sharding(lessons):
    run = take(lessons, "04-sharding.ipynb", wrong_answers.LESSON_04)
    assert_checks(run, wrong_answers.LESSON_04)
    everything = str(list(range(12)))
    assert run.after("## Everyone reads everything").count(everything) == 2
    assert "[1, 3, 5, 7, 9, 11]" in run.after("## Divide by hand")
    assert re.search(r"read twice: \[\d.*\nread by nobody: \[\d", run.shown("rows = shuffled_first"))
    by_strategy = run.after("## Let the strategy divide")
    assert "[worker-0]:    [[0, 1], [4, 5], [8, 9]]" in by_strategy
    assert set(values(run.shown("off")).values()) == {"[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]"}
    assert values(run.shown("by_file")) == {
        "worker-0": "[[0, 2], [4, 6], [8, 10]]",
        "worker-1": "[[1, 3], [5, 7], [9, 11]]",
    }
    assert "numbers-00001-of-00002.tfrecord" in run.shown("import os")
    broken = run.after("## Break it")
    assert "step 2 uses 3 rows" in broken and "step 3" not in broken and "stopped on worker-0" in broken
    assert "not enough for the required 2 shards" in run.after("Now the question of this lesson")
    cure = run.after("The second one, in new processes")
    assert "new processes" in cure
    jointly = str([c.outputs for c in run.notebook.cells if "def count_rows" in c.source])
    assert "step 3 uses 1 rows, mine 1" in jointly and "step 3 uses 1 rows, mine 0" in jointly
    assert set(values(run.shown("fit_steps")).values()) == {"4"}


def test_batch_size_learning_rate_and_network(lessons):
    run = take(lessons, "05-scaling.ipynb", wrong_answers.LESSON_05)
    assert_checks(run, wrong_answers.LESSON_05)
    one, divided_by_32, divided_by_64 = map(
        float, re.findall(r" (\d\.\d{4})$", run.shown("for how, length"), re.M)
    )
    assert abs(divided_by_32 - 2 * one) < 2e-3 and abs(divided_by_64 - one) < 1e-3
    small, large, scaled = map(float, re.findall(r"loss (\S+)", run.shown("def train(batch")))
    assert large > 2 * small and abs(scaled - small) < 0.1
    lines = run.shown("if can_simulate:")
    ms = re.findall(r"(\d) workers, +(\S+): +(\S+) ms", lines)
    assert re.search(r"2 workers, 20mbit: .*efficiency +\d+%", lines)
    by_shape = {(workers, network): float(value) for workers, network, value in ms}
    assert len(by_shape) == 4 and by_shape["2", "20mbit"] >= 150, (
        "the wire needs 160 ms; the rest is the load's"
    )
    final = values(run.shown("broken"))
    assert len(final) == 2
    for ends in final.values():
        mean, of_sum = re.search(r"'MEAN': (\S+), 'SUM': (\w+)", ends).groups()
        assert abs(float(mean) - 3) < 1e-3 and of_sum == "nan"


def test_parameter_servers(lessons):
    run = take(lessons, "06-parameter-servers.ipynb", wrong_answers.LESSON_06)
    assert_checks(run, wrong_answers.LESSON_06)
    roles = run.after("## Three roles")
    assert "[chief-0]:     w is on /job:ps/" in roles and "worker-0" not in roles
    assert "worker-1 → ps-0" in run.shown("%tfcluster map")
    scheduled, joined = re.findall(r"w is (\S+)", run.after("## Schedule and join"))
    assert float(scheduled) < 20 and joined == "20.0"
    added, written = re.findall(r"\d+\.\d", run.shown('print("assign_add'))
    assert added == "100.0" and float(written) < 100
    assert int(re.search(r"'stale': (\d+)", run.shown('print(trained["chief-0"])'))[1]) > 0
    steps, w = re.search(r"'scheduled': (\d+), 'w': (\d+)", run.shown("survived")).groups()
    assert int(steps) <= int(w) <= int(steps) + 1 and int(steps) > 0
    states = run.shown("%tfcluster status")
    assert re.search(r"worker-1 +dead", states) and re.search(r"worker-0 +ready", states)
    lost = run.shown("%tfcluster kill ps-0")
    assert "The process of a parameter server is gone" in lost


def test_checkpoints_and_the_chief(lessons):
    run = take(lessons, "07-checkpoints.ipynb", wrong_answers.LESSON_07)
    assert_checks(run, wrong_answers.LESSON_07)
    saved = run.after("## Who may write where")
    assert "[worker-0]:    saving to folder/models" in saved
    assert "[worker-1]:    saving to a temporary folder" in saved
    assert run.shown("sorted(path.name").strip() == "['model.keras']"
    assert "it was stopped on worker-0" in run.shown("%%tfcluster --timeout 2\nif me")
    assert "began after step 0, ended with v = 3.0" in run.shown("%%tfcluster --out first")
    assert set(values(run.shown("second")).values()) == {"'began after step 3, ended with v = 5.0'"}
    assert "(8.0, ['ckpt-2', 'ckpt-3'])" in run.shown("print(dict(third))")
    assert "45.0]" in run.shown("seen = evaluated")
    interrupted, resumed = run.after("## The same with `fit`"), run.shown("%%tfcluster\nfit()")
    assert re.findall(r"worker-1.*epoch (\d)", interrupted) == ["1", "2", "3"]
    assert re.findall(r"worker-1.*epoch (\d)", resumed) == ["3", "4"]
    naive = values(run.shown("naive"))
    counts = [{name: int(n) for name, n in re.findall(r"'([^']+)': (\d+)", text)} for text in naive.values()]
    assert len(counts) == 2 and sum(count["errors here"] for count in counts) > 0
    assert counts[0]["of worker-0"] > 0 and counts[0]["of worker-1"] > 0


def test_killing_workers(lessons):
    run = take(lessons, "08-killing-workers.ipynb", wrong_answers.LESSON_08)
    assert_checks(run, wrong_answers.LESSON_08)
    died = run.after("**Predict:** the next cell is for both workers")
    assert "TaskDied: worker-1 was killed by you (SIGKILL)" in died and "kept is" not in died
    assert "[worker-0]:    100" in run.shown('%%tfcluster --out found\nglobals().get("kept"')
    assert "[worker-1]:    'nothing'" in run.shown('%%tfcluster --out found\nglobals().get("kept"')
    aborted = run.after("## How did it end?")
    for words in ("SIGABRT (an abort", "line 6 of the cell:  os.abort()", "    about to call C++"):
        assert words in aborted
    assert "[worker-1]:    'worker-1'" in run.shown("%%tfcluster --out alive")
    assert "UnavailableError" in run.after("**Predict:** what does `worker-0` do, which waits", place=1)
    undisturbed, disturbed = run.shown('print("undisturbed:", undisturbed)').strip().splitlines()
    losses = [re.findall(r"\((\d+), ([\d.]+)\)", line) for line in (undisturbed, disturbed)]
    assert [began for began, _ in losses[0]] == ["0", "0"]
    assert [began for began, _ in losses[1]] == ["10", "10"]
    assert len({loss for line in losses for _, loss in line}) == 1, "the same loss at the end"
    stale = run.after("**Predict:** `worker-0` still has `strategy` and `count`")
    assert "UnavailableError" in stale and "Create it again on every task" in stale


def test_hangs_and_stragglers(lessons):
    run = take(lessons, "09-hangs.ipynb", wrong_answers.LESSON_09)
    assert_checks(run, wrong_answers.LESSON_09)
    never = run.after("**Predict:** at that moment both workers")
    assert "worker-0 waits at barrier 1 (cell line 7); worker-1 " in never and "(line 6)" in never
    table = run.after("The next cell waits until the cluster hangs", place=1)
    (hanging,) = [line for line in table.splitlines() if "all_reduce" in line]
    assert hanging.startswith("worker-0")
    assert "waits in all_reduce" in run.shown("%tfcluster stacks worker-0")
    assert "KeyboardInterrupt" in run.after("**Interrupt** is the way out", place=1)
    assert run.shown('%%tfcluster\nprint("steps done:"').count("steps done: 2") == 2
    assert "SIGSTOP" in run.after("## A hang that ends", place=3)
    assert run.after("**Predict:** after `resume`", place=1).count("all are here") == 2
    waited = re.findall(r"'waited': ([\d.]+)", run.shown("%%tfcluster --out after"))
    assert float(waited[0]) > float(waited[1])
    cut = run.after("**Predict:** both workers call `count()`")
    assert "host-1 was cut off from the others during this cell" in cut and "also on worker-1" in cut
    assert "noticed after" in run.shown("noticed = time.monotonic()")
    assert "host-1 (cut off)" in run.after("Both, though the notebook")


def test_errors_and_debugging(lessons):
    run = take(lessons, "10-errors.ipynb", wrong_answers.LESSON_10)
    assert_checks(run, wrong_answers.LESSON_10)
    bad_line = "ValueError: could not convert string to float: '2,5'"
    first = run.after("**Predict:** how many of the three workers")
    assert f"{bad_line}\nraised on worker-1" in first
    peers = first.partition("also on ")[
        2
    ]  # one line for both, or, if they were freed in two ways, one for each
    assert "worker-0" in peers and "worker-2" in peers and "BrokenBarrierError" in peers, peers
    in_full = run.shown("%tfcluster errors")
    assert all(f"---- worker-{index} ----" in in_full for index in range(3)) and "in read_numbers" in in_full
    assert "hint: ParameterServerStrategy needs parameter servers" in run.after("## A hint where")
    assert "'numbers': [1.5]" in run.shown("import sys\n\n\ndef variables_of")
    kinds = run.shown("failures = sys.last_value.failures")
    assert all(kind in kinds for kind in ("KeyError", "IndexError", "ValueError"))
    assert run.shown("from IPython import get_ipython\n").strip() == "caught BadLine('line 3')"
    going = run.after("## Break it")
    assert "[worker-0]:    sum: 7.0" in going and "[worker-2]:    sum: 6.0" in going and bad_line in going


def test_logs_and_floods(lessons):
    run = take(lessons, "11-logs.ipynb", wrong_answers.LESSON_11)
    assert_checks(run, wrong_answers.LESSON_11)
    assert run.shown("%tfcluster logs --tail 2").count("loss 0.0005") == 4
    warning = "[worker-1]:    warning: the gradient of step 1200 is not a number"
    assert run.shown("%tfcluster logs --grep warning").strip() == warning
    assert "[worker-1]:    the result of a long night: 41" in run.shown("%tfcluster attach")
    assert "first/worker-0', 'first/worker-1" in run.shown("sorted(str(path.relative_to(base))")
    (board,) = [c for c in run.notebook.cells if c.source.startswith("%tfcluster tensorboard")]
    assert any("<iframe" in o.get("data", {}).get("text/html", "") for o in board.outputs)
    flood = run.shown("%%tfcluster --out seconds")
    assert len(flood) < 20_000 and "left out here" in flood and "worker-0 is done" in flood
    in_log = run.shown("lines = printed_by(")
    assert "300000 lines" in in_log and "value 299999 of the batch" in in_log


def test_off_to_real_machines(lessons):
    run = take(lessons, "12-real-machines.ipynb", wrong_answers.LESSON_12)
    assert_checks(run, wrong_answers.LESSON_12)
    trained = run.after("**Predict:** the script prints two kinds")
    for line in (
        "[worker-0]:    trained to 3.0 with 2",
        "[worker-1]:    trained to 3.0 with 2",
        "saved by worker 0",
    ):
        assert line in trained
    assert "saved by worker 1" not in trained
    by_hand = run.after("**Predict:** two processes")
    assert "I am worker 0 of 2" in by_hand and "I am worker 1 of 2" in by_hand
    failed = run.after("**Predict:** `worker-0` ends well")
    assert "tfmagic: worker-1 failed" in failed and "read.py, line 6" in failed and "exit code 1" in failed
    assert run.shown("_exit_code").strip() == "1"


def test_the_script_of_lesson_12_is_saved_by_the_chief_alone_where_there_is_one(lessons, tmp_path):
    (path,) = [path for path in course.lesson_files() if path.name.startswith("12")]
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells]
    (script,) = [source for source in cells if source.startswith("%%writefile {folder}/train.py\n")]
    (tmp_path / "train.py").write_text(script.partition("\n")[2])
    words = ["run", "--workers", "1", "--chief", str(tmp_path / "train.py"), str(tmp_path)]
    source = f"from tfmagic.frontends import cli\nassert cli.main({words}) == 0"
    ran = lessons.run(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]))
    shown = CourseRun(ran).shown(source)
    assert re.findall(r"saved by .*", shown) == ["saved by chief 0"]
    assert shown.count("trained to 3.0 with 2") == 2


def test_when_to_distribute(lessons):
    run = take(lessons, "13-gpus.ipynb", wrong_answers.LESSON_13)
    assert_checks(run, wrong_answers.LESSON_13)
    assert "(2, ['CPU:0', 'CPU:1'])" in run.shown('print(one_task["worker-0"])')
    timed = run.shown("for name, (alone, two)")
    assert re.findall(r"(\w+): +\S+ ms without a strategy, +\S+ ms with two", timed) == ["small", "large"]
    for place in (1, 2):
        assert "transferring" in run.after("## Look before you buy", place), "a profile"
    assert "NCCL communication but no GPUs" in run.after("## Who carries the gradients")
    after, overlapped = map(int, re.findall(r"(\d+) ms", run.shown("after, overlapped")))
    assert after >= 182 and overlapped >= 142, "what the wire and the sleeps need at least"
    assert run.shown("for task, found in products").count("[[11.0, 14.0, 17.0, 20.0]]") == 2
    assert run.shown("import numpy as np").splitlines()[0] == "0.0 inf 2048.0"
    broken = run.after("## Break it")
    assert "{'32 bits': 3.0, '16 bits': 1.0, '16 bits, loss × 1024': 3.0}" in broken


def test_a_notice_before_the_end(lessons):
    run = take(lessons, "14-preemption.ipynb", wrong_answers.LESSON_14)
    assert_checks(run, wrong_answers.LESSON_14)
    assert "TaskDied: worker-1 was killed by you (SIGTERM)" in run.after("## Two signals", place=2)
    assert run.shown("%%tfcluster --timeout 60 --out first").count("saved after a notice") == 2
    assert "saved after a notice" not in run.shown("%%tfcluster --timeout 60 --out second")
    broken = run.after("## Break it", place=1)
    assert "[worker-1]:    saved and gone" in broken and "stopped on worker-0" in broken
    assert "step 4" not in broken.partition("Traceback")[0].partition("TaskTimeoutError")[0]


@pytest.mark.parametrize(
    "name", [n if n.startswith("08") else pytest.param(n, marks=pytest.mark.soak) for n in NAMES]
)
def test_an_exercise_is_right_also_where_the_first_one_is_open(lessons, name):
    first, *others = solutions(nbformat.read(lessons.folder / "course" / name, as_version=4))
    run = take_without(lessons, name, first)
    assert run.said[first][-1].startswith(f"✘ {first}: not yet: ")
    for number in others:
        assert run.said[number][-1] == f"✔ {number}: right."


RUN_ALL = """
import sys
from pathlib import Path
import nbformat
from lessons import Lessons
lessons, (target, *paths) = Lessons(Path.cwd()), map(Path, sys.argv[1:])
for path in paths:
    nbformat.write(lessons.execute(path), target / path.name)
lessons.close()
"""
SIMULATED = {  # what a lesson shows where no machines can be simulated
    "05-scaling.ipynb": ("if can_simulate:", "2 workers, 20mbit:  182.7 ms a step, efficiency   1%"),
    "09-hangs.ipynb": ("noticed = time.monotonic()", "noticed after"),
    "13-gpus.ipynb": ("after, overlapped", "sent while computing: 146 ms"),
}


@pytest.fixture(scope="module")
def without_machines(tmp_path_factory):
    """Return a folder with these lessons, after a run in one kernel that can simulate no machines."""
    folder = tmp_path_factory.mktemp("without-machines")
    paths = [str(path) for path in course.lesson_files() if path.name in SIMULATED]
    command = without_namespaces(sys.executable, "-c", RUN_ALL, str(folder), *paths)
    search = os.pathsep.join([str(Path(lessons_of_tests.__file__).parent), os.environ["PYTHONPATH"]])
    environ = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("name", SIMULATED)
def test_a_lesson_goes_on_where_machines_cannot_be_simulated(without_machines, name):
    """All cells run; one of them says what is missing, and what the others show is of another source."""
    cell, shows = SIMULATED[name]
    run = CourseRun(nbformat.read(without_machines / name, as_version=4))
    assert str(run.notebook).count("This lesson goes on without them.") == 1
    assert shows in run.shown(cell)
    if name.startswith("09"):
        waited = run.after("**Predict:** both workers call")
        assert "UnavailableError" in waited and "task:1" in waited and "there are 2" not in waited
