"""``python -m tfmagic``."""

import sys

from tfmagic.cli import main

sys.exit(main())
