"""Checks whether rows fit a dataset that grows along axis 0, for `parts` and the shared writer."""

from typing import Any

from tfmagic.hdf5.errors import MismatchError


def check_growth(found: Any, name: str) -> None:
    """Raise MismatchError where the object of this name is no dataset that can grow along axis 0."""
    import h5py

    if not isinstance(found, h5py.Dataset):
        raise MismatchError(f"{name!r} is a group, not a dataset: append to another name")
    if not found.maxshape or found.maxshape[0] is not None:
        raise MismatchError(
            f"dataset {name!r} of shape {found.shape} cannot grow: let append create it, or create it with "
            "maxshape=(None, ...)"
        )


def check_rows(name: str, held: Any, brought: Any, held_shape: Any, brought_shape: Any) -> None:
    """Raise MismatchError where rows do not have the dtype (or its name) and the shape of those held."""
    if held != brought:
        raise MismatchError(
            f"dataset {name!r} holds {held}, and these rows are {brought}: convert them with "
            f"array.astype({str(held)!r}); append does not, since that could lose precision"
        )
    if held_shape != brought_shape:
        raise MismatchError(
            f"dataset {name!r} has rows of shape {held_shape}, and these are of shape {brought_shape}"
        )
