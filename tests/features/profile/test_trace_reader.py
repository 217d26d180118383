"""Traces as TensorFlow writes them, read into the parts of a task's time."""

from types import SimpleNamespace as Made

from tfmagic.features.profile.trace_reader import summarize

START, MS = 1_800_000_000_000_000_000, 1_000_000


class Space:
    """A trace of 1000 ms. Events are given in milliseconds, with numbers that stand beside them."""

    def __init__(self):
        self.host = Made(name="/host:CPU", lines=[], event_metadata={}, stat_metadata={})
        names = {1: "profile_start_time", 2: "profile_stop_time"}
        stats = [Made(metadata_id=1, uint64_value=START, int64_value=0)]
        stats.append(Made(metadata_id=2, uint64_value=START + 1000 * MS, int64_value=0))
        clock = Made(name="Task Environment", lines=[], stats=stats, stat_metadata=named(names))
        self.planes = [self.host, clock]

    def thread(self, name, *events):
        made = []
        for what, begin, end, *beside in events:
            made.append(
                Made(
                    metadata_id=number(self.host.event_metadata, what),
                    offset_ps=begin * MS * 1000,
                    duration_ps=(end - begin) * MS * 1000,
                    stats=[
                        Made(
                            metadata_id=number(self.host.stat_metadata, key),
                            int64_value=value,
                            uint64_value=0,
                        )
                        for key, value in dict(*beside).items()
                    ],
                )
            )
        self.host.lines.append(Made(name=name, timestamp_ns=0, events=made))
        return self

    def read(self):
        return summarize(self, "trace")


def named(names):
    return {key: Made(name=name) for key, name in names.items()}


def number(known, name):
    found = next((key for key, one in known.items() if one.name == name), None)
    if found is None:
        found = len(known) + 1
        known[found] = Made(name=name)
    return found


def parts(profile):
    in_collectives = sum(end - begin for begin, end in profile.collective_parts)
    found = {"compute": profile.compute_ns, "input": profile.input_ns, "remote": profile.remote_ns}
    found |= {"tracing": profile.tracing_ns, "collective": in_collectives}
    return {part: taken // MS for part, taken in found.items() if taken}


def test_ops_at_the_same_time_count_once():
    trace = Space().thread("tf_Compute/1", ("MatMul:_MklMatMul", 100, 300), ("m/add:AddV2", 400, 450))
    profile = trace.thread("tf_Compute/2", ("MatMul_1:MatMul", 200, 350)).read()
    assert parts(profile) == {"compute": 300}
    assert [(op.type, op.calls, op.self_ns // MS) for op in profile.ops] == [
        ("MatMul", 2, 350),
        ("AddV2", 1, 50),
    ]
    assert (profile.start, profile.end) == (START, START + 1000 * MS)


def test_the_time_of_an_op_is_without_the_ops_inside_it():
    profile = Space().thread("python", ("EagerLocalExecute: Outer", 0, 100), ("i:Inner", 10, 40)).read()
    assert {op.type: op.self_ns // MS for op in profile.ops} == {"Outer": 70, "Inner": 30}


def test_functions_that_only_call_others_are_no_compute():
    events = [("EagerLocalExecute: __inference_step_7", 0, 900), ("w:While", 0, 800), ("Foo::Bar", 0, 900)]
    assert parts(Space().thread("python", *events, ("a:Mul", 10, 20)).read()) == {"compute": 10}


def test_a_wait_for_data_is_input_whatever_the_pipeline_computes_meanwhile():
    trace = Space().thread("python", ("IteratorGetNextOp::DoCompute", 100, 400), ("a:Mul", 400, 500))
    trace.thread("tf_data_private_threadpool/1", ("f:EagerPyFunc", 100, 600))
    trace.thread("other", ("Iterator::Root::Map", 500, 900), ("f:Sin", 500, 900))
    profile = trace.read()
    assert parts(profile) == {"input": 300, "compute": 100}
    assert {op.type for op in profile.ops} == {"Mul", "EagerPyFunc (input)", "Sin (input)"}


def test_a_collective_begins_with_its_entry_and_counts_where_nothing_is_computed():
    keys = {"group_key": 1, "instance_key": 7}
    trace = Space().thread(
        "tf_Compute", ("CollectiveOpV2Kernel::Run", 90, 91), ("r:CollectiveReduceV2", 90, 92)
    )
    trace.thread("collective_ops", ("r:CollectiveReduceV2", 100, 300, keys))
    profile = trace.thread("tf_Compute", ("a:Mul", 150, 200)).read()
    (one,) = profile.collectives
    assert (one.key, one.start - START, one.end - START) == ("1/7", 90 * MS, 300 * MS)
    assert parts(profile) == {"compute": 50, "collective": 160}


def test_eager_ops_that_are_executed_elsewhere_are_remote():
    trace = Space().thread("python", ("EagerExecute", 100, 300), ("EagerExecute", 400, 500))
    assert parts(trace.read()) == {"remote": 300}
    local = Space().thread("python", ("EagerExecute", 100, 300), ("EagerLocalExecute: Mul", 110, 200))
    assert parts(local.read()) == {"compute": 90}


def test_a_request_that_waits_for_variables_is_remote():
    trace = Space().thread("tf_Compute", ("EagerService:Enqueue", 100, 500), ("m/_3:_Send", 450, 550))
    assert parts(trace.thread("x", ("a:MatMul", 200, 300)).read()) == {"remote": 350, "compute": 100}


def test_tracing_is_what_is_left_of_a_functions_first_call():
    events = [("tf.function-graph_building", 0, 500), ("EagerLocalExecute: Fill", 100, 150)]
    assert parts(Space().thread("python", *events).read()) == {"tracing": 450, "compute": 50}


def test_an_empty_trace_is_idle():
    profile = Space().read()
    assert parts(profile) == {} and profile.ops == () and profile.events == 0
