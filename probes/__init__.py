"""Readouts on stored features: which rows, split by source, fitted, scored, reported.

    category.py, columns.py, groups.py   names as codes, columns as text, leak components
    selection.py, split.py               rows that may be used; train, validation and test by whole components
    features.py                          tokens of rows as one matrix
    ridge.py, metrics.py                 closed-form head; counts and what follows from them
    division.py, scored.py               seeds or a file into parts; one head's look at its test rows
    probe_report.py, report.py, caveats.py   what every readout reports; what to know before quoting it
    linear.py, logistic_probe.py         the ridge and logistic probes
    loader.py                            token batches of a store larger than memory
    presets.py, pooler.py, heads.py      attentive heads: protocols, folded attention, stacked parameters
    token_view.py, late_gradients.py     which tokens a head reads; gradients of matrices made once an update
    adamw.py, losses.py, training.py     one update for all heads of a grid; the grid in one pass
    attentive.py, attentive_report.py    the attentive probe and its report
    lbfgs.py, logistic.py, nearest.py    logistic head over a grid of C; the k-NN probe
    multilabel_rows.py, multilabel.py, multilabel_report.py   several labels a video
    actions.py, action_scores.py, anticipation.py, anticipation_report.py, anticipation_page.py, challenge.py   actions
    saved.py, released.py, predict.py    saved probes; V-JEPA 2's checkpoint layout; predictions
    ranking.py, calibration.py           metrics of ranks and of probabilities
    source_counts.py, bootstrap.py, permutation.py, uncertainty.py   intervals and tests over sources
    make_split.py, split_manifest.py, near_duplicates.py, sealed.py, listed.py   splits in files, read once
    refit.py, controls.py, verdict.py, control_report.py   negative controls and what they say
    retrieval.py, sample_efficiency.py   ranking without a head; shares of train
    page.py, page_*.py, html_parts.py, svg.py, svg_lines.py, multilabel_page.py   reports as one HTML page
    cli.py, *_cli.py, options.py         `coldframe-probe`

From Python:

    report = linear_probe(open_store("videos.zarr"), label="action")
    report.mean("balanced_accuracy")
"""

from coldframe.probes.linear import LinearReport, linear_probe

__all__ = ["LinearReport", "linear_probe"]
