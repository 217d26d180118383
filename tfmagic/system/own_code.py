"""Where tfmagic's own code is: whoever shows frames of the user's leaves those of this folder out."""

from __future__ import annotations

import os

OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The package's folder, with a separator at its end."""
