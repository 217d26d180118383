"""What tests of distributed code use: `tfmagic.testing.raises_on("worker-1", ValueError)`."""

from tfmagic.features.testing.raises import raises_on

__all__ = ["raises_on"]
