"""The exported program and its files: without a cluster, under the variables of other systems."""

import json
import os
import re
import runpy
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import kubernetes_validate
import numpy as np
import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from kubeflow_trainer_api import models

from tfmagic.errors import TfmagicError
from tfmagic.features.exports import folder as export_folder
from tfmagic.features.exports.kernel import RanCell
from tfmagic.features.exports.program import TEMPLATES, Setup, choose, write_program
from tfmagic.protocol.cluster_spec import ClusterShape

tf_config = runpy.run_path(str(TEMPLATES / "tf_config.py"))["tf_config"]
SHAPES = {
    "workers": ClusterShape(3),
    "chief": ClusterShape(2, chief=True, evaluator=True),
    "ps": ClusterShape(2, ps=1),
}


def cell(number, text, tasks=("worker-0", "worker-1", "worker-2"), succeeded=True):
    source = TransformerManager().transform_cell(text)
    return RanCell(number, number, source, not text.endswith(";"), tasks, succeeded)


def program(*cells, shape=SHAPES["workers"], environ=(), **names):
    return write_program(cells, [], names, Setup("cells.", shape, dict(environ), True))


def write(path, shape, *cells, names=()):
    cells = cells or [cell(1, "print('ran')", shape.cell_tasks and tuple(t.name for t in shape.cell_tasks))]
    export_folder.write_folder(path, program(*cells, shape=shape, **dict(names)), shape)
    return path


def body(found):
    """Return what follows after the set-up, as lines."""
    return found.text[found.text.index("# cell ") :].splitlines()


def run(path, **environ):
    words = [sys.executable, path / "main.py"]
    return subprocess.run(words, env=environ, capture_output=True, text=True, cwd=path.parent)


def config_of(done):
    (line,) = [line for line in done.stdout.splitlines() if "TF_CONFIG: " in line]
    return json.loads(line.partition("TF_CONFIG: ")[2])


# -- tf_config ---------------------------------------------------------------------------------------


def test_a_tf_config_of_the_platform_is_taken_with_all_that_it_has():
    given = {
        "cluster": {"chief": ["a:1"], "worker": ["b:1"]},
        "task": {"type": "worker", "index": 0, "trial": "1"},
        "environment": "cloud",
    }
    slurm = {"SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0"}
    assert tf_config({}, {"TF_CONFIG": json.dumps(given), **slurm}) == given


def test_the_node_list_of_slurm_keeps_its_order_and_its_zeros():
    environ = {
        "SLURM_STEP_NODELIST": "node[9-10],rack[01-02]n[7,11],login",
        "SLURM_STEP_TASKS_PER_NODE": "2,1(x5),3",
        "SLURM_PROCID": "4",
        "SLURM_JOB_ID": "24001",
    }
    hosts = ["node9", "node9", "node10", "rack01n7", "rack01n11", "rack02n7", "rack02n11", *["login"] * 3]
    environ["SLURM_STEP_TASKS_PER_NODE"] = "2,1(x5),3"
    found = tf_config({}, environ)
    assert [address.split(":")[0] for address in found["cluster"]["worker"]] == hosts
    assert found["cluster"]["worker"][:3] == ["node9:20001", "node9:20002", "node10:20001"]
    assert found["task"] == {"type": "worker", "index": 4}


@pytest.mark.parametrize(
    ("rank", "task"), [(0, ("chief", 0)), (2, ("worker", 1)), (3, ("ps", 0)), (4, ("evaluator", 0))]
)
def test_skypilots_nodes_get_roles_by_rank(rank, task):
    environ = {
        "SKYPILOT_NODE_IPS": "10.0.0.9\n10.0.0.10\n10.0.0.2\n10.0.0.3\n10.0.0.4",
        "SKYPILOT_NODE_RANK": str(rank),
    }
    found = tf_config({"chief": 1, "ps": 1, "evaluator": 1}, environ)
    assert (found["task"]["type"], found["task"]["index"]) == task
    workers = ["10.0.0.10:2222", "10.0.0.2:2222"]
    assert found["cluster"] == {"chief": ["10.0.0.9:2222"], "worker": workers, "ps": ["10.0.0.3:2222"]}


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({}, "TF_CONFIG is not set, and there are no variables of"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG is not set"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "use  srun python main.py"),
        ({"JOB_COMPLETION_INDEX": "0"}, "does not set TASKS and JOB_NAME"),
        ({"SKYPILOT_NODE_IPS": "1.2.3.4", "SKYPILOT_NODE_RANK": "0"}, "1 processes are too few"),
    ],
)
def test_a_sentence_says_what_is_missing(environ, sentence):
    with pytest.raises(SystemExit, match=sentence):
        tf_config({"ps": 1}, environ)


