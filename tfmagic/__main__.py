"""``python -m tfmagic``."""

import sys

from tfmagic.frontends.cli import main

sys.exit(main())
