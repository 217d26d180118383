"""Which cluster a line asks for, given the one that runs."""

from tfmagic.clusters.launch.given_options import GivenOptions


def line(**values):
    return GivenOptions(values)


def test_a_line_with_another_backend_takes_nothing_that_only_one_of_them_has():
    here = line(workers=2, isolate=True, hosts=2, env={"A": "1"})
    there = line(workers=2, backend="ray", address="10.0.0.1:6379", keep=60.0, keras=2)
    assert line(backend="ray").completed(here).words == [
        "--workers", "2", "--backend", "ray", "--env", "A=1",
    ]  # fmt: skip
    assert line(workers=3).completed(there) == there.changed(workers=3)
    assert line(backend="local").completed(there) == line(workers=2, backend="local", keras=2)
