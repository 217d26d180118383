"""One table declares the options of a cluster: what is derived from it has all of them."""

import argparse
import inspect
import re
from pathlib import Path

import pytest

import tfmagic
from tfmagic.clusters.launch import kept_clusters
from tfmagic.clusters.launch.cluster_options import OPTIONS, TaskOptions, options_in
from tfmagic.clusters.launch.given_options import GivenOptions, add_options, given_options
from tfmagic.system.process_options import ProcessOptions

PACKAGE = Path(tfmagic.__file__).parent
NOT_ON_RAY = {"isolate", "hosts", "network"}
NO_OPTIONS = {"self", "name", "cluster_spec", "namespace", "task_settings", "settings"}
VALUES = {  # other than the default
    "workers": 3,
    "ps": 1,
    "chief": True,
    "evaluator": True,
    "backend": "ray",
    "address": "10.0.0.1:6379",
    "placement": "pack",
    "cpus_per_task": 2.0,
    "keep": 60.0,
    "resources": {"rack": 1.0},
    "env": {"A": "x y"},
    "gpus_per_task": 1,
    "keras": 2,
    "keras_fix": False,
    "auto_restart": 2,
    "isolate": True,
    "nice": 5,
    "hosts": 2,
    "network": "100mbit",
}


def read(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, "options")
    return given_options(parser.parse_args(words), parser)


def unquoted(words):
    return [word.strip("'") for word in words]


def test_the_parameters_of_a_cluster_are_the_table_and_each_is_explained():
    parameters = inspect.signature(tfmagic.Cluster).parameters
    found = {name: item.default for name, item in parameters.items() if name not in NO_OPTIONS}
    assert found == {name: option.default for name, option in OPTIONS.items()}
    explained = re.findall(
        r"^ {8}((?:\w+, )*\w+): ", inspect.getdoc(tfmagic.Cluster).replace("\n", "\n    "), re.M
    )
    assert set(OPTIONS) <= {name for names in explained for name in names.split(", ")}


def test_these_tests_have_a_value_of_each_option():
    assert list(VALUES) == list(OPTIONS)
    assert all(VALUES[name] != option.default for name, option in OPTIONS.items())


@pytest.mark.parametrize("name", OPTIONS)
def test_a_line_with_an_option_is_read_written_and_compared(name):
    option, asked = OPTIONS[name], GivenOptions({name: VALUES[name]})
    assert read(*unquoted(asked.words)) == asked
    assert asked.disagreements(asked) == []
    assert asked.disagreements(GivenOptions()) == asked.words and asked.words
    assert GivenOptions().completed(asked) == asked.completed(GivenOptions()) == asked
    if option.default is not None and not option.is_flag:
        default = GivenOptions({name: option.default})
        assert default.disagreements(GivenOptions()) == []
        assert default.disagreements(asked) == default.words and default.words


def test_a_kept_cluster_remembers_each_option_but_the_environment():
    values = {name: value for name, value in VALUES.items() if name not in NOT_ON_RAY}
    cluster = tfmagic.Cluster(**values, name="kept")
    options = kept_clusters.options_of("kept", cluster.shape, cluster.task_settings)
    assert {name: options.get(name) for name in values} == {**values, "env": None}
    attached = tfmagic.Cluster(**options, env=VALUES["env"])
    assert (attached.shape, attached.task_settings) == (cluster.shape, cluster.task_settings)


def test_each_option_of_tasks_reaches_their_settings():
    local = {option.name: VALUES[option.name] for option in options_in(TaskOptions)}
    settings = tfmagic.Cluster(**local).task_settings
    assert {name: getattr(settings, name) for name in local} == local
    own = ProcessOptions.__struct_fields__
    assert {name: getattr(settings.of_process, name) for name in own} == {name: VALUES[name] for name in own}


def test_the_docs_have_each_option_as_it_is_declared():
    page = (PACKAGE.parent / "docs" / "cells.md").read_text("utf-8")
    for option in OPTIONS.values():
        line = option.rule.line
        values = line.get("metavar") or r"\|".join(map(str, line.get("choices", ())))
        word = f"{option.word} {values}".strip()
        assert f"| `{word}` | `{option.name}={option.default}` | {option.help} |\n" in page


def test_an_option_is_named_in_three_files():
    uses = re.compile(r"\bnice\s*[:=]|\.nice\b|--nice\b")
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.*")
        if path.suffix != ".pyc" and uses.search(path.read_text("utf-8", "replace"))
    }
    assert found == {"clusters/cluster.py", "clusters/launch/cluster_options.py", "system/process_options.py"}


@pytest.mark.parametrize("nice", [-21, 20, 2.5, "5", True])
def test_a_priority_that_does_not_exist_is_refused(nice):
    with pytest.raises((TypeError, ValueError), match="nice is a whole number from -20 to 19, or None, not"):
        tfmagic.Cluster(nice=nice)


@pytest.mark.parametrize("word", ["20", "high"])
def test_a_line_with_a_priority_that_does_not_exist_says_what_is_allowed(word):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, "options")
    with pytest.raises(argparse.ArgumentError, match=f"'{word}' is not a whole number from -20 to 19"):
        parser.parse_args(["--nice", word])
