"""Which environment variables a program sets before it imports TensorFlow, by its source."""

import ast
import subprocess
import sys

import pytest

from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.features.early_variables.reading import UNKNOWN, find, obey, of_script, tell
from tfmagic.frontends.notebook.cell_source import prepare_cell

LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def found(source, **environ):
    return find(ast.parse(source), environ)


@pytest.mark.parametrize(
    "line",
    [
        "import os\nos.environ['{}'] = '3'",
        "import os as o\no.environ['{}'] = '3'",
        "from os import environ\nenviron['{}'] = '3'",
        "from os import environ as e\ne['{}'] = '3'",
        "os.environ['{}'] = '3'",  # a cell; an earlier one has imported os
        "import os\nos.environ.setdefault('{}', '3')",
        "import os\nos.environ.update({{'{}': '3'}})",
        "import os\nos.environ.update({}='3')",
        "import os\nos.environ.update(dict({}='3'))",
        "import os\nos.environ |= {{'{}': '3'}}",
        "import os\nos.putenv('{}', '3')",
        "import os\nx = os.environ['{}'] = '3'",
        "import os\nif __name__ == '__main__':\n    os.environ['{}'] = '3'",
        "import os\nwith open('f') as file:\n    os.environ['{}'] = '3'",
        "import os\ndef set_up():\n    os.environ['{}'] = '3'\nset_up()",
    ],
)
def test_each_way_to_set_a_variable_is_found(line):
    line = line.format(LEVEL)
    assert found(f"{line}\nimport tensorflow as tf") == {LEVEL: "3"}
    assert found(f"{line}\nimport tensorflow as tf", **{LEVEL: "3"}) == {}  # the import sees it anyway


def test_a_function_that_imports_tensorflow_is_read_where_it_is_called():
    main = "def main():\n    import os\n    os.environ['{}'] = '3'\n    import keras\n    os.environ['X'] = '1'\n"
    main += (
        "    return main()\nif __name__ == '__main__':\n    x = main()\n    os.environ['KERAS_HOME'] = 'late'"
    )
    assert found(main.format(LEVEL)) == {LEVEL: "3"}
    with_early_end = (
        "import os, sys\ndef f():\n    if sys.argv: return\n    os.environ['{}'] = '3'\nf()\nimport keras"
    )
    assert found(with_early_end.format(LEVEL)) == {LEVEL: UNKNOWN}
    with_argument = "import os\ndef f(level):\n    os.environ['{}'] = level\nf('3')\nimport keras"
    assert found(with_argument.format(LEVEL)) == {LEVEL: UNKNOWN}


@pytest.mark.parametrize(
    ("between", "counts"),
    [
        ("x = tf.constant(1)", True),
        ("def make(): return tf.keras.Sequential()", True),
        ("x = tf.keras.Sequential()", False),
        ("from tensorflow.keras import layers", False),
        ("from tensorflow import keras", True),  # a lazy module: its first use decides
    ],
)
def test_what_tf_keras_is_can_be_said_until_its_first_use(between, counts):
    source = f"import os\nimport tensorflow as tf\n{between}\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
    assert found(source + "print(tf.keras.Model)") == ({"TF_USE_LEGACY_KERAS": "1"} if counts else {})


@pytest.mark.parametrize("magic", [f"%env {LEVEL}=3", f"%set_env {LEVEL}=3", f"%env {LEVEL} 3"])
def test_a_magic_that_sets_a_variable_is_found(magic):
    command, _ = prepare_cell(f"{magic}\nimport tensorflow as tf\n")
    assert found(command.source) == {LEVEL: "3"}
    command, _ = prepare_cell(f"{magic[:-1]}$x\nimport tensorflow as tf\n")
    assert found(command.source) == {LEVEL: UNKNOWN}


