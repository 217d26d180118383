"""Run folders in, Prometheus' text out: whole ones, old ones, and folders with foreign content."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tfmagic.features.metrics import server as metrics
from tfmagic.features.metrics.server import MAX_RUNS, ClusterCollector, register
from tfmagic.runs import ended_cells, status_reader
from tfmagic.runs.cell_records import CellRecord, append_record
from tfmagic.runs.folder import RunFolder
from tfmagic.server import configured_state_dir
from tfmagic.system.process_identity import identify

DOCS = Path(__file__).parents[3] / "docs"
TASK = {
    "task": "worker-0",
    "state": "running",
    "pid": 42,
    "host": "h",
    "uptime_s": 1.5,
    "cpu_percent": 12.0,
    "cpu_s": 3.25,
    "memory_bytes": 1000,
    "shared_bytes": 5000,
    "threads": 9,
    "open_files": 30,
    "restarts": 1,
    "stalls": 2,
    "log_bytes": 1234,
    "address": "127.0.0.1:4",
    "doing": "running",
    "line": 3,
    "note": "",
}


def status(**changes):
    return {
        "schema": 1,
        "written": time.time(),
        "cluster": "default",
        "shape": "2 workers",
        "ended": False,
        "kernel": {"pid": os.getpid(), "cpu_percent": 1.5, "memory_bytes": 7000},
        "launcher": {"pid": 2, "cpu_percent": 0.25, "memory_bytes": 8000},
        "tasks": [TASK, {**TASK, "task": "worker-1", "state": "dead", "pid": None, "cpu_percent": None}],
        "cells": {"running": 1, "queued": 0, "ended": 12},
        **changes,
    }


def write_run(base, name, content=None, *, cluster="default", pid=None, start=None, cells=()):
    folder = base / "runs" / name
    folder.mkdir(parents=True)
    process = identify(pid or os.getpid()).as_json()
    meta = {**process, "started": time.time(), "cluster": cluster, "shape": "2 workers"}
    if start is not None:
        meta["start"] = start
    (folder / "run.json").write_text(json.dumps(meta))
    if isinstance(content, bytes):
        (folder / "status.json").write_bytes(content)
    elif content is not None:
        (folder / "status.json").write_text(json.dumps(content))
    for cell in cells:
        append_record(RunFolder(folder), cell)
    return folder


def cell(number, seconds, verdict="done", cluster="default"):
    source = "x = 1\n" * 10
    return CellRecord(number, cluster, "2 workers", (), source=source, elapsed_s=seconds, verdict=verdict)


class Page:
    """The values of a scrape by name and labels; a sample that is there twice is an error."""

    def __init__(self, text):
        self.values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{key} is there twice"
                self.values[key] = sample.value

    def __call__(self, name, **labels):
        """Return the value of the only sample of that name with these labels, or None."""
        found = [
            v for (n, has), v in self.values.items() if n == name and labels.items() <= dict(has).items()
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def names(self):
        return {name for name, _ in self.values}


class Scraper:
    """Scrapes of the same collector, as by one server."""

    def __init__(self, base):
        self.registry = CollectorRegistry(auto_describe=True)
        register(base, self.registry)

    def __call__(self):
        return Page(generate_latest(self.registry).decode())


def scrape(base):
    return Scraper(base)()


def test_a_live_run_is_exported_with_all_its_figures(tmp_path):
    write_run(tmp_path, "r1", status(written=2e9), cells=[cell(1, 0.3)])
    page = scrape(tmp_path)
    here = {"cluster": "default", "run": "r1"}
    worker = {**here, "task": "worker-0"}
    assert page("tfmagic_cluster_up", **here) == 1
    assert page("tfmagic_status_timestamp_seconds", **here) == 2e9
    assert page("tfmagic_task_state", **worker, state="running") == 1
    assert page("tfmagic_task_state", **worker, state="dead") is None
    assert page("tfmagic_task_state", **{**worker, "task": "worker-1"}, state="dead") == 1
    assert page("tfmagic_task_cpu_percent", **worker) == 12
    assert page("tfmagic_task_cpu_percent", **{**worker, "task": "worker-1"}) is None
    assert page("tfmagic_task_cpu_seconds_total", **worker) == 3.25
    assert page("tfmagic_task_memory_bytes", **worker, kind="unique") == 1000
    assert page("tfmagic_task_memory_bytes", **worker, kind="shared") == 5000
    assert page("tfmagic_task_threads", **worker) == 9
    assert page("tfmagic_task_open_files", **worker) == 30
    assert page("tfmagic_task_restarts_total", **worker) == 1
    assert page("tfmagic_task_stalls_total", **worker) == 2
    assert page("tfmagic_task_log_bytes", **worker) == 1234
    assert page("tfmagic_task_uptime_seconds", **worker) == 1.5
    assert page("tfmagic_cells", **here, state="ended") == 12
    assert page("tfmagic_kernel_cpu_percent", **here) == 1.5
    assert page("tfmagic_kernel_memory_bytes", **here) == 7000
    assert page("tfmagic_launcher_cpu_percent", **here) == 0.25
    assert page("tfmagic_launcher_memory_bytes", **here) == 8000
    assert page("tfmagic_cell_duration_seconds_bucket", le="0.5", verdict="done") == 1
    assert page("tfmagic_unreadable_runs") == 0


def test_no_state_folder_is_an_empty_page(tmp_path):
    assert scrape(tmp_path / "nothing").names() == {"tfmagic_unreadable_runs"}


def test_a_cluster_that_ended_is_not_exported(tmp_path):
    write_run(tmp_path, "r1", status(ended=True))
    assert scrape(tmp_path).names() == {"tfmagic_unreadable_runs"}


def test_a_run_of_a_version_without_status_counts_its_cells_only(tmp_path):
    write_run(tmp_path, "r1", None, cells=[cell(1, 2.0)])
    page = scrape(tmp_path)
    assert page("tfmagic_cell_duration_seconds_count", cluster="default") == 1
    assert page("tfmagic_cluster_up") is None
    assert page("tfmagic_unreadable_runs") == 0


def test_a_killed_kernel_is_down_at_once_and_forgotten_later(tmp_path):
    kernel = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    folder = write_run(tmp_path, "r1", status(), pid=kernel.pid)
    scraper = Scraper(tmp_path)
    assert scraper()("tfmagic_cluster_up", run="r1") == 1
    kernel.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, kernel.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped
    assert scraper()("tfmagic_cluster_up", run="r1") == 0
    kernel.wait()
    page = scraper()
    assert page("tfmagic_cluster_up", run="r1") == 0
    assert page("tfmagic_task_state", task="worker-0", state="running") is None
    (folder / "status.json").write_text(json.dumps(status(written=time.time() - 3600)))
    assert scraper()("tfmagic_cluster_up", run="r1") is None


def test_another_process_with_the_kernels_number_is_not_the_kernel(tmp_path):
    long_ago = time.time() - 10**7
    write_run(tmp_path, "r1", status(written=long_ago), start=1)
    page = scrape(tmp_path)
    assert page("tfmagic_cluster_up") is None and page("tfmagic_task_threads") is None


def test_a_kernel_that_is_paused_stays_live_and_its_time_stands_still(tmp_path):
    write_run(tmp_path, "r1", status(written=time.time() - 300))
    page = scrape(tmp_path)
    assert page("tfmagic_cluster_up", run="r1") == 1
    assert page("tfmagic_status_timestamp_seconds", run="r1") < time.time() - 299


GARBAGE = {
    "empty": b"",
    "torn": json.dumps(status()).encode()[:200],
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "long number": b'{"written": ' + b"9" * 10_000 + b"}",
    "a list": b"[1, 2]",
    "null": b"null",
    "too big": b'"' + b"x" * (2 << 20) + b'"',
}
ODD = {
    "nothing": {},
    "tasks is text": status(tasks="worker-0"),
    "tasks of everything": status(tasks=[None, 1, "x", [], {}, {"task": 3}, {"task": "worker-0"}]),
    "a task twice": status(tasks=[TASK, TASK, {**TASK, "task": "worker-00"}, {**TASK, "task": "worker-٣"}]),
    "foreign tasks": status(tasks=[{**TASK, "task": "../../etc"}, {**TASK, "task": "worker-0\n"}]),
    "numbers that are none": status(
        tasks=[{**TASK, "threads": "9", "restarts": True, "log_bytes": -1, "cpu_percent": float("nan")}],
        kernel={"cpu_percent": float("inf"), "memory_bytes": 10**400},
        written=10**400,
    ),
    "no task figures": status(tasks=[{"task": "worker-0", "state": "brand new"}], kernel=None, launcher=None),
    "cells is a list": status(cells=[1]),
    "another schema": {"schema": 99, "tasks": {"worker-0": {}}, "cells": {"running": {"a": 1}}},
}


@pytest.mark.parametrize("content", [*GARBAGE.values(), *ODD.values()], ids=[*GARBAGE, *ODD])
def test_a_bad_status_costs_no_other_run_its_metrics(tmp_path, content):
    write_run(tmp_path, "r2", content)
    write_run(tmp_path, "r1", status())
    page = scrape(tmp_path)
    assert page("tfmagic_task_threads", run="r1", task="worker-0") == 9
    assert page("tfmagic_unreadable_runs") == (1 if isinstance(content, bytes) or not content else 0)


def test_only_names_of_tasks_are_exported(tmp_path):
    write_run(tmp_path, "r1", ODD["a task twice"])
    tasks = [
        dict(labels)["task"] for name, labels in scrape(tmp_path).values if name == "tfmagic_task_threads"
    ]
    assert tasks == ["worker-0"]


def test_a_run_that_is_pruned_while_it_is_looked_at_costs_no_other(tmp_path, monkeypatch):
    for number in range(6):
        write_run(tmp_path, f"r{number}", status())
    is_run, gone = status_reader._is_run, []

    def prune_one(entry):
        found = is_run(entry)
        if not gone:
            gone.append(entry.name)
            shutil.rmtree(entry.path)
        return found

    monkeypatch.setattr(status_reader, "_is_run", prune_one)
    shown = {dict(labels)["run"] for name, labels in scrape(tmp_path).values if name == "tfmagic_cluster_up"}
    assert shown == {f"r{number}" for number in range(6)} - set(gone)


def test_an_unexpected_error_costs_one_run_only(tmp_path, monkeypatch):
    write_run(tmp_path, "r1", status())
    write_run(tmp_path, "r2", status())
    read = status_reader.read_snapshot

    def fail_once(folder):
        if folder.name == "r1":
            raise RuntimeError("unforeseen")
        return read(folder)

    monkeypatch.setattr("tfmagic.features.metrics.server.read_snapshot", fail_once)
    page = scrape(tmp_path)
    assert page("tfmagic_cluster_up", run="r2") == 1 and page("tfmagic_unreadable_runs") == 1


def test_numbers_that_are_none_are_left_out(tmp_path):
    write_run(tmp_path, "r1", ODD["numbers that are none"])
    page = scrape(tmp_path)
    assert page("tfmagic_task_memory_bytes", kind="unique") == 1000
    for name in ("threads", "restarts_total", "log_bytes", "cpu_percent"):
        assert page(f"tfmagic_task_{name}") is None
    assert page("tfmagic_kernel_memory_bytes") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
odd_tasks = st.lists(
    st.fixed_dictionaries({"task": st.sampled_from(["worker-0", "chief-0", "x"])})
    | st.dictionaries(st.sampled_from(list(TASK)), json_values)
    | json_values,
    max_size=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(list(status())), json_values), tasks=odd_tasks)
def test_the_page_can_be_read_with_any_content_of_a_status(tmp_path, changes, tasks):
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    write_run(tmp_path, "r2", {**status(tasks=tasks), **changes})
    write_run(tmp_path, "r1", status())
    assert scrape(tmp_path)("tfmagic_task_threads", run="r1", task="worker-0") == 9


def test_pipes_links_and_foreign_folders_are_not_waited_for(tmp_path):
    write_run(tmp_path, "good", status())
    os.mkfifo(write_run(tmp_path, "pipe") / "status.json")
    os.mkfifo(tmp_path / "runs" / "pipe" / "cells.jsonl")
    (write_run(tmp_path, "folder") / "status.json").mkdir()
    (write_run(tmp_path, "link") / "status.json").symlink_to(tmp_path / "runs" / "good" / "status.json")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "runs" / "good")
    (tmp_path / "runs" / "no run").mkdir()
    (tmp_path / "runs" / ".probe-1").write_bytes(b"x")
    os.mkdir(os.fsencode(tmp_path / "runs") + b"/not\xffutf8")
    page = scrape(tmp_path)
    assert {dict(labels).get("run") for _, labels in page.values} == {"good", None}
    assert page("tfmagic_unreadable_runs") == 3


@pytest.mark.parametrize("name", ['a"b', "back\\slash\\n", "two\nlines", "日本 ü", 'x"} 1\ntfmagic_up{a="'])
def test_a_clusters_name_is_text_whatever_it_holds(tmp_path, name):
    write_run(
        tmp_path, f"r-{name}".replace("/", ""), status(), cluster=name, cells=[cell(1, 1, cluster=name)]
    )
    page = scrape(tmp_path)
    assert page("tfmagic_cluster_up", cluster=name) == 1
    assert page("tfmagic_cell_duration_seconds_count", cluster=name) == 1
    assert "tfmagic_up" not in page.names()


def test_a_name_that_cannot_be_encoded_is_shown_with_a_mark(tmp_path):
    write_run(tmp_path, "r1", status(), cluster="bad \ud800 name")
    assert scrape(tmp_path)("tfmagic_cluster_up", cluster="bad ? name") == 1


def test_cells_count_once_by_cluster_and_verdict(tmp_path):
    folder = write_run(tmp_path, "r1", status(), cells=[cell(1, 0.0, ""), cell(1, 0.3), cell(2, 0.0, "")])
    scraper = Scraper(tmp_path)
    assert scraper()("tfmagic_cell_duration_seconds_count") == 1
    append_record(RunFolder(folder), cell(2, 7.0, "failed"))
    append_record(RunFolder(folder), cell(1, 0.3))  # noted again
    write_run(tmp_path, "r2", status(), cells=[cell(1, 20000.0)])
    page = scraper()
    name = "tfmagic_cell_duration_seconds"
    assert page(f"{name}_count", verdict="done") == 2
    assert page(f"{name}_sum", verdict="done") == 20000.3
    assert page(f"{name}_bucket", verdict="done", le="14400.0") == 1
    assert page(f"{name}_bucket", verdict="done", le="+Inf") == 2
    assert page(f"{name}_bucket", verdict="failed", le="5.0") == 0
    assert page(f"{name}_bucket", verdict="failed", le="10.0") == 1


def test_a_line_that_is_being_written_counts_when_it_is_whole(tmp_path):
    folder = write_run(tmp_path, "r1", status())
    line = cell(1, 2.0).encode().encode()
    scraper = Scraper(tmp_path)
    with open(folder / "cells.jsonl", "ab", buffering=0) as file:
        file.write(b"{garbage}\n[]\n" + line[:50])
        assert scraper()("tfmagic_cell_duration_seconds_count") is None
        file.write(line[50:])
        assert scraper()("tfmagic_cell_duration_seconds_count") == 1


def test_counts_do_not_sink_when_a_run_is_deleted(tmp_path):
    folder = write_run(tmp_path, "r1", status(), cells=[cell(1, 1.0)])
    scraper = Scraper(tmp_path)
    assert scraper()("tfmagic_cell_duration_seconds_count") == 1
    shutil.rmtree(folder)
    assert scraper()("tfmagic_cell_duration_seconds_count") == 1


def test_a_run_that_was_out_of_sight_is_not_counted_again(tmp_path):
    folder = write_run(tmp_path, "old", status(), cells=[cell(1, 1.0)])
    scraper = Scraper(tmp_path)
    scraper()
    os.utime(folder, (1, 1))
    for number in range(MAX_RUNS):
        write_run(tmp_path, f"r{number}")
    assert scraper()("tfmagic_cluster_up", run="old") is None
    os.utime(folder)
    page = scraper()
    assert page("tfmagic_cluster_up", run="old") == 1
    assert page("tfmagic_cell_duration_seconds_count") == 1


def test_a_kernel_that_runs_for_days_is_not_lost_behind_newer_runs(tmp_path):
    folder = write_run(tmp_path, "20200101-old", status())
    for number in range(MAX_RUNS + 10):
        write_run(tmp_path, f"20260101-{number}", status(ended=True))
    beside = folder / "status.json.new"  # as its kernel writes it
    beside.write_text(json.dumps(status()))
    beside.rename(folder / "status.json")
    assert scrape(tmp_path)("tfmagic_cluster_up", run="20200101-old") == 1


def test_records_between_scrapes_are_read_in_bounded_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_SCRAPE_BYTES", 40_000)
    monkeypatch.setattr(ended_cells, "_MAX_LINE", 50_000)
    scraper = Scraper(tmp_path)
    scraper()
    write_run(tmp_path, "r1", status(), cells=[cell(n, 1.0) for n in range(300)])
    folder = write_run(tmp_path, "r2", status(), cells=[cell(1, 1.0)])
    with (folder / "cells.jsonl").open("a") as file:
        file.write(cell(2, 1.0).encode().replace("x = 1", "x" * 45_000, 1))  # long, and one of ours
        file.write("x" * 125_000 + "\n" + cell(3, 1.0).encode())
    counts = []
    while len(counts) < 30 and counts[-1:] != [303]:
        counts.append(scraper()("tfmagic_cell_duration_seconds_count"))
    assert counts[0] < 300 and counts[-1] == 303
    assert scraper()("tfmagic_cell_duration_seconds_count") == 303


def test_history_counts_in_the_first_scrape_or_never(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_SCRAPE_BYTES", 10_000)
    folder = write_run(tmp_path, "r1", status(), cells=[cell(n, 1.0) for n in range(300)])
    write_run(tmp_path, "r2", status(), cells=[cell(n, 1.0) for n in range(300)])
    scraper = Scraper(tmp_path)
    first = scraper()("tfmagic_cell_duration_seconds_count")
    assert 20 < first < 100
    assert scraper()("tfmagic_cell_duration_seconds_count") == first
    append_record(RunFolder(folder), cell(300, 1.0))
    assert scraper()("tfmagic_cell_duration_seconds_count") == first + 1


def test_nothing_is_kept_open_by_a_scrape(tmp_path):
    write_run(tmp_path, "r1", status(), cells=[cell(1, 1.0)])
    before = len(os.listdir("/proc/self/fd"))
    scrape(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_second_server_in_the_process_changes_nothing(tmp_path):
    write_run(tmp_path, "r1", status())
    registry = CollectorRegistry(auto_describe=True)
    register(tmp_path, registry)
    register(tmp_path, registry)
    assert Page(generate_latest(registry).decode())("tfmagic_cluster_up") == 1


def test_the_state_folder_is_configured_as_in_a_kernel():
    from traitlets.config import Config

    assert configured_state_dir(Config({"TFCluster": {"state_dir": "/x"}})) == "/x"
    assert configured_state_dir(Config()) == ""


# ---- the docs -----------------------------------------------------------------------------------


def exported_names():
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        metric.name + suffix
        for metric in ClusterCollector(Path("nowhere")).describe()
        for suffix in suffixes.get(metric.type, ("",))
    }


def dashboard():
    return json.loads((DOCS / "grafana" / "tfmagic.json").read_text())


def test_the_dashboard_asks_for_what_is_exported():
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"tfmagic_\w+", target["expr"])
    }
    variables = {v["query"]["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"}
    asked |= {name for query in variables for name in re.findall(r"tfmagic_\w+", query)}
    assert len(asked) >= 12
    assert asked <= exported_names()
    assert all(target["datasource"]["uid"] == "${datasource}" for p in panels for target in p["targets"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)


def test_the_dashboards_panels_have_a_place_each():
    cells = [
        (x, y)
        for panel in dashboard()["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_the_table_of_metrics_is_complete():
    text = (DOCS / "monitoring.md").read_text()
    described = set(re.findall(r"^\| `(tfmagic_\w+)", text, re.MULTILINE))
    described |= {f"{name}{end}" for name in described for end in ("_bucket", "_sum", "_count")}
    assert exported_names() <= described
    assert {n for n in described if not n.endswith(("_bucket", "_sum", "_count"))} <= {
        n.removesuffix("_bucket") for n in exported_names()
    }
