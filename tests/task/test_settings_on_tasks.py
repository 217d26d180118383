"""Settings that a notebook makes after the start hold on tasks, as they hold in the notebook itself."""

import os

import pytest

import tfmagic

PATTERN = """
import ast
class Add(ast.NodeTransformer):
    def visit_Name(self, node):
        return ast.copy_location(ast.Name("nine", node.ctx), node) if node.id == "seven" else node
nine = 9
"""
SETTINGS = {
    "environment": ('os.environ["NEW_A"] = "a"', 'os.environ.get("NEW_A")', 'del os.environ["NEW_A"]'),
    "removed": (
        'os.environ["OLD_B"] = "b"',
        '"OLD_B" in os.environ',
        'os.environ.pop("OLD_B", None)',
    ),
    "path": (
        "sys.path.insert(1, folder)",
        '__import__("beside_settings").WHERE',
        "sys.path.remove(folder)",
    ),
    "folder": ("os.chdir(folder)", "os.getcwd()", "os.chdir(home)"),
    "recursion": ("sys.setrecursionlimit(2345)", "sys.getrecursionlimit()", "sys.setrecursionlimit(1000)"),
    "filter": (
        'warnings.simplefilter("ignore", UserWarning)',
        'warned(warnings, "quiet")',
        "del warnings.filters[0]",
    ),
    "level": ("logging.root.setLevel(5)", "logging.root.level", "logging.root.setLevel(30)"),
    "named level": (
        'logging.getLogger("a.b").setLevel("DEBUG")',
        'logging.getLogger("a.b").getEffectiveLevel()',
        'logging.getLogger("a.b").setLevel(0)',
    ),
    "decimal": (
        "decimal.getcontext().prec = 5; decimal.getcontext().traps[decimal.Inexact] = False",
        "str(decimal.Decimal(1) / 7)",
        "decimal.setcontext(decimal.Context())",
    ),
    "numpy": (
        'np.set_printoptions(precision=2, formatter={"int": hex})',
        "str(np.array([1 / 3])) + str(np.array([17]))",
        "np.set_printoptions(precision=8, formatter=None)",
    ),
    "numpy's errors": (
        'np.seterr(divide="ignore")',
        'np.geterr()["divide"]',
        'np.seterr(divide="warn")',
    ),
    "pandas": (
        'pd.set_option("display.precision", 2, "display.max_rows", 4)',
        'str(pd.DataFrame({"a": [1.23456] * 9}))',
        'pd.reset_option("display.precision"); pd.reset_option("display.max_rows")',
    ),
    "matplotlib": (
        'matplotlib.rcParams["figure.figsize"] = [2, 1]; matplotlib.style.use("ggplot")',
        'str(matplotlib.rcParams["figure.figsize"]) + str(matplotlib.rcParams["axes.prop_cycle"])',
        "matplotlib.rcdefaults()",
    ),
    "shown values": ("%precision 3", "get_ipython().display_formatter.format(1 / 3)[0]", "%precision"),
    "all values": (
        'get_ipython().ast_node_interactivity = "all"',
        "get_ipython().ast_node_interactivity",
        'get_ipython().ast_node_interactivity = "last_expr"',
    ),
    "code": (
        "get_ipython().ast_transformers.append(Add())",
        "seven",
        "get_ipython().ast_transformers.clear()",
    ),
    "floats of Keras": (
        'keras.config.set_floatx("float64")',
        "keras.config.floatx()",
        'keras.config.set_floatx("float32")',
    ),
}
IMPORTS = """
import decimal, logging, os, sys, warnings
import matplotlib.style, numpy as np, pandas as pd
"""
DEFINED = """
def warned(warnings, text):
    seen = []
    show, warnings.showwarning = warnings.showwarning, lambda *args, **kwargs: seen.append(args)
    try:
        warnings.warn(text)
    finally:
        warnings.showwarning = show
    return len(seen)
seven = 7
"""
ON_TASKS = f"{IMPORTS}import keras\nseven = 7\nnine = 9\n"


