"""Which names a task reports as its own."""

import types

from tfmagic.protocol.commands import Carried, RunCell
from tfmagic.serialization import packing, pickling
from tfmagic.task.cell_reports import Reports
from tfmagic.task.received_names import ReceivedNames


def test_a_name_that_a_cell_assigns_when_the_notebook_has_deleted_it_is_the_tasks_own():
    def bind(**values):
        packed = packing.pack(pickling.dump_names(values, {}, lambda name: False))
        reports.bind(RunCell(1, carried=Carried((packed,))))

    namespace = {}
    received = ReceivedNames(namespace)
    runner = types.SimpleNamespace(namespace=namespace, received=received, builtin_names=frozenset())
    reports = Reports(None, None, runner)
    bind(x=[1])
    assert reports._owned_names() is None
    bind(x=pickling.Deleted)
    namespace["x"] = 2
    assert reports._owned_names() == ("x",)
    assert reports._owned_names() is None
    del namespace["x"]
    assert reports._owned_names() == ()
