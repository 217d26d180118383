"""The log of `papermill --log-output`: the installed package. Its notebook is nbclient's."""

import logging

from clients import nbclient
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NotebookExecutionManager


class Client(nbclient.Client):
    def make(self, notebook, manager):
        self.records = []
        log = logging.Logger("papermill", logging.INFO)
        log.addFilter(lambda record: self.records.append(record.getMessage()))
        writer = NotebookExecutionManager(notebook, progress_bar=False, log_output=True)
        return PapermillNotebookClient(writer, km=manager, log_output=True, log=log)

    def run(self, code, seen):
        self.records.clear()
        return super().run(code, seen)

    def shown(self, outputs):
        text = "\n".join(record.rstrip("\n") for record in self.records)
        return [{"output_type": "stream", "name": "log", "text": text}]
