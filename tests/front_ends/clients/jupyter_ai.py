"""The tools of an agent in jupyter-ai 3.2.0, from jupyter_ai_tools 0.7.0, toolkits/jupyterlab.py and notebook.py.

`run_cell` runs the cell in the user's JupyterLab; `read_notebook_cells` gives the agent the text of its outputs.
"""

from clients import jupyterlab
from replays import for_agent


class Client(jupyterlab.Client):
    def shown(self, cell):
        return for_agent([output for output in cell if not jupyterlab.is_live(output)])
