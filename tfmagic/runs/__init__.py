"""The run folder: the only package that knows its layout and the names of its files."""
