"""Readouts on stored features: which rows, split by source, fitted, scored, reported.

    category.py, columns.py, groups.py   names as codes, columns as text, leak components
    selection.py, split.py               rows that may be used; train, validation and test by whole components
    features.py                          tokens of rows as one matrix
    ridge.py, metrics.py                 closed-form head; counts and what follows from them
    linear.py, caveats.py, report.py     the linear probe, what to know before quoting it, text and JSON
    cli.py                               `coldframe-probe`

From Python:

    report = linear_probe(open_store("videos.zarr"), label="action")
    report.mean("balanced_accuracy")
"""

from coldframe.probes.linear import LinearReport, linear_probe

__all__ = ["LinearReport", "linear_probe"]
