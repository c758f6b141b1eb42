"""Controls on a page: verdicts, effects, and the leak meter."""

from coldframe.probes import svg
from coldframe.probes.control_report import ControlReport
from coldframe.probes.html_parts import PROSE, table
from coldframe.probes.svg import text
from coldframe.probes.verdict import Control


def controls_part(found: ControlReport | None) -> str:
    """The verdict table with its plot and the leak meter, or how to get them."""
    if found is None:
        command = "<code>coldframe-probe controls STORE --label ... --report R.html</code>"
        return f"<p>Not run. They use the ridge readout: {command} runs them.</p>"
    measured = [control for control in found.controls if control.interval is not None and control.effect is not None]
    bars = [
        svg.Bar(
            name=c.name.replace("_", " "), value=c.effect or 0.0, interval=c.interval, reference=0.0, note=c.verdict
        )
        for c in measured
    ]
    plot = svg.intervals(bars, low=-1.0, high=1.0, title="Effects of the controls") if bars else ""
    head = ["control", "verdict", "effect", "95 %", "p", "p Holm", PROSE]
    return plot + table(head, [_control(control) for control in found.controls], raw={1}) + _leaks(found)


def _control(control: Control) -> list[str]:
    ends = "-" if control.interval is None else f"{control.interval[0]:+.3f} to {control.interval[1]:+.3f}"
    return [
        control.name.replace("_", " "),
        f'<span class="badge {control.verdict}">{control.verdict.replace("_", " ")}</span>',
        "-" if control.effect is None else f"{control.effect:+.3f}",
        ends,
        "-" if control.p is None else f"{control.p:.2g}",
        "-" if control.p_holm is None else f"{control.p_holm:.2g}",
        f"{control.what}: {control.reason}",
    ]


def _leaks(found: ControlReport) -> str:
    if found.other_sources is None or found.same_source is None:
        return f"<p>Leak meter: {text(found.no_retrieval)}</p>"
    one, both = found.other_sources, found.same_source
    rows = [
        [name, f"{score.micro:.3f}", f"{both.scores[name].micro:.3f}", f"{score.chance:.3f}"]
        for name, score in one.scores.items()
    ]
    head = ["retrieval", "other sources", "with its own source", "chance"]
    return f"<h3>Leak meter</h3>{table(head, rows)}"