# -- main.py -----------------------------------------------------------------------------------------


def test_magics_become_python_or_are_named():
    found = program(
        cell(1, "\n%env GREETING=hello\n%matplotlib inline\nx = 'é'; y = 2\n%time x + str(y)"),
        cell(2, "%%time\nz = 1\nprint(z)"),
        cell(3, "if z:\n    !echo shell\n    %pip install this\n!echo {z}\nfiles = !ls"),
    )
    assert found.left_out == (
        "%matplotlib inline of cell 1",
        "%pip install this of cell 3",
        "!echo {z} of cell 3",
    )
    assert body(found) == [
        "# cell 1",
        "os.environ['GREETING'] = 'hello'",
        "pass  # left out: %matplotlib inline",
        "x = 'é'; y = 2",
        "sys.displayhook(x + str(y))",
        "",
        "# cell 2",
        "z = 1",
        "print(z)",
        "",
        "# cell 3",
        "if z:",
        "    subprocess.run('echo shell', shell=True)",
        "    pass  # left out: %pip install this",
        "pass  # left out: !echo {z}",
        "files = subprocess.getoutput('ls').splitlines()",
    ]


@pytest.mark.parametrize("text", ["1, 2", "(1, 2)", "*[1], 2", "(1), 2"])
def test_a_tuple_at_the_end_is_shown_as_one_value(tmp_path, text):
    path = write(tmp_path / "x", SHAPES["workers"], cell(1, text))
    config = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    assert run(path, TF_CONFIG=json.dumps(config)).stdout.splitlines()[1:] == ["(1, 2)"]


def test_imports_come_first_unless_a_cell_changes_what_they_see():
    found = program(
        cell(1, "import json as j  # a comment\nfrom __future__ import annotations\nx = 1"),
        cell(2, "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nimport shutil"),
        environ={"OMP_NUM_THREADS": "1"},
    )
    lines = found.text.splitlines()
    assert lines.index("from __future__ import annotations") < lines.index("import json as j")
    assert lines.index("import json as j") < lines.index("task_setup.begin()  # sets TF_CONFIG")
    first = next(n for n, line in enumerate(lines) if line.startswith("os.environ.update("))
    assert first < lines.index("import json as j")
    assert body(found)[-3:] == ["# cell 2", "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'", "import shutil"]


def test_a_cell_of_some_tasks_runs_there_only(tmp_path):
    text = "w = '''a\n  b'''\nw"
    path = write(tmp_path / "x", SHAPES["workers"], cell(1, text, ("worker-1",)), cell(2, "print('all')"))
    spec = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}}
    shown = []
    for index in (0, 1):
        config = {**spec, "task": {"type": "worker", "index": index}}
        shown.append(run(path, TF_CONFIG=json.dumps(config)).stdout.splitlines()[1:])
    assert shown == [["all"], [r"'a\n  b'", "all"]]


def test_an_evaluator_runs_only_the_cells_that_name_it(tmp_path):
    cells = [
        cell(1, "print('trained')", ("chief-0", "worker-0", "worker-1")),
        cell(2, "print('judged')", ("evaluator-0",)),
    ]
    path = write(tmp_path / "x", SHAPES["chief"], *cells)
    shown = {}
    for kind, index in (("evaluator", 0), ("worker", 5)):  # more workers than in the notebook
        config = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": kind, "index": index}}
        shown[kind] = run(path, TF_CONFIG=json.dumps(config)).stdout.splitlines()[1:]
    assert shown == {"evaluator": ["judged"], "worker": ["trained"]}


