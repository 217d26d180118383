"""Which cluster a line asks for, given the one that runs."""

import dataclasses

from tfmagic.clusters.launch.arguments import ShapeOptions


def test_a_line_with_another_backend_takes_nothing_that_only_one_of_them_has():
    here = ShapeOptions(workers=2, isolate=True, hosts=2, env=(("A", "1"),))
    there = ShapeOptions(workers=2, backend="ray", address="10.0.0.1:6379", keep=60.0, keras=2)
    assert ShapeOptions(backend="ray").completed(here).words == [
        "--workers", "2", "--backend", "ray", "--env", "A=1",
    ]  # fmt: skip
    assert ShapeOptions(workers=3).completed(there) == dataclasses.replace(there, workers=3)
    assert ShapeOptions(backend="local").completed(there) == ShapeOptions(workers=2, backend="local", keras=2)
