"""The private parts of h5py that tfmagic replaces or relies on, and what works without them."""

from tfmagic.system.patches import Patch, PatchTable

GUARD = "one writer of an HDF5 file"
IDENTIFIER = "an HDF5 file on a full disk"

_H5PY = "h5py>=3.10"

TABLE = PatchTable(
    Patch(
        GUARD,
        ("h5py:File.__init__(name, mode, driver)",),
        "two tasks that write one HDF5 file damage it",
        "let each task write a file of its own: no error tells that two tasks write one HDF5 file",
        versions_tried=_H5PY,
    ),
    Patch(
        IDENTIFIER,
        ("h5py._hl.base:HLObject.__init__ uses _id", "h5py:h5f.FileID"),
        "a file that the disk cannot take stays half open: even its `repr` would end the process",
        "do not use a file of tfmagic.hdf5 any more after the error of a full disk",
        versions_tried=_H5PY,
    ),
)