def test_notebook_names_come_as_code_or_data(tmp_path, monkeypatch):
    (tmp_path / "mine_to_export.py").write_text("def twice(x): return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_to_export

    main = {
        "__name__": "__main__",
        "RATE": 0.5,
        "zero": 0,
        "SIZES": [1, (2, None)],
        "np": np,
        "helper": mine_to_export,
    }
    main |= {
        "array": np.arange(3.0),
        "number": np.float32(1.5),
        "big": list(range(1000)),
        "path": Path("a/b"),
    }
    source = (
        "import functools\n\ndef base(x):\n    return x * RATE + zero\n\n"
        "class Model:\n    size = SIZES[1][0]\n    def call(self): return base(array).sum()\n\n"
        "@functools.lru_cache\ndef call(): return Model().call()\n\nother = base\nhalf = lambda x: x / 2\n"
    )
    main["In"] = ["", source]
    import linecache

    linecache.cache["cell-of-export"] = (len(source), None, source.splitlines(True), "cell-of-export")
    exec(compile(source, "cell-of-export", "exec"), main)
    text = "print(call(), other(4), half(3), helper.twice(4), len(big), path, number, SIZES)\nzero\nif 0: undefined"
    path = write(tmp_path / "out", SHAPES["workers"], cell(1, text), names=main)
    config = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    done = run(path, TF_CONFIG=json.dumps(config))
    assert done.stderr == ""
    assert done.stdout.splitlines()[1] == "1.5 2.0 1.5 8 1000 a/b 1.5 [1, (2, None)]"
    assert (path / "main.py").read_text().splitlines().count("zero = 0") == 1
    beside = {"data.npz", "data.pickle", "mine_to_export.py", "main.py"}
    assert beside <= {file.name for file in path.iterdir()}


def test_an_object_of_a_class_of_the_notebook_comes_after_the_class(tmp_path):
    words = [sys.executable, "-c", EXPORTS_AN_OBJECT, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout + done.stderr == "", "the object is not made again"
    config = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    done = run(tmp_path, TF_CONFIG=json.dumps(config))
    assert done.stderr == ""
    assert {"read", "Conf(rate=0.5, kind=<Kind.A: 1>)"} <= set(done.stdout.splitlines())


EXPORTS_AN_OBJECT = r"""
import sys, dataclasses, enum
from pathlib import Path
from tfmagic.features.exports.kernel import RanCell
from tfmagic.features.exports.folder import write_folder
from tfmagic.features.exports.program import Setup, write_program
from tfmagic.protocol.cluster_spec import ClusterShape
source = (
    "class Kind: replaced = True\n"
    "class Kind(enum.Enum):\n    A = 1\n"
    "@dataclasses.dataclass\nclass Conf:\n    rate: float\n    kind: Kind\n"
    "    def __setstate__(self, state):\n        print('read')\n        vars(self).update(state)\n"
)
exec(source)
In, conf = ["", source], Conf(0.5, Kind.A)
setup = Setup("cells.", ClusterShape(1), {}, True)
ran = RanCell(1, 1, "print(conf)", False, ("worker-0",), True)
write_folder(Path(sys.argv[1]), write_program([ran], [], globals(), setup), ClusterShape(1))
"""


def test_a_name_that_the_notebook_has_no_more_is_named():
    assert program(cell(1, "print(gone)")).left_out == ("gone, which the notebook does not have now",)


def test_variables_that_no_program_can_have_are_named(tmp_path):
    def make():
        hidden = 1

        def inner():
            return hidden

        inner.__module__ = "__main__"
        return inner

    with pytest.raises(
        TfmagicError, match="(?s)nothing was written:\n  inside: .*uses its hidden\n  lock: TypeError"
    ):
        import threading

        program(cell(1, "inside(), lock"), inside=make(), lock=threading.Lock())
    with pytest.raises(TfmagicError, match="the cells are no program: 'await' outside function in cell 1; "):
        program(cell(1, "await x"), x=1)
    with pytest.raises(TfmagicError, match="get_ipython: a program has no notebook"):
        program(cell(1, "shell = get_ipython()"))


def test_failed_cells_are_left_out_and_cells_can_be_chosen():
    ran = [cell(7, "c"), cell(3, "a"), cell(4, "b", succeeded=False)]  # a detached one has ended first
    chosen, others = choose(ran, None)
    assert [c.prompt for c in chosen] == [3, 7] and [c.prompt for c in others] == [4]
    setup = Setup("cells.", SHAPES["workers"], {}, True)
    assert write_program(chosen, others, {"a": 1, "c": 2}, setup).left_out == ("cell 4, which failed",)
    chosen, others = choose(ran, range(4, 7))
    assert [c.prompt for c in chosen] == [4] and [c.prompt for c in others] == [3, 7]
    with pytest.raises(TfmagicError, match=r"it has run 3, 4 \(failed\), 7"):
        choose(ran, {5})
    with pytest.raises(TfmagicError, match="it has run 4"):
        choose(ran[2:], None)


def test_a_variable_of_a_cell_that_is_left_out_is_named():
    first, second = cell(3, "model = 1"), cell(5, "model")
    with pytest.raises(TfmagicError, match="model: cell 3 makes it, and is left out"):
        write_program([second], [first], {"model": 2}, Setup("cells.", SHAPES["workers"], {}, True))
    assert body(write_program([first], [second], {}, Setup("cells.", SHAPES["workers"], {}, True)))


def test_files_of_the_users_own_are_kept(tmp_path, monkeypatch):
    """They are all named, nothing is written, and no link is followed."""
    (tmp_path / "export_helper").mkdir()
    helper = tmp_path / "export_helper" / "__init__.py"
    helper.write_text("TEN = 10\n")
    (tmp_path / "elsewhere").write_text("mine")
    own = ("main.py", "Dockerfile", "requirements.txt", "compose.yaml")
    for name in own:
        (tmp_path / name).write_text("mine")
    (tmp_path / "run_local.sh").symlink_to("elsewhere")
    (tmp_path / "job.yaml").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    monkeypatch.syspath_prepend(tmp_path)
    imports = cell(1, "import export_helper\nexport_helper.TEN", ("worker-0", "worker-1", "worker-2"))
    with pytest.raises(TfmagicError, match="nothing was written") as refused:
        write(tmp_path, SHAPES["workers"], imports)
    assert all(name in str(refused.value) for name in (*own, "run_local.sh", "job.yaml"))
    assert "job.sbatch" not in str(refused.value) and sorted(tmp_path.iterdir()) == before
    assert {(tmp_path / name).read_text() for name in (*own, "elsewhere")} == {"mine"}
    for name in (*own, "run_local.sh", "job.yaml"):
        (tmp_path / name).unlink()
    write(tmp_path, SHAPES["workers"], imports)
    write(tmp_path, SHAPES["chief"], imports)
    assert helper.read_text() == "TEN = 10\n"
    (tmp_path / "job.sbatch").write_text("changed")
    with pytest.raises(TfmagicError, match=r"has job\.sbatch, "):
        write(tmp_path, SHAPES["workers"], imports)
    with pytest.raises(TfmagicError, match="is a file"):
        export_folder.check_folder(tmp_path / "main.py")


def test_modules_are_not_copied_through_a_linked_folder(tmp_path, monkeypatch):
    (tmp_path / "export_linked").mkdir()
    (tmp_path / "export_linked" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "export_linked").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    with pytest.raises(TfmagicError, match="export_linked/, "):
        write(tmp_path / "out", SHAPES["workers"], cell(1, "import export_linked"))
    assert not list((tmp_path / "other").iterdir())


# -- the files for other systems ---------------------------------------------------------------------


def test_slurm_starts_twelve_hosts_in_the_order_of_the_node_list(tmp_path):
    """A fake srun starts what the script asks for, as Slurm would on node4 to node15."""
    path = write(tmp_path / "x", ClusterShape(11, chief=True), cell(1, "print('ran')", ALL_OF_SLURM))
    srun = tmp_path / "srun"
    srun.write_text(
        f"#!{sys.executable}\n"
        "import os, subprocess, sys\n"
        "words = sys.argv[sys.argv.index('python') + 1:]\n"
        "options = sys.argv[1 : sys.argv.index('python')]\n"
        "assert '--distribution=block' in options and '--kill-on-bad-exit=1' in options, options\n"
        "for rank in range(int(os.environ['SLURM_NTASKS'])):\n"
        "    step = {'SLURM_PROCID': str(rank), 'SLURM_STEP_NODELIST': 'node[4-15]',\n"
        "            'SLURM_STEP_TASKS_PER_NODE': '1(x12)'}\n"
        "    subprocess.run([sys.executable, *words], env={**os.environ, **step}, check=True)\n"
    )
    srun.chmod(0o755)
    script = (path / "job.sbatch").read_text()
    (count,) = [line.split("=")[1] for line in script.splitlines() if line.startswith("#SBATCH --ntasks=")]
    slurm = {"SLURM_NTASKS": count, "SLURM_JOB_ID": "12000", "SLURM_SUBMIT_DIR": str(path)}
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm}
    done = subprocess.run(["bash", path / "job.sbatch"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    configs = [
        json.loads(line.partition(": ")[2]) for line in done.stdout.splitlines() if "TF_CONFIG" in line
    ]
    cluster = {"chief": ["node4:20000"], "worker": [f"node{n}:20000" for n in range(5, 16)]}
    assert [config["cluster"] for config in configs] == [cluster] * 12
    tasks = [{"type": "chief", "index": 0}, *({"type": "worker", "index": n} for n in range(11))]
    assert [config["task"] for config in configs] == tasks
    assert done.stdout.count("\nran\n") == 12


ALL_OF_SLURM = ("chief-0", *(f"worker-{n}" for n in range(11)))


def pod_variables(container, labels):
    """Return the environment of a container as a kubelet makes it."""
    environ = {}
    for entry in container["env"]:
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        environ[entry["name"]] = labels[path.split("'")[1]] if path else entry["value"]
    return environ


def pods(documents, kind):
    """Yield host name and environment of each pod that a manifest makes."""
    found = {document["kind"]: document for document in documents}
    name = found[kind]["metadata"]["name"]
    if kind == "Job":
        service, spec = found["Service"], found["Job"]["spec"]
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
        assert service["spec"]["publishNotReadyAddresses"] is True and service["spec"]["clusterIP"] == "None"
        template, labels = spec["template"]["spec"], {"batch.kubernetes.io/job-name": name}
        for index in range(spec["completions"]):
            host = f"{name}-{index}.{template['subdomain']}"
            assert template["subdomain"] == service["metadata"]["name"]
            environ = pod_variables(template["containers"][0], labels)
            yield host, {**environ, "JOB_COMPLETION_INDEX": str(index)}
        return
    spec = found[kind]["spec"] if kind == "JobSet" else found["TrainingRuntime"]["spec"]["template"]["spec"]
    labels = {"jobset.sigs.k8s.io/jobset-name": name}
    for job in spec["replicatedJobs"]:
        inner = job["template"]["spec"]
        count = inner["completions"] if kind == "JobSet" else found["TrainJob"]["spec"]["trainer"]["numNodes"]
        for index in range(count):
            environ = pod_variables(inner["template"]["spec"]["containers"][0], labels)
            yield f"{name}-{job['name']}-0-{index}.{name}", {**environ, "JOB_COMPLETION_INDEX": str(index)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("file", "kind"), [("job.yaml", "Job"), ("jobset.yaml", "JobSet"), ("trainjob.yaml", "TrainJob")]
)
def test_pods_find_themselves_and_each_other(tmp_path, shape, file, kind):
    path = write(tmp_path / "My Digits", shape)
    documents = list(yaml.safe_load_all((path / file).read_text()))
    roles = {k: n for k in ("chief", "ps", "evaluator") if (n := sum(t.type == k for t in shape.tasks))}
    seen = []
    for host, environ in pods(documents, kind):
        found = tf_config(roles, environ)
        me = (found["task"]["type"], found["task"]["index"])
        seen.append(me)
        if me[0] != "evaluator":
            assert found["cluster"][me[0]][me[1]] == f"{host}:2222"
        assert "evaluator" not in found["cluster"]
    assert seen == [tuple(task) for task in shape.tasks]
    assert seen[0][0] == shape.leader.type  # which ends the job


def test_a_pod_runs_main_py(tmp_path):
    path = write(tmp_path / "x", SHAPES["workers"])
    documents = list(yaml.safe_load_all((path / "job.yaml").read_text()))
    host, environ = list(pods(documents, "Job"))[2]
    done = run(path, **environ)
    assert config_of(done)["task"] == {"type": "worker", "index": 2} and "ran" in done.stdout


def same(model, document):
    """Check that a model of an API knows each field of a document."""
    again = json.loads(model.from_dict(document).to_json())

    def check(given, found, place):
        if isinstance(given, dict):
            for key, value in given.items():
                assert key in found, f"{place}.{key} is not in the API"
                check(value, found[key], f"{place}.{key}")
        elif isinstance(given, list):
            assert len(given) == len(found), place
            for n, (value, other) in enumerate(zip(given, found, strict=True)):
                check(value, other, f"{place}[{n}]")

    check(document, again, document["kind"])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_files_are_valid_by_the_published_schemas(tmp_path, shape):
    path = write(tmp_path / "9 My Digits!", shape)
    loaded = {file.name: list(yaml.safe_load_all(file.read_text())) for file in path.glob("*.yaml")}
    schemas = Path(find_spec("check_jsonschema").origin).parent / "builtin_schemas" / "vendor"
    jsonschema.validate(loaded["compose.yaml"][0], json.loads((schemas / "compose-spec.json").read_text()))
    for document in loaded["job.yaml"]:
        kubernetes_validate.validate(document, "1.33", strict=True)
    policy, jobset = loaded["jobset.yaml"]
    kubernetes_validate.validate(policy, "1.33", strict=True)
    same(models.JobsetV1alpha2JobSet, jobset)
    same_policy, runtime, train_job = loaded["trainjob.yaml"]
    assert same_policy == policy
    same(models.TrainerV1alpha1TrainingRuntime, runtime)
    same(models.TrainerV1alpha1TrainJob, train_job)
    templates = [job["template"] for job in jobset["spec"]["replicatedJobs"]]
    templates += [job["template"] for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]]
    for template in templates:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": template["spec"]}
        kubernetes_validate.validate(job, "1.33", strict=True)


def test_rayjob_has_the_fields_of_kuberays_reference(tmp_path):
    """No registry has KubeRay's schema. The pods are validated as Kubernetes' own."""
    path = write(tmp_path / "x", SHAPES["ps"])
    (document,) = yaml.safe_load_all((path / "rayjob.yaml").read_text())
    spec = document["spec"]
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
    limits = {"shutdownAfterJobFinishes", "activeDeadlineSeconds", "ttlSecondsAfterFinished"}
    assert spec.keys() == {"entrypoint", "rayClusterSpec", *limits}
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert spec["rayClusterSpec"].keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] == group["maxReplicas"] == group["replicas"] == 4
    for template in (group["template"], spec["rayClusterSpec"]["headGroupSpec"]["template"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template}
        kubernetes_validate.validate(pod, "1.33", strict=True)
    from tfmagic.frontends.cli import parsers

    found = parsers.parse(spec["entrypoint"].split()[1:])
    assert (found.backend, found.workers, found.ps, found.chief) == ("ray", 2, 1, [True])


@pytest.mark.parametrize("file", ["job.yaml", "jobset.yaml", "trainjob.yaml", "rayjob.yaml"])
def test_a_job_has_limits_and_runs_as_an_ordinary_user(tmp_path, file):
    path = write(tmp_path / "x", SHAPES["ps"])
    documents = list(yaml.safe_load_all((path / file).read_text()))
    templates = list(found_in(documents, "containers"))
    for pod in templates:
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            mounts = {mount["mountPath"] for mount in container.get("volumeMounts", ())}
            assert file == "rayjob.yaml" or mounts == {"/data"} == {container["workingDir"]}
    assert templates and all(found["memory"] for found in found_in(documents, "memory"))
    assert list(found_in(documents, "limits")) and list(found_in(documents, "activeDeadlineSeconds"))
    assert list(found_in(documents, "ttlSecondsAfterFinished"))
    policies = [found for found in documents if found["kind"] == "NetworkPolicy"]
    assert bool(policies) == (file != "rayjob.yaml")
    for policy in policies:
        (rule,) = policy["spec"]["ingress"]
        assert rule == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}


def found_in(value, key):
    """Yield each mapping in a document that has this key."""
    if isinstance(value, dict):
        if key in value:
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from found_in(each, key)


@pytest.mark.parametrize(
    "file", ["compose.yaml", "job.yaml", "jobset.yaml", "trainjob.yaml", "rayjob.yaml", "job.sbatch"]
)
def test_a_file_says_that_the_port_has_no_password(tmp_path, file):
    text = (write(tmp_path / "x", SHAPES["workers"]) / file).read_text()
    assert re.search("password", text) and ("emptyDir" in text or "/data" in text or "writes" in text)


def test_slurm_asks_for_memory(tmp_path):
    assert (
        "#SBATCH --mem-per-cpu=2G\n" in (write(tmp_path / "x", SHAPES["workers"]) / "job.sbatch").read_text()
    )


def test_compose_has_a_service_for_each_task(tmp_path):
    path = write(tmp_path / "x", SHAPES["chief"])
    services = yaml.safe_load((path / "compose.yaml").read_text())["services"]
    assert list(services) == ["chief-0", "worker-0", "worker-1", "evaluator-0"]
    for name, service in services.items():
        config = json.loads(service["environment"]["TF_CONFIG"])
        assert f"{config['task']['type']}-{config['task']['index']}" == name
        cluster = {
            kind: found
            for kind, found in config["cluster"].items()
            if kind != name[:-2] or kind != "evaluator"
        }
        assert cluster == {"chief": ["chief-0:2222"], "worker": ["worker-0:2222", "worker-1:2222"]}
        assert service["init"] is True and service["stop_grace_period"] == "30s"
        assert (
            service["mem_limit"] and service["volumes"] == ["data:/data"] and service["cap_drop"] == ["ALL"]
        )
        assert "ports" not in service


def test_the_requirements_are_the_versions_in_use(tmp_path):
    from importlib.metadata import version

    path = write(tmp_path / "x", SHAPES["workers"], cell(1, "import yaml, json\nimport numpy as np"))
    wanted = {name: version(name) for name in ("keras", "numpy", "PyYAML", "tensorflow")}
    lines = (path / "requirements.txt").read_text().splitlines()[1:]
    assert dict(line.split("==") for line in lines) == wanted
    path = write(tmp_path / "y", SHAPES["workers"], cell(1, "model.fit(x)", ("worker-0",)))
    (wheel,) = path.glob("*.whl")
    assert f"./{wheel.name}\n" in (path / "requirements.txt").read_text()  # repairs fit of Keras 3


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("keras.callbacks.TensorBoard('tb')", "tensorboard"),
        ("tf.summary.scalar('loss', 1.0, 0)", "tensorboard"),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'", "tf_keras"),
        ("rows = pd.read_parquet('rows.parquet')", "pyarrow"),
        ("model.save('model.h5')", "h5py"),
        ("model.summary()", ""),
    ],
)
def test_the_requirements_have_what_is_used_without_an_import(tmp_path, monkeypatch, text, package):
    install(tmp_path, monkeypatch, "pyarrow", "")
    path = write(tmp_path / "x", SHAPES["workers"], cell(1, text, ("worker-0",)), names={"pd": 1, "model": 1})
    names = [line.split("==")[0] for line in (path / "requirements.txt").read_text().splitlines()[1:]]
    assert sorted(names) == sorted({"keras", "tensorflow"} | ({package} if package else set()))


