"""Verdict: what one control says, in numbers and in one word.

pass            the control shows what an honest experiment shows, with enough power to have shown otherwise
fail            it shows what it must not show
inconclusive    it could not have told the difference; this is an answer, and not a mild pass
not_applicable  the question does not arise here; the reason says why
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coldframe.probes.bootstrap import Interval
from coldframe.probes.permutation import Null, holm

Word = Literal["pass", "fail", "inconclusive", "not_applicable"]
DELTA = 0.02  # a mean this near to chance is at chance
MOST_UNDETECTED = 0.10  # a test that would miss a larger excess says nothing
SIGNIFICANT = 0.05


@dataclass(frozen=True, kw_only=True)
class Control:
    """One line of the verdict table.

    Attributes:
        name: short name, as in the documentation.
        what: the effect that was measured, in words.
        effect: its value; None if nothing could be measured.
        interval: of the effect over sources or permutations; None where there is none.
        p, p_holm: raw, and adjusted over the family of tests in one report; None if nothing was tested.
        draws: permutations or sign flips.
        sources: independent units in the test part.
        detectable: excess that the test would find with 80 % power at 5 %.
        verdict, reason: the word, and why.
    """

    name: str
    what: str
    effect: float | None
    interval: tuple[float, float] | None = None
    p: float | None = None
    p_holm: float | None = None
    draws: int | None = None
    sources: int | None = None
    detectable: float | None = None
    verdict: Word
    reason: str


def at_chance(name: str, what: str, null: Null, chance: float, sources: int, *, two_sided: bool) -> Control:
    """A control whose scores must be at chance.

    Args:
        null: scores of the permutations.
        chance: what they must be near.
        two_sided: whether a mean below chance is wrong too. A relabelling of few sources is a little below it,
            because a class that is common in train is rare in what is left for test.
    """
    excess = null.mean - chance
    noise = 2 * null.sd / len(null.scores) ** 0.5
    away = abs(excess) if two_sided else excess
    low, high = null.quantiles()
    if away - noise > DELTA:
        word, reason = "fail", f"{null.mean:.3f} on average, and chance is {chance:.3f}"
    elif null.detectable_excess > MOST_UNDETECTED or high > chance + MOST_UNDETECTED + DELTA:
        word, reason = "inconclusive", _weak(null, sources)
    elif away > DELTA:
        word, reason = "inconclusive", f"{away:.3f} from chance, within the noise of {len(null.scores)} permutations"
    else:
        word, reason = "pass", f"at chance; an excess of {null.detectable_excess:.3f} would have been seen"
    return Control(
        name=name,
        what=what,
        effect=excess,
        interval=(low - chance, high - chance),
        draws=len(null.scores),
        sources=sources,
        detectable=null.detectable_excess,
        verdict=word,  # type: ignore[arg-type]
        reason=reason,
    )


def above_null(name: str, what: str, observed: float, null: Null, sources: int, *, p: float | None = None) -> Control:
    """The real score against scores under permuted labels; judged after Holm's correction.

    Args:
        observed: the real score.
        null: scores under permuted labels.
        p: of another statistic of the same permutations; that of the score itself if None.
    """
    low, high = null.quantiles()
    return Control(
        name=name,
        what=what,
        effect=observed - null.mean,
        interval=(observed - high, observed - low),
        p=null.p_value(observed) if p is None else p,
        draws=len(null.scores),
        sources=sources,
        detectable=null.detectable_excess,
        verdict="inconclusive",
        reason=_weak(null, sources) if null.detectable_excess > MOST_UNDETECTED else "",
    )


def judged(controls: Sequence[Control]) -> list[Control]:
    """The same controls with Holm's p over all that have one; those are judged by it.

    A significant effect passes. A test without power is inconclusive, and one with power that found nothing fails.
    Controls that are not applicable keep their word and leave the family.
    """
    tested = [i for i, control in enumerate(controls) if control.p is not None and control.verdict != "not_applicable"]
    adjusted = dict(zip(tested, holm([controls[i].p or 0.0 for i in tested]), strict=True))
    out = []
    for i, control in enumerate(controls):
        if i not in adjusted:
            out.append(control)
            continue
        p = adjusted[i]
        if p < SIGNIFICANT:
            word, reason = "pass", f"p = {p:.2g} after Holm over {len(tested)} tests"
        elif control.reason:
            word, reason = "inconclusive", control.reason
        else:
            word, reason = "fail", f"p = {p:.2g} after Holm over {len(tested)} tests: no more than chance gives"
        out.append(replace(control, p_holm=p, verdict=word, reason=reason))  # type: ignore[arg-type]
    return out


def ends(interval: Interval) -> tuple[float, float] | None:
    """The ends of an interval, or None."""
    return None if interval.low is None or interval.high is None else (interval.low, interval.high)


def _weak(null: Null, sources: int) -> str:
    return (
        f"with {sources} test sources only an excess of {null.detectable_excess:.2f} or more would be seen "
        f"({MOST_UNDETECTED:.2f} is asked for)"
    )
