"""The command `coldframe verify`: what the store's records say, and, with the encoder, what its rows should be."""

import json

import click

from coldframe.errors import StoreError
from coldframe.export import open_bundle
from coldframe.progress import progress_bar
from coldframe.serve.canary import Canary, check_canaries
from coldframe.store import VerifyReport, open_store, path_to_text, verify_store
from coldframe.store.files import Place, place_of
from coldframe.store.root import read_root

_HARMLESS = ("absent", "uncommitted", "unexpected")  # problems beside which the rows that are ok can be read


@click.command("verify")
@click.argument("store")
@click.option("--fast", is_flag=True, help="Check markers, presence and sizes only, without hashing.")
@click.option("--encoder", metavar="DIR", help="Bundle: also encode a few rows again and compare (canaries).")
@click.option(
    "--canaries", type=click.IntRange(1), default=8, show_default=True, help="Rows to encode again, evenly spread."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify_command(store: str, fast: bool, encoder: str | None, canaries: int, as_json: bool) -> None:
    """Check every row, marker and checksum of a store.

    With --encoder, a few rows are also decoded and encoded again from their videos: checksums show that bytes are
    those that were written, canaries that they were right.

    Nothing is changed; `coldframe repair` mends what is found. Exit code 0 if the store is complete and sound, 1 if
    anything is wrong or absent; every problem is listed.

    \b
    Examples:
      coldframe verify videos.zarr
      coldframe verify videos.zarr --fast
      coldframe verify videos.zarr --encoder levjepa-large/ --canaries 32
    """
    place = place_of(store)
    report = _verify(place, fast)
    sound = all(problem.kind in _HARMLESS for problem in report.problems)
    readable = sound and report.ok > 0
    checked = _canaries(place, encoder, canaries) if encoder and readable else []
    if as_json:
        extra = {"canaries": [canary.to_dict() for canary in checked] if readable else None} if encoder else {}
        click.echo(json.dumps({"store": path_to_text(place), **report.to_dict(), **extra}))
    else:
        click.echo("\n".join([_verify_text(report), *_canary_lines(checked)]))
        if encoder and not readable:
            why = "no row is ok." if sound else "what is there is not sound: mend it first."
            click.echo(f"No canary was encoded, since {why}")
    if not report.passed:
        raise StoreError(_next_step(report))
    wrong = [canary for canary in checked if canary.problem]
    if wrong:
        raise StoreError(
            f"{len(wrong)} of {len(checked)} canary rows were not confirmed. If the videos are as they were, the "
            "store was made by another decoder or encoder than this one: make it anew, or find out what changed."
        )


def _canaries(store: Place, encoder: str, count: int) -> list[Canary]:
    opened = open_store(store)
    with progress_bar("Encoding canaries", min(count, len(opened.ok_rows()))) as advance:
        return check_canaries(opened, open_bundle(encoder), count, on_row=advance)


def _canary_lines(checked: list[Canary]) -> list[str]:
    lines = [f"canary: row {canary.row}: {canary.path}: {canary.problem}" for canary in checked if canary.problem]
    measured = [canary for canary in checked if canary.max_abs is not None]
    if measured:
        cosines = [value for canary in measured for value in (canary.cls_cosine, canary.patch_cosine_worst)]
        worst = min(value for value in cosines if value is not None)
        largest = max(canary.max_abs or 0.0 for canary in measured)
        lines.append(
            f"{len(measured)} canary rows encoded again: worst cosine {worst:.7f}, largest difference {largest:.2g}"
        )
    return lines


def _verify(place: Place, fast: bool) -> VerifyReport:
    root = read_root(place)  # not open_store, which refuses an altered plan instead of reporting it
    with progress_bar("Verifying units", -(-root.rows // root.unit_rows)) as advance:
        return verify_store(place, deep=not fast, on_unit=lambda done, total: advance(1))


def _verify_text(report: VerifyReport) -> str:
    lines = []
    for problem in report.problems:
        unit = "plan" if problem.unit is None else f"unit {problem.unit}"
        lines.append(": ".join(part for part in (problem.kind, unit, problem.object, problem.message) if part))
    checked = "markers, sizes, checksums and rows" if report.deep else "markers and sizes (not checksums)"
    lines.append(
        f"{report.planned} rows planned = {report.ok} ok + {report.failed} failed + {report.absent} absent; "
        f"checked {checked}: {len(report.problems) or 'no'} problem{'s' * (len(report.problems) != 1)}"
    )
    return "\n".join(lines)


def _next_step(report: VerifyReport) -> str:
    count = f"{len(report.problems)} problem{'s' * (len(report.problems) != 1)} found."
    steps = []
    if any(problem.kind == "plan" for problem in report.problems):
        steps.append("The plan has changed since the store was made: restore those files, or make the store anew.")
    if any(problem.kind not in ("plan", "unexpected") for problem in report.problems):
        steps.append("Run `coldframe repair` on the store: it extracts exactly the units above again.")
    if any(problem.kind == "unexpected" for problem in report.problems):
        steps.append("Remove the unexpected files: no unit of this store owns them.")
    return " ".join([count, *steps])
