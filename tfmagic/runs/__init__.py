"""The run folder: the only package that knows its layout and the names of its files."""

from tfmagic.system import linux_only

linux_only.check()
