"""Modules that have changed are named, and reloaded on the tasks."""

import os
import sys
import time

import pytest
from IPython.core.error import UsageError

MODULE = """
from helpers import scale
LIMIT = {number}
TABLE = []
class Net:
    def rate(self): return {number}
def use(x): return scale(x) + {number}
"""
USE = "print('got', lib_a.use(1), lib_a.LIMIT, net.rate(), taken(1), taken is lib_a.use)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules beside the notebook."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    ours = ("lib_", "helpers", "settings_of", "pack_of", "train_of")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        del sys.modules[name]


def write(path, text):
    path.write_text(text)
    write.time += 10  # files that are written in the same second can look alike
    os.utime(path, (write.time, write.time))


write.time = time.time() - 10_000


def test_a_module_that_has_changed_is_named_once_and_reloaded_on_the_tasks(notebook, folder, capfd):
    write(folder / "helpers.py", "def scale(x): return x * 10")
    write(folder / "lib_a.py", MODULE.format(number=1))
    notebook.run("import lib_a\nfrom lib_a import use as taken\nnet = lib_a.Net()")
    first = notebook.run(f"%%tfcluster --workers 2 --view text\nkept = net\n{USE}")
    assert first.count("got 11 1 1 11 True") == 2
    notebook.run("%%tfcluster --on worker-1 --view text\nnet = kept\nmine = [5]")
    capfd.readouterr()

    write(folder / "lib_a.py", MODULE.format(number=2))
    notebook.run(
        "import importlib; importlib.reload(lib_a)\nfrom lib_a import use as taken\nnet = lib_a.Net()"
    )
    assert notebook.run(f"%%tfcluster --view text\n{USE}").count("got 11 1 1 11 True") == 2
    told = capfd.readouterr().err
    assert "lib_a: lib_a.py changed after worker-0, worker-1 imported it" in told
    assert "%tfcluster reload lib_a" in told
    notebook.run(f"%%tfcluster --view text\n{USE}")
    assert "changed" not in capfd.readouterr().err

    shown = notebook.run("%tfcluster reload lib_a lib_b")
    assert "worker-0, worker-1 reloaded lib_a\n" in shown
    assert "worker-0, worker-1 had not imported lib_b" in shown
    assert notebook.run(f"%%tfcluster --view text\n{USE}").count("got 12 2 2 12 True") == 2
    assert "[5]" in notebook.run("%%tfcluster --on worker-1 --view text\nprint(mine)")

    write(folder / "helpers.py", "def scale(x): return x * 100")  # which only lib_a uses
    notebook.run(f"%%tfcluster --view text\n{USE}")
    assert "%tfcluster reload helpers" in capfd.readouterr().err
    assert "worker-0 reloaded helpers" in notebook.run("%tfcluster reload helpers --on worker-0")
    shown = notebook.run(f"%%tfcluster --view text\n{USE}")
    assert "got 102 2" in shown and "got 12 2" in shown
    write(folder / "helpers.py", "def scale(x): return (")
    with pytest.raises(SyntaxError, match="was never closed"):
        notebook.run("%tfcluster reload helpers")
    assert "got 102 2" in notebook.run(f"%%tfcluster --on worker-0 --view text\n{USE}")
    with pytest.raises(UsageError, match="no name of a module"):
        notebook.run("%tfcluster reload lib_a.py:")


def test_a_module_that_only_cells_import_is_named_too(notebook, folder, capfd):
    write(folder / "lib_b.py", "def use(): return 1")
    notebook.run("%%tfcluster --workers 1 --view text\nfrom lib_b import use")
    write(folder / "lib_b.py", "def use(): return 2")
    assert "1" in notebook.run("%%tfcluster --view text\nprint(use())")
    assert "%tfcluster reload lib_b" in capfd.readouterr().err
    notebook.run("%tfcluster reload lib_b")
    assert "2" in notebook.run("%%tfcluster --view text\nprint(use())")
    notebook.run("%tfcluster restart")
    notebook.run("%%tfcluster --view text\nimport lib_b")
    assert "lib_b" not in sys.modules and "changed" not in capfd.readouterr().err
    (folder / "lib_c").mkdir()
    write(folder / "lib_c" / "__init__.py", "")
    write(folder / "lib_c" / "part.py", "import helpers")
    write(folder / "helpers.py", "")
    notebook.run("%%tfcluster --view text\nfrom lib_c.part import helpers")
    write(folder / "helpers.py", "x = 1")
    notebook.run("%%tfcluster --view text\n1")
    assert "%tfcluster reload helpers" in capfd.readouterr().err
    write(folder / "lib_c" / "part.py", "import helpers\nx = 1")
    notebook.run("%%tfcluster --view text\n1")
    assert "%tfcluster reload lib_c.part" in capfd.readouterr().err
    assert not {"lib_c", "lib_c.part", "helpers"} & set(sys.modules)