def install(folder, monkeypatch, name, origin, version="1.0"):
    """Make a package that the program can import, as pip leaves it that has installed it from there."""
    site = folder / "lib" / "site-packages"
    (info := site / f"{name}-{version}.dist-info").mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n")
    (site / f"{name}.py").write_text("x = 1\n")
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "witch==1.0"),
        (
            {"url": "https://example.org/witch.git", "vcs_info": {"vcs": "git", "commit_id": "4f06708"}},
            "witch @ git+https://example.org/witch.git@4f06708",
        ),
        ({"url": "https://example.org/w.whl", "archive_info": {}}, "witch @ https://example.org/w.whl"),
        ({"url": "file:///croot/witch_1699/work", "dir_info": {}}, "witch==1.0"),  # of conda
        ({"url": "file://{here}", "dir_info": {"editable": True}}, ""),
        ({"url": "file://{here}", "dir_info": {}}, ""),
    ],
)
def test_a_package_is_named_as_an_installer_can_find_it(tmp_path, monkeypatch, origin, line):
    if origin:
        origin["url"] = origin["url"].replace("{here}", str(tmp_path))
    install(tmp_path, monkeypatch, "witch", origin, "1.0+cpu")
    found = program(cell(1, "import witch", ("worker-0",)))
    written = export_folder.write_folder(tmp_path / "x", found, SHAPES["workers"])
    lines = (tmp_path / "x" / "requirements.txt").read_text().splitlines()
    assert [each for each in lines if "witch" in each] == ([line] if line else [])
    missing = f"the package witch 1.0+cpu, which was installed from {tmp_path}"
    assert written.left_out == (() if line else (missing,))