@pytest.mark.parametrize(
    "imports",
    [
        "import tensorflow as tf",
        "import numpy, keras",
        "from tf_keras import layers",
        "from tensorflow.keras import layers",
        "import tensorflow_datasets as tfds",
        "try:\n    import tensorflow\nexcept ImportError:\n    pass",
        "if True:\n    import keras",
        "tf = __import__('tensorflow')",
        "import importlib\ntf = importlib.import_module('tensorflow')",
    ],
)
def test_what_is_set_after_the_first_import_does_nothing_in_plain_python_either(imports):
    assert found(f"import os\n{imports}\nos.environ['{LEVEL}'] = '3'") == {}


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['{}'] = str(3)",
        "os.environ['{}'] += '3'",
        "if x:\n    os.environ['{}'] = '3'",
        "try:\n    os.environ['{}'] = '3'\nfinally:\n    pass",
        "try:\n    pass\nexcept OSError:\n    os.environ['{}'] = '3'",
        "for i in range(3):\n    os.environ['{}'] = '3'",
    ],
)
def test_values_that_only_the_run_can_tell_are_unknown(line):
    assert found(f"import os\n{line.format(LEVEL)}\nimport keras") == {LEVEL: UNKNOWN}


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['TF_CONFIG'] = '{}'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "os.environ['TF_NUM_INTRAOP_THREADS'] = '1'",
        "os.environ['XLA_FLAGS'] = '--xla_dump_to=/tmp'",  # read at the first operation
        "os.environ['PYTHONHASHSEED'] = '0'",
        "os.environ['KERAS_BACKEND'] = 'tensorflow'",
        "os.environ['TF_USE_LEGACY_KERAS'] = '0'",
        "def f():\n    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'",
        "environ = {}\nenviron['TF_CPP_MIN_LOG_LEVEL'] = '3'",
        "os.putenv('KERAS_BACKEND', 'jax')",
        "os.environ.setdefault('OMP_NUM_THREADS', '2')",
        "if x:\n    os.environ['OMP_NUM_THREADS'] = '1'",
    ],
)
def test_what_changes_nothing_for_the_import_is_not_found(line):
    assert found(f"import os\n{line}\nimport tensorflow", OMP_NUM_THREADS="1") == {}


def test_a_variable_that_a_program_removes_is_found():
    for line in ("del os.environ['KERAS_BACKEND']", "old = os.environ.pop('KERAS_BACKEND', None)"):
        assert found(f"import os\n{line}\nimport keras", KERAS_BACKEND="jax") == {"KERAS_BACKEND": None}
        assert found(f"import os\n{line}\nimport keras") == {}


def test_the_users_options_come_before_what_the_program_says():
    wanted = {"TF_USE_LEGACY_KERAS": "1", LEVEL: "3", "OMP_NUM_THREADS": UNKNOWN}
    obeyed = obey(TaskSettings(env={LEVEL: "1"}), wanted, None)
    assert (obeyed.keras, dict(obeyed.early)) == (2, {})
    obeyed = obey(TaskSettings(), wanted, 3)
    assert (obeyed.keras, dict(obeyed.early)) == (3, {LEVEL: "3"})
    obeyed = obey(TaskSettings(keras=2), {"TF_USE_LEGACY_KERAS": "0"}, 2)
    assert (obeyed.keras, dict(obeyed.early)) == (2, {})
    obeyed = obey(TaskSettings(), {"TF_USE_LEGACY_KERAS": None}, None)
    assert (obeyed.keras, dict(obeyed.early)) == (3, {"TF_USE_LEGACY_KERAS": None})


def test_a_variable_is_told_once_with_the_option_that_sets_it():
    told = set()
    wanted = {"TF_USE_LEGACY_KERAS": "1", LEVEL: "3", "KERAS_HOME": "a b", "OMP_NUM_THREADS": UNKNOWN}
    options = [text.rpartition("  run ")[2] for text in tell(wanted, "run {}", told)]
    assert options == [
        "--keras 2",
        f"--env {LEVEL}=3",
        "--env KERAS_HOME='a b'",
        "--env OMP_NUM_THREADS=VALUE",
    ]
    assert list(tell(wanted, "run {}", told)) == []


def test_modules_and_folders_are_read_in_the_order_in_which_they_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "pack" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("import os\nos.environ['KERAS_HOME'] = 'a'\n")
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text(f"import os\nos.environ['{LEVEL}'] = '3'\nimport keras\n")
    (tmp_path / "pack" / "__main__.py").write_text("import keras\n")
    both = {"KERAS_HOME": "a", LEVEL: "3"}
    assert of_script("pack.inner.mod", True, {}) == both
    assert of_script("pack", True, {}) == {"KERAS_HOME": "a"}
    assert of_script("pack", False, {}) == {}
    assert of_script(str(package / "mod.py"), False, {}) == {LEVEL: "3"}
    for other in ("json.tool", "no_such_module", "sys"):
        assert of_script(other, True, {}) == {}
    (tmp_path / "bad.py").write_bytes(b"os.environ['" + LEVEL.encode() + b"'] = '\xff'")
    assert of_script("bad.py", False, {}) == of_script("gone.py", False, {}) == {}


def test_neither_tensorflow_nor_the_program_is_imported():
    code = "import sys; from tfmagic.features.early_variables import kernel; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert find(ast.parse("raise SystemExit\n"), {}) == {}
