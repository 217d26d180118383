"""Values that change while a cell runs: those of `tfmagic.track`, and what `fit` reports, by itself.

    task.py: Tracker ══ FeatureRecorded ══ runs/feature_records ─┬─→ figures.py: charts in views
    fit.py: a callback ─┘                                        ├─→ recorded.py: JSON, sentences
    names.py: track ────┘                                        └─→ names.py: `results.tracked`

All of it is deleted with this folder: that features record, show and report anything is the spine's.
"""
