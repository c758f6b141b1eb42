"""Options that several commands share, and what their text means."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

import coldframe
from coldframe.errors import UsageError
from coldframe.probes.features import FEATURE_KINDS
from coldframe.probes.labels import with_labels
from coldframe.probes.logistic import STRENGTH_RANGE
from coldframe.probes.page import require_html
from coldframe.probes.saved import require_probe_place
from coldframe.probes.split_manifest import SplitManifest, read_manifest
from coldframe.probes.token_view import ShardedStore
from coldframe.store.text import path_to_text
from coldframe.store.windows import window_text

CREATED_BY = f"coldframe {coldframe.__version__}"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """Numbers in a range, of which NaN is none; click lets it pass, because it compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


store_argument = click.argument("store", type=click.Path())
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
device_option = click.option("--device", default="cpu", show_default=True, help="cpu or cuda; never a fallback.")
features_option = click.option(
    "--features",
    type=click.Choice(FEATURE_KINDS),
    default="cls",
    show_default=True,
    help="The [CLS] token, the mean of the patch tokens of real frames, or colour or motion without an encoder.",
)
strengths_option = click.option(
    "--strength", "-C", "strengths", type=FiniteRange(*STRENGTH_RANGE), multiple=True, help="Grid of C."
)
label_option = click.option("--label", required=True, metavar="COLUMN", help="Video column that holds the classes.")
labels_option = click.option(
    "--labels", "labels_csv", metavar="FILE.csv", help="CSV with a sha256 or path column, and the labels."
)
groups_option = click.option(
    "--group",
    "groups",
    multiple=True,
    default=["source"],
    show_default=True,
    metavar="COLUMN",
    help="Video column whose values stay on one side of a split; repeatable. Equal files always do.",
)


def split_seeds(command: _Command) -> _Command:
    """`--seed` and `--seeds`, where each seed is a split."""
    return _all(
        command,
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="First split seed."),
        click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of splits."),
    )


def sealed_split(command: _Command) -> _Command:
    """`--split` and `--again`."""
    return _all(
        command,
        click.option("--split", "split_file", metavar="SPLIT.json", help="Split made by `coldframe-probe split`."),
        click.option("--again", metavar="REASON", help="Why the test part of --split is read once more."),
    )


def outputs(command: _Command) -> _Command:
    """`--report`, `--save` and `--json`."""
    return _all(
        command,
        click.option(
            "--report",
            "report_file",
            metavar="R.html",
            help="Write an HTML page, and R.json and its plots (SVG) beside it.",
        ),
        click.option(
            "--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the head that is best on validation."
        ),
        json_option,
    )


def _all(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    for option in reversed(options):  # decorators nearest to the command are listed last
        command = option(command)
    return command


def require_outputs(report_file: str | None, save: Path | None) -> None:
    """Refuse files that cannot be written, or would take the place of others, before test is read for nothing."""
    require_html(report_file)
    if save is not None:
        require_probe_place(save)
        of_report = [] if report_file is None else [Path(report_file), Path(report_file).with_suffix(".json")]
        if save.absolute() in [one.absolute() for one in of_report]:
            raise UsageError(f"--save {path_to_text(save)} is a file of the report too. Choose another name.")


@contextmanager
def shown(text: str) -> Iterator[None]:
    """Print a report after its files were written, and also if they could not be: its test part was read once."""
    try:
        yield
    finally:
        click.echo(text)


def labelled(store: ShardedStore, labels_csv: str | None) -> ShardedStore:
    """`store`, with the columns of a CSV file if one is named. Clips that show what they should not are announced."""
    if store.recipe.window == "before_stop":
        click.echo(f"warning: {store.name}: each clip {window_text(store.recipe)}.", err=True)
    return store if labels_csv is None else with_labels(store, labels_csv)


def manifest_of(split_file: str | None, *replaced: str) -> SplitManifest | None:
    """The split in a file, if one is named.

    Args:
        replaced: options of the running command, such as `--seeds`, that say how to split.

    Raises:
        UsageError: one of them was given beside the file, which decides what it asks for.
    """
    if split_file is None:
        return None
    refuse_beside("--split", *replaced)
    return read_manifest(split_file)


def refuse_beside(decides: str, *others: str) -> None:
    """Refuse options that the running command would have to ignore because of the option `decides`.

    Raises:
        UsageError: one of `others` is on the command line.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        for option in sorted({*parameter.opts} & {*others}):
            if given:
                raise UsageError(f"{option} has no say beside {decides}, which decides it. Leave one of them out.")


def numbers(text: str | None, name: str) -> tuple[float, ...]:
    """The numbers of an option such as `0.01,0.1,1`; none for an option that was not given."""
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}; allowed are numbers with commas between them, such as 0.1,1.") from error
