"""xeus-python 0.19.0: a kernel that is no ipykernel, itself, as JupyterLab drives it."""

from clients import jupyterlab


class Client(jupyterlab.Client):
    takes = "xeus_kernel"