def test_a_module_that_takes_the_name_of_the_set_up_is_refused(tmp_path, monkeypatch):
    (tmp_path / "task_setup.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TfmagicError, match="task_setup: .*rename your module"):
        write(tmp_path / "x", SHAPES["workers"], cell(1, "import task_setup"))


def test_main_py_begins_with_the_cells_and_has_no_machinery():
    found = program(cell(1, "import json\nprint(json)"), shape=SHAPES["ps"])
    lines = found.text.splitlines()
    assert len(lines[: lines.index("# cell 1")]) < 10 and "def " not in found.text
    assert "def tf_config" in found.setup and "def serve" in found.setup


def test_the_local_run_ends_with_the_task_that_fails(tmp_path):
    path = write(
        tmp_path / "x",
        SHAPES["workers"],
        cell(1, "raise SystemExit(7)", ("worker-1",)),
        cell(2, "import time; time.sleep(600)"),
    )
    assert (path / "run_local.sh").stat().st_mode & stat.S_IXUSR
    done = subprocess.run(
        [path / "run_local.sh"], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert done.returncode == 7 and "worker-1 ended with exit code 7" in done.stderr


# -- secrets -----------------------------------------------------------------------------------------

TYPED = "hunter2-typed"
HF = "hf_" + "a1B2" * 8


def test_secrets_are_read_from_the_environment_and_never_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HARBOUR_TOKEN", "s3cret-of-harbour")
    source = f"def login(user, token={HF!r}):\n    '''Log in.'''\n    return token[:3]\n"
    main = {"__name__": "__main__", "In": ["import getpass\nword = getpass.getpass()\npin = int(input())"]}
    main |= {"word": TYPED, "pin": 4711, "conf": {"user": "gretel", "key": "zq-1"}, "DB_PASS": b"oven"}
    main |= {"dsn": f"postgres://gretel:{TYPED}@host/rows", "HARBOUR": "s3cret-of-harbour", "size": 4711}
    import linecache

    linecache.cache["cell-of-secrets"] = (len(source), None, source.splitlines(True), "cell-of-secrets")
    exec(compile(source, "cell-of-secrets", "exec"), main)
    text = (
        "%env WANDB_API_KEY=abc-of-wandb\nprint(word, pin + 1, conf, DB_PASS, dsn, HARBOUR, size, login('me'))\n"
        f"!echo -H 'Authorization: Bearer {HF}'\nimport os; print(os.environ['SHOP_TOKEN'], os.environ['KIND'])"
    )
    environ = {"SHOP_TOKEN": "witch-1", "KIND": "cpu"}
    found = program(cell(1, text), environ=environ, **main)
    path = tmp_path / "out"
    written = export_folder.write_folder(path, found, SHAPES["workers"])
    assert path.stat().st_mode & 0o777 == 0o700
    assert {
        name: (path / name).stat().st_mode & 0o77
        for name in written.files
        if (path / name).stat().st_mode & 0o77
    } == {}
    values = {
        "WORD": TYPED, "PIN": "4711", "CONF_KEY": "zq-1", "DB_PASS": "oven", "HARBOUR_TOKEN": "s3cret-of-harbour",
        "TOKEN": HF, "WANDB_API_KEY": "abc-of-wandb", "SHOP_TOKEN": "witch-1",
    }  # fmt: skip
    assert [
        v for v in values.values() for f in path.iterdir() if v.encode() in f.read_bytes() and v != "4711"
    ] == []
    needed = {note.split()[3].rstrip(":") for note in found.left_out}
    assert {"WORD", "PIN", "DB_PASS", "HARBOUR_TOKEN", "WANDB_API_KEY", "SHOP_TOKEN", "DSN"} <= needed
    config = {
        "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
    }
    done = run(path, **config, SHOP_TOKEN="witch-1")
    missing = done.stderr
    assert (
        done.returncode == 1
        and missing.startswith("Set ")
        and "WORD" in missing
        and "SHOP_TOKEN" not in missing
    )
    given = {name: f"<{name}>" for name in needed} | {"PIN": "1"}
    shown = run(path, **config, **given).stdout
    assert "<WORD> 2 {'user': 'gretel', 'key': '<KEY>'} b'<DB_PASS>' <DSN> <HARBOUR_TOKEN> 4711 <TO" in shown
    assert "<SHOP_TOKEN> cpu" in shown


class Client:
    def __init__(self, **state):
        vars(self).update(state)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Client(url="x", password="gingerbread"), "it holds what looks like .* token .password."),
        ([Client(token="oven-1"), Client(token="oven-2-cold")], "it holds what looks like .* .token."),
        (Client(header=["Bearer abcdefgh12345678"]), "it holds what looks like"),
        (np.array(["plain", HF]), "it holds what looks like"),
        ({"rows": [TYPED] * 300}, "it holds what looks like"),
    ],
)
def test_an_object_with_a_secret_is_refused_by_name(value, reason):
    typed = {"In": ["word = getpass()"], "word": TYPED}
    with pytest.raises(TfmagicError, match=f"nothing was written:\n  client: {reason}"):
        program(cell(1, "client"), client=value, **typed)