@pytest.fixture(scope="module")
def prepared(shared_kernel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    (folder / "beside_settings.py").write_text("WHERE = 'beside'\n")
    assert not shared_kernel.text(
        f"{IMPORTS}{DEFINED}{PATTERN}import keras\nfolder, home = {str(folder)!r}, os.getcwd()"
    )
    shared_kernel.run(f"%%tfcluster\n{ON_TASKS}")
    return shared_kernel


def both(kernel, expression):
    """Return what an expression is in the notebook, and on both tasks."""
    here = kernel.text(f"print({expression})")
    kernel.run(f"%%tfcluster --out on_tasks --view quiet\n{expression}")
    return here, kernel.text('print(on_tasks["worker-0"])'), kernel.text('print(on_tasks["worker-1"])')


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_notebook_holds_on_tasks(prepared, name):
    setting, expression, back = SETTINGS[name]
    if name != "path":
        before = both(prepared, expression)
        assert before[0] == before[1] == before[2]
    assert not prepared.text(setting) or name == "shown values"
    try:
        changed = both(prepared, expression)
        assert changed[0] == changed[1] == changed[2]
        assert name == "path" or changed != before
    finally:
        prepared.run(back)
    if name != "path":
        assert both(prepared, expression) == before


def test_a_setting_that_a_cell_has_made_stays_until_the_notebook_sets_it(prepared):
    prepared.run('np.set_printoptions(precision=3); os.environ["KEPT_C"] = "notebook"')
    prepared.run('%%tfcluster\nnp.set_printoptions(precision=5); os.environ["KEPT_C"] = "task"')
    prepared.run("os.environ['OTHER_D'] = 'x'")
    own = "%%tfcluster --on worker-0\nprint(np.array([1 / 3]), os.environ['KEPT_C'])"
    assert "[0.33333] task" in prepared.text(own)
    prepared.run('np.set_printoptions(precision=8); os.environ["KEPT_C"] = "again"')
    assert "[0.33333333] again" in prepared.text(own)


def test_a_new_process_has_the_settings_too(prepared):
    prepared.run('np.set_printoptions(precision=3); os.environ["NEW_E"] = "e"')
    prepared.run("%tfcluster restart worker-1")
    shown = prepared.text(
        "%%tfcluster --on worker-1\nimport numpy, os\nprint(numpy.array([1 / 3]), os.environ['NEW_E'])"
    )
    prepared.run("np.set_printoptions(precision=8)")
    assert "[0.333] e" in shown
    prepared.run(f"%%tfcluster --on worker-1\n{ON_TASKS}")  # for the tests after this one


def test_lines_of_logging_are_shown_as_in_the_notebook(prepared):
    prepared.run('logging.basicConfig(level=logging.INFO, format="%(levelname)s! %(message)s")')
    try:
        assert "INFO! begun" in prepared.text("%%tfcluster --on worker-0\nlogging.info('begun')")
    finally:
        prepared.run("logging.basicConfig(force=True, level=logging.WARNING)")


def test_a_setting_that_cannot_travel_is_named_once(prepared):
    prepared.run(
        "pd.set_option('display.float_format', type('F', (), {'__call__': lambda s, v: 'f', "
        "'__reduce__': lambda s: 1 / 0})())"
    )
    try:
        said = [prepared.text("%%tfcluster --on worker-0\nprint('ran')") for _ in range(2)]
    finally:
        prepared.run("pd.reset_option('display.float_format')")
    assert "a setting of the notebook stays here, pandas display.float_format" in said[0]
    assert "stays here" not in said[1] and "ran" in said[1]


@pytest.mark.parametrize(
    ("made", "cell", "hint"),
    [
        (
            "import types; sys.modules['made_here'] = types.ModuleType('made_here')",
            "import made_here",
            "the notebook can import made_here, and this task cannot",
        ),
        (
            "os.environ['TAKEN_F'] = 'f'",
            "del os.environ['TAKEN_F']\nos.environ['TAKEN_F']",
            "the notebook has the environment variable TAKEN_F",
        ),
    ],
)
def test_what_only_the_notebook_has_is_named(prepared, made, cell, hint):
    prepared.run(made)
    name, text = prepared.error(f"%%tfcluster --on worker-0\n{cell}")
    assert f"hint: {hint}" in text


def test_what_monkeypatch_sets_holds_on_tasks_until_it_is_undone(tmp_path, caplog):
    (tmp_path / "patched_in.py").write_text("WHERE = 'here'\n")

    def look():
        import logging
        import os
        import sys

        return os.environ.get("PATCHED_G"), os.getcwd(), sys.path[0], logging.root.level

    with tfmagic.Cluster(workers=2) as cluster:
        before = cluster.run(look)
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(5):
            patch.setenv("PATCHED_G", "g")
            patch.chdir(tmp_path)
            patch.syspath_prepend(tmp_path)
            for seen in cluster.run(look).values():
                assert seen == ("g", str(tmp_path), str(tmp_path), 5)
        assert cluster.run(look) == before


def test_a_variable_of_env_is_not_replaced():
    with tfmagic.Cluster(workers=1, env={"GIVEN_H": "env"}) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIVEN_H", "notebook")
        assert cluster.run(os.getenv, "GIVEN_H")["worker-0"] == "env"


def test_a_proxy_that_the_notebook_sets_is_not_between_tasks():
    """Without an exception gRPC would ask the proxy for the other task, and wait for ever."""

    def connect():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            return os.environ["http_proxy"], float(strategy.reduce("sum", tf.constant(1.0), axis=None))

    with tfmagic.Cluster(workers=2) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        patch.setenv("no_proxy", "example.org")
        for value in cluster.run(connect, timeout=60).values():
            assert value == ("http://127.0.0.1:9", 2.0)
        assert cluster.run(os.getenv, "no_grpc_proxy")["worker-1"] == "127.0.0.1,example.org"


def test_a_filter_that_a_library_appends_hides_nothing(prepared):
    prepared.run('warnings.filterwarnings("ignore", "nothing of this", append=True)')
    prepared.run("def old():\n    warnings.warn('use new()', DeprecationWarning, stacklevel=2)")
    assert "DeprecationWarning: use new()" in prepared.text("old()")
    assert "DeprecationWarning: use new()" in prepared.text("%%tfcluster --on worker-0\nold()")
