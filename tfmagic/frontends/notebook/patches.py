"""The private parts of IPython that tfmagic replaces or relies on, and what works without them."""

from tfmagic.system.patches import Patch, PatchTable

ERRORS = "errors shown whole"
AWAITED = "awaited cells"
PROMPT = "the prompt of plain cells"

_IPYTHON = "ipython>=7.34"
_SHELL = "IPython.core.interactiveshell:InteractiveShell"

TABLE = PatchTable(
    Patch(
        ERRORS,
        (
            f"{_SHELL}.showtraceback(exc_tuple)",
            f"{_SHELL}._get_exc_info(exc_tuple)",
            f"{_SHELL}._showtraceback(etype, evalue, stb)",
        ),
        "IPython shows no ExceptionGroup, and a SyntaxError of a task with lines of tfmagic",
        "errors that a group holds are not shown: results and %tb have them",
        versions_tried=_IPYTHON,
    ),
    Patch(
        AWAITED,
        (),
        "the buttons of a panel work while a cell runs",
        "the buttons of a panel work only after the cell",
        versions_tried=_IPYTHON,
        probe="tfmagic.frontends.notebook.awaited_cells:missing",
    ),
    Patch(
        PROMPT,
        ("IPython.terminal.prompts:Prompts.in_prompt_tokens()",),
        "in a terminal the prompt names the cluster that runs plain cells",
        "the prompt does not tell where plain cells run: %tfcluster all",
        versions_tried=_IPYTHON,
    ),
)
