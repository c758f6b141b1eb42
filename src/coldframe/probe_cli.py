"""The `coldframe-probe` command. It lives in the root package because it ties probes and exported encoders together."""

from collections.abc import Mapping

import click

import coldframe
from coldframe.lazy_group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "anticipation": Subcommand(
        target="coldframe.probes.anticipation_cli:anticipation_command",
        short_help="Fit heads that say from the clip before an action which one follows.",
    ),
    "attentive": Subcommand(
        target="coldframe.probes.readout_cli:attentive_command",
        short_help="Fit a grid of attentive heads on all tokens in one pass.",
    ),
    "controls": Subcommand(
        target="coldframe.probes.controls_cli:controls_command",
        short_help="Run negative controls on a linear probe.",
    ),
    "knn": Subcommand(
        target="coldframe.probes.readout_cli:knn_command",
        short_help="Classify every row by its nearest rows of other sources.",
    ),
    "logistic": Subcommand(
        target="coldframe.probes.readout_cli:logistic_command",
        short_help="Fit a multinomial logistic linear probe.",
    ),
    "multi-label": Subcommand(
        target="coldframe.probes.multilabel_cli:multilabel_command",
        short_help="Fit one binary problem a label, for several labels a video.",
    ),
    "predict": Subcommand(
        target="coldframe.probes.readout_cli:predict_command",
        short_help="Predict with a saved probe on every ok row.",
    ),
    "retrieve": Subcommand(
        target="coldframe.probes.retrieve_cli:retrieve_command",
        short_help="Rank windows by cosine: hit@k, recall@k and mAP.",
    ),
    "split": Subcommand(
        target="coldframe.probes.split_cli:split_command",
        short_help="Divide videos into train, validation and test by whole sources.",
    ),
    "linear": Subcommand(
        target="coldframe.probes.cli:linear",
        short_help="Fit a linear probe on a store and report it on test videos.",
    ),
    "parity": Subcommand(
        target="coldframe.export.cli:parity_command",
        short_help="Measure a bundle again against its PyTorch reference.",
    ),
}


@click.group("coldframe-probe", cls=LazyGroup, subcommands=SUBCOMMANDS)
@click.version_option(coldframe.__version__)
def main() -> None:
    """Fit readouts on features that were extracted before, and check the encoder that made them."""


if __name__ == "__main__":
    main()
