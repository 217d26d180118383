"""The features: each is one folder, which brings its half for the notebook's process and its half for a task.

    NAMES ── tfmagic.system.features ──→ NAME/kernel.py: FEATURE, of `tfmagic.clusters.cells.features`
                                     ├─→ NAME/task.py: make, a part of `tfmagic.task.cell_parts`; PATCHES
                                     ├─→ NAME/lines.py: line commands, of `tfmagic.clusters.api.lines`
                                     ├─→ NAME/ways.py: another way in which a notebook runs a cell
                                     ├─→ NAME/pages.py, shell.py: commands of the program ``tfmagic``
                                     ├─→ NAME/scripts.py: options of ``tfmagic run``, and what they change
                                     ├─→ NAME/steps.py: STEPS, which messages propose
                                     ├─→ NAME/figures.py: open_figures, of `tfmagic.views.figures`
                                     ├─→ NAME/recorded.py: FIELD, of `tfmagic.runs.feature_fields`
                                     └─→ NAME/pytest_hooks.py: a plugin of pytest
    Cluster ── bases ──→ its methods: a base class
    tfmagic, TaskResults ── names ──→ its functions and attributes

Without its folder, its name here and its lines in `bases` and `names` a feature is gone, and the rest works.
The order is that in which they begin and settle. What a feature sends with a cell, or with the report of a
task, travels under its name.
"""

NAMES = (
    "early_variables",
    "track",
    "shared_files",
    "different_weights",
    "profile",
    "notify",
    "tensorboard",
    "reload",
    "diff",
    "debug",
    "faults",
    "exports",
    "comparison",
    "pictures",
    "doctor",
    "report",
    "course",
    "metrics",
    "testing",
)
