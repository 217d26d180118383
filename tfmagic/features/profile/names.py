"""What users call: `profile` of results. `tfmagic` imports it: it loads no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfmagic.features.profile.shares import Profile


class ProfileOfResults:
    """What results have of it."""

    _found: Mapping[str, Any]

    @property
    def profile(self) -> Profile | None:
        """Where the time went, if ``--profile`` or `profile` was given."""
        return self._found.get("profile")
