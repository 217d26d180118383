"""A disk that is really full, and one that is really read-only: mounted for one process and its tasks.

Mounting needs root, or user namespaces; where there are neither these tests fail. What runs here is also
tested with limits of file sizes, where the moment of the failure can be chosen.
"""

import json
import re
import subprocess
import sys
import textwrap

BEGIN = """
    import json, os, subprocess, sys
    import tfmagic
    from tfmagic import Cluster, current_task, hdf5, logdir, tfrecord
    disk = sys.argv[1]

    def told(attempt):
        try:
            attempt()
        except Exception as error:
            return [type(error).__name__, str(error), getattr(error, "errno", None)]
        return ["nothing", "", None]

    def tell(**found):
        print("FOUND" + json.dumps(found))
"""


def on_a_disk(tmp_path, options, program):
    """Run a program whose argument is a new file system of memory, mounted with `options`; what it tells."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = f'mount -t tmpfs -o {options} none "{place}" && exec "$@"'
    code = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", code, str(place)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("FOUND")[1])


def test_shards_that_do_not_fit_leave_nothing_and_the_disk_can_be_used_again(tmp_path):
    found = on_a_disk(
        tmp_path,
        "size=1m",
        """
        def write(name, records):
            with tfrecord.ShardWriter(f"{disk}/{name}") as writer:
                for _ in range(records):
                    writer.write(bytes(1000))

        error = told(lambda: write("big", 5000))
        after = os.listdir(disk)
        write("small", 600)
        whole = [*tfrecord.verify(disk).damages] == []
        copied = told(lambda: tfrecord.merge([f"{disk}/small-00000-of-00001.tfrecord"], f"{disk}/copy"))
        tell(error=error, after=after, whole=whole, copied=copied, left=sorted(os.listdir(disk)))
        """,
    )
    assert found["error"][0] == "ShardWriteError" and found["error"][2] == 28
    assert "big-00000-of-00001" in found["error"][1] and "disk is full" in found["error"][1]
    assert found["after"] == [] and found["whole"] and found["copied"][2] == 28, found
    assert found["left"] == ["small-00000-of-00001.manifest.json", "small-00000-of-00001.tfrecord"]


def test_a_part_keeps_what_it_had_flushed_when_the_disk_became_full(tmp_path):
    found = on_a_disk(
        tmp_path,
        "size=2m",
        """
        import numpy as np

        def fill():
            with hdf5.TaskFile(f"{disk}/a.h5") as file:
                file.append("x", np.ones((10, 1000)))
                file.flush()
                while True:
                    file.append("x", np.ones((10, 1000)))

        error = told(fill)
        left = os.listdir(disk)
        hdf5.recover(f"{disk}/a.h5")
        with hdf5.TaskFile(f"{disk}/a.h5", "r") as file:
            kept = bool((file["x"][:10] == 1).all())
        tell(error=error, left=left, kept=kept)
        """,
    )
    assert "a.worker-0.h5, the part of worker-0" in found["error"][1], found
    assert "No space left on device" in found["error"][1]
    assert found["left"] == ["a.worker-0.h5.unfinished"] and found["kept"]


def test_tasks_in_a_cell_are_told_of_a_full_disk_with_nothing_half_written_and_of_a_read_only_base(tmp_path):
    found = on_a_disk(
        tmp_path,
        "size=4m",
        """
        def cell():
            import numpy as np, tensorflow as tf
            def shards():
                with tfrecord.ShardWriter(f"{disk}/r.tfrecord") as writer:
                    while True:
                        writer.write(bytes(10000))
            def together():
                with hdf5.SharedWriter(f"{disk}/s.h5") as writer:
                    while True:
                        writer.append("x", np.ones((10, 1000)))
            def checkpoint():
                with logdir.checkpoints(tf.Variable(tf.random.uniform([1 << 20])), f"{disk}/c") as saves:
                    saves.save(1)
            said = []
            for attempt in (shards, checkpoint, together):
                said.append(told(attempt))
                tfmagic.barrier()
            with open(f"{disk}.{current_task().name}", "w") as file:
                json.dump(said, file)

        with Cluster(workers=2) as cluster:
            raised = told(lambda: cluster.run(cell))  # rows are lost, also if a task has caught the error
        tasks = {name: json.load(open(f"{disk}.{name}")) for name in ("worker-0", "worker-1")}
        left = sorted(os.listdir(disk))

        def write_nothing():
            import tensorflow as tf
            return {
                "shards": told(lambda: tfrecord.ShardWriter(f"{disk}/r.tfrecord")),
                "part": told(lambda: hdf5.TaskFile(f"{disk}/a.h5")),
                "together": told(lambda: hdf5.SharedWriter(f"{disk}/t.h5")),
                "folder": told(lambda: logdir.task_logdir(f"{disk}/run")),
                "checkpoints": told(lambda: logdir.checkpoints(tf.Variable(1.0), f"{disk}/d")),
            }

        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with Cluster(workers=2) as cluster:
            tell(tasks=tasks, raised=raised, left=left, read_only=dict(cluster.run(write_nothing)))
        """,
    )
    for task in ("worker-0", "worker-1"):
        shards, _, together = found["tasks"][task]
        assert shards[0] == "ShardWriteError" and shards[2] == 28, shards
        assert together[0] == "SharedWriterError" and "No space left on device" in together[1], together
    assert found["raised"][:2] == found["tasks"]["worker-0"][2][:2]
    chief = found["tasks"]["worker-0"][1]
    assert chief[0] == "LogdirError" and "checkpoint 1 could not be written" in chief[1], chief
    assert found["left"] in (["c"], []), found
    for name, (kind, text, _) in found["read_only"]["worker-0"].items():
        assert kind in ("ShardWriteError", "PartError", "SharedWriterError", "LogdirError"), (
            name,
            kind,
            text,
        )
        assert str(tmp_path / "disk") in text and "Read-only file system" in text, (name, text)
    for name, (kind, text, _) in found["read_only"]["worker-1"].items():
        if name not in ("folder", "checkpoints"):  # a worker that is not chief writes elsewhere
            assert "Read-only file system" in text, (name, kind, text)


def test_a_run_whose_logs_fill_the_disk_says_what_is_lost_and_the_next_one_why_it_does_not_start(tmp_path):
    (tmp_path / "flood.py").write_text("for i in range(20_000):\n    print('line', i)\n")
    found = on_a_disk(
        tmp_path,
        "size=200k",
        """
        def run(*words):
            command = [sys.executable, "-m", "tfmagic", "run", "--workers", "1", *words, f"{disk}/../flood.py"]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | more)
            return done.returncode, done.stderr

        more = {"TFMAGIC_STATE_DIR": disk, "TF_CPP_MIN_LOG_LEVEL": "3"}
        flooded, refused = run("--quiet"), run("--quiet")
        tell(flooded=flooded, refused=refused)
        """,
    )
    code, said = found["flooded"]
    assert code == 0 and re.search(
        r"worker-0: \d+ KiB of output could not be written, since the disk of ", said
    )
    code, said = found["refused"]
    assert code == 125 and "is full: free some space or set TFMAGIC_STATE_DIR." in said, said