def test_a_module_of_which_only_constants_are_imported_is_named_and_reloaded_first(notebook, folder, capfd):
    write(folder / "settings_of.py", "RATE = 1")
    (folder / "pack_of").mkdir()
    write(folder / "pack_of/__init__.py", "from .core import *")
    write(folder / "pack_of/const.py", "LIMIT = 1")
    write(folder / "pack_of/core.py", "from .const import LIMIT\ndef limit(): return LIMIT")
    source = "from settings_of import RATE\nfrom pack_of.core import limit\ndef fit(): return RATE, limit()"
    write(folder / "train_of.py", source)
    notebook.run("from train_of import fit")
    notebook.run("%%tfcluster --workers 1 --view text\nprint(fit())")
    capfd.readouterr()
    write(folder / "settings_of.py", "RATE = 2")
    write(folder / "pack_of/const.py", "LIMIT = 2")
    notebook.run("%%tfcluster --view text\nprint(fit())")
    told = capfd.readouterr().err
    assert "const.py, settings_of.py changed after worker-0 imported it" in told
    notebook.run("%tfcluster reload settings_of pack_of train_of")
    assert "(2, 2)" in notebook.run("%%tfcluster --view text\nprint(fit())")


def test_the_line_to_copy_reloads_what_has_constants_of_the_changed_module_too(notebook, folder, capfd):
    write(folder / "rates_of.py", "RATE = 1\ndef rate(): return RATE\nclass Rate:\n    pass")
    write(folder / "fit_of.py", "from rates_of import RATE as R\ndef fit(): return R")
    write(folder / "run_of.py", "from fit_of import R\nimport rates_of\ndef run(): return R, rates_of.RATE")
    write(folder / "star_of.py", "from rates_of import *")
    write(folder / "calls_of.py", "import rates_of\nfrom rates_of import Rate, rate\nstate = []")
    notebook.run("from fit_of import fit\nfrom run_of import run\nimport calls_of, star_of")
    notebook.run(
        "%%tfcluster --workers 1 --view text\ncalls_of.state.append(1)\nprint(fit(), run(), star_of.RATE)"
    )
    capfd.readouterr()
    write(folder / "rates_of.py", "RATE = 2\ndef rate(): return RATE\nclass Rate:\n    pass")
    notebook.run("%%tfcluster --view text\n1")
    line = capfd.readouterr().err.strip().rpartition(":  ")[2]
    assert line == "%tfcluster reload rates_of fit_of star_of run_of"
    notebook.run(line)
    look = "%%tfcluster --view text\nprint(fit(), run(), calls_of.rate(), calls_of.state, star_of.RATE)"
    assert "2 (2, 2) 2 [1] 2" in notebook.run(look)
    write(folder / "rates_of_tasks.py", "RATE = 1")  # which the notebook has not imported
    write(folder / "fit_of_tasks.py", "from rates_of_tasks import RATE")
    notebook.run("%%tfcluster --view text\nimport fit_of_tasks")
    write(folder / "rates_of_tasks.py", "RATE = 2")
    notebook.run("%%tfcluster --view text\n1")
    assert "%tfcluster reload rates_of_tasks fit_of_tasks\n" in capfd.readouterr().err


def test_a_member_of_an_enum_that_was_sent_is_the_class_member_after_a_reload(notebook, folder):
    enum = "import enum\nclass Kind(enum.Enum):\n    A = 'a'\n    def text(self): return {number}\n"
    write(folder / "lib_kinds.py", enum.format(number=1))
    notebook.run("import lib_kinds\nfrom lib_kinds import Kind\nk = Kind.A\nmany = [k, {k: 1}]")
    look = "print(k is Kind.A is lib_kinds.Kind.A is many[0], many[1].get(Kind.A), k.text())"
    assert "True 1 1\n" in notebook.run(f"%%tfcluster --workers 1 --view text\nmany.append(2)\n{look}")
    write(folder / "lib_kinds.py", enum.format(number=2))
    notebook.run("%tfcluster reload lib_kinds")
    assert "True 1 2\n" in notebook.run(f"%%tfcluster --view text\n{look}")
    assert "2\n" in notebook.run("%%tfcluster --view text\nprint(many[2])")


def test_a_class_in_a_list_that_was_sent_is_the_new_one_after_a_reload(notebook, folder):
    write(folder / "lib_shapes.py", "class Shape:\n    sides = 1\n")
    notebook.run("from lib_shapes import Shape\nkinds = [Shape, {'by name': [Shape]}]\nkinds.append(kinds)")
    look = (
        "print(kinds[0] is Shape is kinds[1]['by name'][0], kinds[2] is kinds, isinstance(kinds[0](), Shape))"
    )
    assert "True True True\n" in notebook.run(f"%%tfcluster --workers 1 --view text\n{look}")
    write(folder / "lib_shapes.py", "class Shape:\n    sides = 4\n")
    notebook.run("%tfcluster reload lib_shapes")
    assert "True True True\n" in notebook.run(f"%%tfcluster --view text\n{look}")
