"""Turns the outcomes of a cell into the exception that is raised, and into the texts that explain it."""
