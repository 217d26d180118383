"""Run a step of which a half would lose data: an interrupt is raised after it, not within it."""

import threading
from collections.abc import Callable


def run_whole(step: Callable[[], None]) -> None:
    """Run a short step in a thread "tfmagic-step", where no KeyboardInterrupt arrives, and wait for its end.

    Raises what the step raises; an interrupt that came meanwhile, when it is over. An interrupt before its
    beginning is raised at once, and nothing of it is run.
    """
    begun, over = threading.Lock(), threading.Event()
    raised: list[BaseException] = []

    def run() -> None:
        if not begun.acquire(blocking=False):
            return  # interrupted before
        try:
            step()
        except BaseException as error:
            raised.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=run, name="tfmagic-step")
    interrupt: BaseException | None = None
    try:
        thread.start()
    except BaseException as error:  # the thread can have begun all the same
        if begun.acquire(blocking=False):
            raise
        interrupt = error
    while not over.is_set():
        try:
            over.wait()
        except BaseException as error:
            interrupt = error
    if thread.ident is not None:
        thread.join()
    if raised:
        raise raised[0]
    if interrupt is not None:
        raise interrupt
