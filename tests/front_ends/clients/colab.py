"""Colab, as far as it is known: its page is not public, its kernel is (googlecolab/colabtools, google/colab/_kernel.py).

Treated as a page that shows everything that a kernel sends, and whose messages to widgets do not arrive while a cell runs.
"""

from replays import FrontEnd


class Client(FrontEnd):
    pass
