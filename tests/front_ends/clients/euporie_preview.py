"""euporie 2.10.4, `euporie-preview --run`: as `euporie-notebook`, but nobody is asked for input."""

from clients import euporie


class Client(euporie.Client):
    request = {**euporie.Client.request, "allow_stdin": False}
