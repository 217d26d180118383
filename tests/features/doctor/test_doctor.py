"""The doctor's findings in software and settings, and when it prints them."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from doctoring import NOTEBOOK, TERMINAL, Runner, case, install

from tfmagic.backends import launcher_client
from tfmagic.clusters.launch.task_settings import TaskSettings
from tfmagic.errors import LaunchError
from tfmagic.features.doctor import checks, findings, software
from tfmagic.features.doctor.findings import Finding, Severity
from tfmagic.system import advice


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Make these packages the only ones that are installed."""

    def put(requires=None, **versions):
        monkeypatch.setattr(sys, "path", [install(tmp_path / "site", requires, **versions)])

    return put


@pytest.fixture(autouse=True)
def in_a_notebook():
    """Let the doctor advise what helps in a notebook."""
    advice.set_front_end(advice.FrontEnd.NOTEBOOK)
    yield
    advice.set_front_end(None)


def one(findings):
    (found,) = findings
    return found


# ---- Python and TensorFlow ----------------------------------------------------------------------


def test_this_python_is_fine(monkeypatch):
    assert one(software.python(case())).severity is Severity.FINE


@pytest.mark.parametrize("error", [OSError(38, "Function not implemented"), PermissionError(1, "no")])
def test_a_system_that_refuses_pidfds_is_named(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(software.os, "pidfd_open", refuse)
    assert "seccomp" in one(software.python(case())).advice


@pytest.mark.parametrize(("flags", "count"), [("fpu sse4_2 avx avx2", 0), ("fpu sse4_2", 1)])
def test_a_processor_without_avx_is_named(tmp_path, monkeypatch, flags, count):
    monkeypatch.setattr(software.platform, "machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    assert len(list(software.processor(case(), cpuinfo))) == count


def test_the_installed_tensorflow_is_fine():
    assert one(software.tensorflow(case())).severity is Severity.FINE


def test_no_tensorflow_is_trouble(only, monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    only()
    assert one(software.tensorflow(case())).advice == "pip install tensorflow"


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow_cpu", "tf_nightly"])
def test_an_old_tensorflow_of_any_name_is_trouble(only, name):
    only(**{name: "2.15.1"})
    found = one(software.tensorflow(case()))
    assert found.severity is Severity.TROUBLE
    assert found.advice.endswith(f"pip install -U {name.replace('_', '-')}")


@pytest.mark.parametrize("version", ["2.16.0", "2.16rc1", "2.22.0.dev20261101", "3.0"])
def test_a_tensorflow_that_is_new_enough_is_fine(only, version):
    only(tf_nightly=version)
    assert one(software.tensorflow(case())).severity is Severity.FINE


def test_two_tensorflows_at_once_are_noted(only):
    only(tensorflow="2.21.0", tensorflow_cpu="2.20.0")
    found = one(software.tensorflow(case()))
    assert found.severity is Severity.NOTE
    assert "pip uninstall -y tensorflow tensorflow-cpu && pip install tensorflow" in found.advice


def test_a_protobuf_that_tensorflow_does_not_work_with_is_trouble(only):
    wants = ["protobuf<8.0.0,>=6.31.1", "keras>=3.12.0", 'keras<1; extra == "old"', "wrapt>=99"]
    only({"tensorflow": wants}, tensorflow="2.21.0", protobuf="3.20.3", keras="3.12.0")
    fine, found = software.tensorflow(case())
    assert found.what == "protobuf 3.20.3"
    assert found.advice.endswith("pip install 'protobuf<8.0.0,>=6.31.1'")


def test_a_missing_partner_is_trouble(only):
    only({"tensorflow": ["numpy>=1.26.0"]}, tensorflow="2.21.0")
    assert [f.what for f in software.tensorflow(case())] == ["tensorflow 2.21.0", "numpy is missing"]


@pytest.mark.parametrize(
    ("version", "fits"),
    [("6.31.1", True), ("7.99", True), ("8.0.0", False), ("6.31", False), ("8.0rc1", False)],
)
def test_bounds_of_versions(only, version, fits):
    only({"tensorflow": ["protobuf<8.0.0,>=6.31.1"]}, tensorflow="2.21.0", protobuf=version)
    assert len(list(software.tensorflow(case()))) == (1 if fits else 2)


# ---- Keras ---------------------------------------------------------------------------------------


def test_the_repair_of_keras_is_shown_and_its_absence_is_a_note(only):
    only(keras="3.16.0")
    assert "repaired in the tasks" in one(software.keras(case())).what
    found = one(software.keras(case(task_settings=TaskSettings(keras_fix=False))))
    assert found.severity is Severity.NOTE and "--keras 2" in found.advice


def test_two_builds_of_keras_overwrite_each_other(only):
    only(keras="3.15.1", keras_nightly="3.16.0.dev1")
    found = one(software.keras(case()))
    assert found.what == "keras 3.15.1 and keras-nightly 3.16.0.dev1" and "pip uninstall" in found.advice


@pytest.mark.parametrize(("version", "count"), [("3.16.0.dev1", 0), ("3.17.0", 1), ("3.2", 1)])
def test_a_version_that_tfmagic_was_not_tested_with_is_a_note(only, version, count):
    only(
        {"tfmagic": ["keras<3.17,>=3.10", "msgspec>=0.18", 'ray>=2; extra == "ray"']},
        tfmagic="0.1",
        keras=version,
    )
    found = list(software.tried_versions(case()))
    assert [(f.what, f.severity) for f in found] == [(f"keras {version}", Severity.NOTE)] * count


def test_keras_2_needs_tf_keras_of_the_same_tensorflow(only, monkeypatch, tmp_path):
    only(tensorflow="2.21.0", keras="3.12.0")
    found = one(software.keras(case(task_settings=TaskSettings(keras=2))))
    assert (found.severity, found.what) == (Severity.TROUBLE, "tf_keras is missing")
    assert 'pip install "tf_keras==2.21.*"' in found.advice
    install(tmp_path / "other", tf_keras="2.20.1")
    sys.path.append(str(tmp_path / "other"))
    assert one(software.keras(case(task_settings=TaskSettings(keras=2)))).severity is Severity.NOTE


def test_tf_keras_of_this_environment_is_fine():
    assert one(software.keras(case(task_settings=TaskSettings(keras=2)))).severity is Severity.FINE


def test_legacy_keras_by_the_environment_is_named(monkeypatch, only):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    found = one(software.keras(case()))
    assert found.severity is Severity.NOTE and "TF_USE_LEGACY_KERAS" in found.advice
    only(keras="3.12.0")
    assert one(software.keras(case())).severity is Severity.TROUBLE


def test_another_keras_backend_is_trouble_wherever_it_is_chosen(monkeypatch, tmp_path, only):
    only(keras="3.12.0")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert len(list(software.keras(case()))) == 1
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert "keras.json" in list(software.keras(case()))[1].what
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert len(list(software.keras(case()))) == 1
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert list(software.keras(case()))[1].severity is Severity.TROUBLE
    assert (
        len(list(software.keras(case(task_settings=TaskSettings(env={"KERAS_BACKEND": "tensorflow"}))))) == 1
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"backend": "tensorflow"}'])
def test_a_configuration_of_keras_that_chooses_nothing_is_silent(tmp_path, monkeypatch, text):
    (tmp_path / "keras.json").write_text(text)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert all(f.severity is Severity.FINE for f in software.keras(case()))


# ---- files that hide modules ---------------------------------------------------------------------


def test_a_file_that_hides_a_package_or_a_module_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for name in ("train.py", "antigravity.py", "queue.txt"):
        (tmp_path / name).touch()
    assert list(software.hidden_modules(case())) == []
    for name in ("queue.py", "keras.py"):
        (tmp_path / name).touch()
    found = {f.what for f in software.hidden_modules(case())}
    assert found == {
        f"{tmp_path}/keras.py hides the package keras",
        f"{tmp_path}/queue.py hides Python's own module queue",
    }


def test_a_start_speaks_of_the_file_that_makes_it_fail_and_its_line_mends_it(
    notebook, monkeypatch, capsys, tmp_path
):
    (tmp_path / "keras.py").write_text("model = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    launcher_client.close_idle()  # a launcher that runs has imported the real one
    with pytest.raises(LaunchError):
        notebook.run("%tfcluster start --workers 1")
    said = capsys.readouterr().err
    assert f"{tmp_path}/keras.py hides the package keras" in said
    subprocess.run(said.partition("!")[2], shell=True, check=True)
    notebook.run("%tfcluster start --workers 1")
    assert capsys.readouterr().err == ""


def test_a_folder_on_the_path_that_is_not_there_is_no_finding(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/nowhere", "/nowhere/x.zip", *sys.path])
    assert list(software.hidden_modules(case())) == []


# ---- front end -----------------------------------------------------------------------------------


def test_a_present_kernel_needs_nothing():
    assert one(software.front_end(case())).severity is Severity.FINE


def test_a_terminal_needs_no_panels(only):
    only()
    assert "terminal" in one(software.front_end(case(TERMINAL))).what


def test_an_older_ipykernel_has_everything_but_live_buttons(only):
    only(ipykernel="6.29.5", anywidget="0.9.13", ipywidgets="8.1.5")
    found = one(software.front_end(case()))
    assert found.severity is Severity.NOTE
    assert "buttons of a panel work only after the cell" in found.advice
    assert 'pip install -U "ipykernel>=7.4"' in found.advice


def test_widgets_that_are_missing_are_trouble_and_old_ones_noted(only):
    only(ipykernel="7.4.0", ipywidgets="7.7.2")
    old, missing, _ = software.front_end(case())
    assert (old.severity, old.what) == (Severity.NOTE, "ipywidgets 7.7.2")
    assert (missing.severity, missing.what) == (Severity.TROUBLE, "anywidget is missing")
    assert 'pip install -U "anywidget>=0.9.13"' in missing.advice


def test_autoawait_that_is_off_is_named():
    off = SimpleNamespace(kernel=object(), autoawait=False, loop_runner=Runner())
    assert "%autoawait asyncio" in one(software.front_end(case(off))).advice


# ---- settings ------------------------------------------------------------------------------------


def test_the_presets_are_fine():
    assert one(software.timeouts(case())).severity is Severity.FINE


@pytest.mark.parametrize(
    ("given", "severity", "mend"),
    [
        ({"start_timeout_s": 0.0}, Severity.TROUBLE, "%config TFCluster.start_timeout_s = 120"),
        ({"start_timeout_s": 5.0}, Severity.NOTE, "%config TFCluster.start_timeout_s = 120"),
        ({"heartbeat_timeout_s": 0.0}, Severity.NOTE, "%config TFCluster.heartbeat_timeout_s = 3"),
        ({"heartbeat_timeout_s": 0.5}, Severity.NOTE, "%config TFCluster.heartbeat_timeout_s = 3"),
        ({"failure_grace_s": -1.0}, Severity.NOTE, "%config TFCluster.failure_grace_s = 3.0"),
        (
            {"interrupt_grace_s": 0.0, "cancel_grace_s": 0.0, "abort_grace_s": 0.0},
            Severity.NOTE,
            "%config TFCluster.abort_grace_s = 0.8",
        ),
    ],
)
def test_time_outs_that_make_no_sense_are_named(given, severity, mend):
    found = one(software.timeouts(case(settings=given)))
    assert found.severity is severity and mend in found.advice


def test_a_tf_config_of_the_notebook_is_noted(monkeypatch):
    assert list(software.tf_config(case())) == []
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert "each task gets its own" in one(software.tf_config(case())).advice


# ---- the whole -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", [TERMINAL, NOTEBOOK])
def test_the_findings_come_in_order(shell):
    words = [f.what.split()[0] for f in checks.examine(case(shell))]
    assert words[:3] == ["Python", "tensorflow", "keras"]
    assert words.index("memory:") < words.index("network:") < words.index("state") < words.index("time-outs:")


def test_a_finding_reads_as_lines():
    fine, note = Finding("cores: 2"), Finding("cores: 2", "do this", Severity.NOTE)
    assert (str(fine), str(note)) == ("✓ cores: 2", "! cores: 2\n    do this")


def test_here_is_no_trouble():
    assert checks.troubles(case()) == []


def test_only_the_start_reports_what_it_refuses(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TFMAGIC_STATE_DIR", str(tmp_path / "file"))
    huge = case(workers=20_000)
    assert any(f.refused_by_start for f in checks.examine(huge))
    told = " ".join(f.what for f in checks.troubles(huge))
    assert "memory: " not in told and "state folder" not in told


def test_a_check_that_fails_costs_only_itself(monkeypatch):
    def gpus(case):
        yield Finding("one")
        raise RuntimeError("a strange machine")

    monkeypatch.setattr(checks, "_CHECKS", ((gpus, (False,), True), (software.timeouts, (False,), True)))
    said = [f.what for f in checks.examine(case())]
    assert said[0] == "one" and "a strange machine" in said[1] and said[2].startswith("time-outs")
    assert checks.troubles(case()) == []


def test_a_check_imports_nothing_heavy():
    code = (
        "import sys; from doctoring import case; from tfmagic.features.doctor import checks; checks.examine(case()); "
        "print({m.partition('.')[0] for m in sys.modules} & {'tensorflow', 'keras', 'tf_keras', 'numpy'})"
    )
    from doctoring import ROOT

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "tests" / "support",
    )
    assert done.stdout.strip() == "set()"


# ---- in the notebook -----------------------------------------------------------------------------


def test_the_doctor_takes_a_shape(notebook):
    said = notebook.run("%tfcluster doctor --workers 3000 --chief")
    assert "✕ memory" in said and "Up to" in said and "tasks fit" in said
    assert "a cluster of 1 chief, 3000 workers needs about" in said
    assert "✕" not in notebook.run("%tfcluster doctor --workers 2")
    assert "default" not in notebook.magics.clusters


def test_of_a_running_cluster_the_doctor_asks_for_no_further_room(notebook):
    notebook.run("%tfcluster start --workers 1")
    said = notebook.run("%tfcluster doctor")
    assert "begin with" not in said and "✕" not in said
    assert "1 worker take" in notebook.run("%tfcluster doctor --workers 1")


PROXY = "http://127.0.0.1:9"  # the discard port, where no process listens
STRATEGY = """%%tfcluster --timeout 6 --view quiet --out sums
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
float(strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None))
"""


def test_tasks_meet_past_a_proxy_that_the_notebook_has(notebook, monkeypatch, capsys):
    for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", PROXY)
    notebook.run("%tfcluster start --workers 2")
    assert "proxy" not in capsys.readouterr().err
    notebook.run(STRATEGY)
    assert set(notebook.ns["sums"].values()) == {2.0}
    assert "http_proxy is set: tasks connect to each other past it" in notebook.run("%tfcluster doctor")


def test_a_start_without_trouble_prints_no_finding(notebook, capsys):
    notebook.run("%tfcluster start --workers 1")
    assert capsys.readouterr().err == ""


def test_a_doctor_that_fails_stops_no_start(notebook, capsys, monkeypatch):
    def broken(case):
        raise RuntimeError("a strange machine")

    monkeypatch.setattr(checks, "_CHECKS", ((broken, (False,), True),))
    monkeypatch.setattr(findings, "case_of", broken)
    notebook.run("%tfcluster start --workers 1")
    assert notebook.cluster().running
