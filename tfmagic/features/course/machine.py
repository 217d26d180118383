"""What a lesson asks of its machine and of its notebook: simulated hosts, and a new beginning."""

from tfmagic.errors import TfmagicError


def can_simulate_hosts() -> bool:
    """Try to make two simulated hosts with slow links. Print why not if this machine cannot."""
    from tfmagic.backends.simulated.hosts import NetworkRequest, try_hosts
    from tfmagic.backends.simulated.links import Link
    from tfmagic.protocol.cluster_spec import TaskId

    try:
        try_hosts((TaskId("worker", 0), TaskId("worker", 1)), NetworkRequest(2, Link(20e6)))
    except TfmagicError as error:
        print(f"no simulated machines here: {error}\nThis lesson goes on without them.")
        return False
    return True


def reset() -> None:
    """Stop the notebook's cluster and delete its variables: then run the lesson again from the top."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        raise TfmagicError("a lesson is begun again in its notebook")
    shell.run_line_magic("load_ext", "tfmagic")
    shell.run_line_magic("tfcluster", "stop")
    shell.reset(new_session=False)
    print("Now run the cells from the top.")
