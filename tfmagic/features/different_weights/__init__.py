"""The hint after a `fit` that has left different weights on tasks that trained one model."""
