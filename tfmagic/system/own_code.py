"""The folder of tfmagic's own code: its frames are left out wherever frames of the user's code are shown."""

import os

OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The package's folder, with a separator at its end."""
