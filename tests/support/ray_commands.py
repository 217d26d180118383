"""A program that reads the lines of Ray's command line given as JSON, and prints the first that Ray does not accept.

A process of its own, since the import of Ray is one of thousands of modules.
"""

import json
import shlex
import sys

import click
from ray.scripts.scripts import cli


def main():
    for line in json.loads(sys.argv[1]):
        _, name, *words = shlex.split(line)
        if name not in cli.commands:
            sys.exit(f"{line}: there is no {name}")
        try:
            cli.commands[name].make_context(name, words)
        except click.ClickException as error:
            sys.exit(f"{line}: {error.format_message()}")


main()
