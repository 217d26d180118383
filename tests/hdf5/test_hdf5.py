"""HDF5 files of tasks of a real cluster."""

import h5py
import pytest

import tfmagic
from tfmagic.hdf5 import FileInUseError, consolidate


@pytest.fixture(scope="module")
def cluster_of_module():
    with tfmagic.Cluster(workers=2, name="hdf5") as started:
        yield started


def test_the_naive_way_is_an_error_that_names_the_task_and_the_file_stays_whole(cluster_of_module, tmp_path):
    def save(path):
        import h5py

        first = tfmagic.current_task().is_chief
        if not first:
            tfmagic.barrier()
        try:
            with h5py.File(path, "w", locking=False) as file:
                file["weights"] = [1.0]
                if first:
                    tfmagic.barrier()
                    tfmagic.barrier()
        finally:
            if not first:
                tfmagic.barrier()

    with pytest.raises(FileInUseError) as caught:
        cluster_of_module.run(save, str(tmp_path / "m.h5"), view="quiet", timeout=60)
    assert "m.h5 is open for writing by worker-0 (pid" in str(caught.value)
    assert any("raised on worker-1" in note for note in caught.value.__notes__)
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["weights"][0] == 1


def test_each_task_writes_its_part_and_one_consolidates(cluster_of_module, tmp_path):
    def work(base):
        from tfmagic.hdf5 import TaskFile, consolidate

        with TaskFile(base) as file:
            for step in range(3):
                file.append("loss", [float(step)])
        tfmagic.barrier()
        if tfmagic.current_task().is_chief:
            return consolidate(base).tasks

    results = cluster_of_module.run(work, str(tmp_path / "r.h5"), view="quiet", timeout=60)
    assert results["worker-0"] == ("worker-0", "worker-1")
    with h5py.File(tmp_path / "r.h5") as file:
        assert file["loss"][:].tolist() == [0, 1, 2, 0, 1, 2]
    (tmp_path / "r.worker-1.h5").unlink()
    with pytest.raises(tfmagic.hdf5.PartError, match="lack the part of worker-1"):  # the cluster had two
        consolidate(tmp_path / "r.h5")
