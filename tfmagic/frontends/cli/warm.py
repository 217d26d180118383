"""``tfmagic warm``: import TensorFlow once for the scripts, tests and notebooks that follow."""

import argparse
import sys

from tfmagic.backends import launcher_client, templates
from tfmagic.errors import LaunchError
from tfmagic.system.advice import program_name


def main(args: argparse.Namespace) -> int:
    """Start the process. Return 1 if there is one, or it could not be started."""
    try:
        environment = launcher_client.environment_of(launcher_client.Flavour())
        warm = templates.start_asked(environment, args.minutes * 60)
    except LaunchError as error:
        print(f"{program_name()} warm: {error}", file=sys.stderr)
        return 1
    print(f"{warm}. Clusters of this environment start from it; {program_name()} reap  ends it")
    return 0
