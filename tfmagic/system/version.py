"""The version of tfmagic: nothing imports the package as a whole for it."""

VERSION = "0.1.0"
