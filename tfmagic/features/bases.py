"""The methods of `Cluster` that features bring: the one place beside the tuple that names a feature.

Written out, so that an editor completes them. A feature without methods is not here.
"""

from tfmagic.features.debug.methods import Debugging
from tfmagic.features.diff.methods import Differences
from tfmagic.features.exports.methods import Exports
from tfmagic.features.faults.methods import Faults
from tfmagic.features.pictures.methods import Pictures
from tfmagic.features.reload.methods import Reloading
from tfmagic.features.tensorboard.methods import TensorBoards


class FeatureMethods(
    Debugging,
    Differences,
    Exports,
    Faults,
    Pictures,
    Reloading,
    TensorBoards,
):
    """The methods of all features."""
