"""The names that features bring to users beside methods of `Cluster`, written out for editors.

`tfmagic` has the functions, and `TaskResults` the attributes. A feature without such names is not here.
"""

from tfmagic.features.profile.names import ProfileOfResults
from tfmagic.features.track.names import TrackedValues, track

__all__ = [
    "track",
]


class FeatureAttributes(
    ProfileOfResults,
    TrackedValues,
):
    """The attributes of all features."""
