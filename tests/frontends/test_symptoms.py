"""Each hint and each error class has an entry, and both front ends print it."""

import pytest

import tfmagic
from tfmagic.failures import hints
from tfmagic.frontends import cli, symptoms
from tfmagic.runs.given_hints import Hint
from tfmagic.system.advice import FrontEnd, set_front_end

OTHERS = {
    "host-cut-off",
    "model-outside-scope",
    "module-of-the-notebook",
    "own-statistics",
    "unused-rows",
    "variable-of-the-notebook",
    "different-weights",
    "stalled",
    *(
        "added-sum",
        "clipped-replicas",
        "compared-rows",
        "curved-loss",
        "random-layers",
        "scalar-loss",
        "uneven-batches",
        "unscaled-loss",
        "unseeded-shuffle",
        "unsummed-metric",
    ),
}
ERRORS = {
    name for name in tfmagic.__all__ if str(getattr(tfmagic, name)).startswith("<class 'tfmagic.errors.")
}


def test_each_short_name_has_an_entry_and_no_entry_is_left_over():
    assert set(symptoms.entries()) == {hint[0] for hint in hints.HINTS} | ERRORS | OTHERS


@pytest.mark.parametrize("name", symptoms.entries())
def test_an_entry_says_what_it_means_and_what_to_do(name):
    meaning, *what_to_do = symptoms.entries()[name].split("\n\n")
    assert len(meaning) > 40 and what_to_do


def test_a_heading_is_what_a_user_sees_and_not_the_short_name_again():
    titles = symptoms.titles()
    assert list(titles) == list(symptoms.entries()) and len(set(titles.values())) == len(titles)
    assert [name for name, title in titles.items() if len(title.split()) < 4 or name in title] == []


def test_the_shell_prints_an_entry_or_the_names_or_the_closest_one(capsys):
    assert cli.main(["explain", "taskdied"]) == 0
    assert capsys.readouterr().out.startswith(
        "TaskDied: A worker died: killed by a signal, segmentation fault, exit\n\nThe process of a task"
    )
    assert cli.main(["explain"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(symptoms.entries())
    assert "port-in-use               Address already in use" in listed
    assert cli.main(["explain", "unequal-colective"]) == 1
    assert "did you mean unequal-collective?" in capsys.readouterr().err


def test_a_hint_ends_with_the_line_that_explains_more():
    hint = Hint("late-setting", "Begin with it.")
    set_front_end(FrontEnd.NOTEBOOK)
    try:
        assert hint.note == "hint: Begin with it. (%tfcluster explain late-setting)"
    finally:
        set_front_end(None)
    assert hints.Hint().note == ""