def test_usual_names_and_values_are_no_secrets():
    names = {
        "key_dim": 64,
        "tokens": ["the", "cat"],
        "keys": (1, 2),
        "tokenizer": "bert-base",
        "author": "Ada",
    }
    names |= {"token_pattern": Client(token_pattern="(?u)\\b\\w\\w+\\b"), "mode": "3", "passes": 2}
    names |= {"In": ["n = input()"], "n": "3"}
    found = program(
        cell(1, ", ".join(n for n in names if n != "In") + "\nsorted(rows, key='loss')"), **names, rows=[]
    )
    assert found.left_out == ("the value of N: set it in the environment",)


def test_a_secret_that_cannot_be_replaced_is_refused_by_its_line(tmp_path, monkeypatch):
    with pytest.raises(TfmagicError, match="cell 4: line 2 has what looks like a password, key or token"):
        program(cell(4, f"x = 1\nprint(f'{{x}} {HF}')"))
    (tmp_path / "oven_of_export.py").write_text(f"HEAT = 1\nKEY = '{HF}'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import oven_of_export

    with pytest.raises(TfmagicError, match="module oven_of_export: line 2 has"):
        program(cell(1, "oven.HEAT"), oven=oven_of_export)
    found = program(cell(1, f"%wandb login {HF}"))
    assert found.left_out == ("%wandb ... of cell 1",)


def test_none_and_lambdas_under_other_names_are_exported(tmp_path):
    source = "double = lambda x: 2 * x\nf = double\npair = (1, lambda x: x)\n"
    main = {
        "__name__": "__main__",
        "best": None,
        "bunch": type("Bunch", (dict,), {"__getattr__": dict.get})(),
    }
    import linecache

    linecache.cache["cell-of-lambdas"] = (len(source), None, source.splitlines(True), "cell-of-lambdas")
    exec(compile(source, "cell-of-lambdas", "exec"), main)
    found = program(cell(1, "print(best, f(2), double(3))"), **main)
    assert (
        "best = None" in found.text
        and found.text.count("double = lambda") == 1
        and "f = double" in found.text
    )
    with pytest.raises(TfmagicError, match="g: its source cannot be found; write it as a def"):
        program(cell(1, "g(2)"), g=main["pair"][1], **main)
    with pytest.raises(TfmagicError, match="bunch: PicklingError"):
        program(cell(1, "bunch"), **main)
