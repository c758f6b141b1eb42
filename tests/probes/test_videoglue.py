"""VideoGLUE's averages against its own tables, of which seven rows do not follow from their cells."""

import json
import math
from pathlib import Path

import pytest

from coldframe.errors import UsageError
from coldframe.probes.videoglue import cost_weights, group_average, weighted_score

TABLES = json.loads((Path(__file__).parent / "videoglue_tables.json").read_text())["tables"]
VATT = {"end_to_end": 52.7, "frozen": 40.5, "mlap": 46.9, "adapter": 49.9}
GFLOPS = {"end_to_end": 360.7, "frozen": 3.71, "mlap": 14.86, "adapter": 7.41}


def cells(table: str, method: str) -> dict[str, float]:
    return {name: value for name, value in TABLES[table][method].items() if name != "AVG" and value is not None}


def test_17_printed_rows_follow_from_their_cells_and_7_do_not() -> None:
    verdicts = {
        (table, method): group_average(cells(table, method)).agrees(row["AVG"])
        for table, rows in TABLES.items()
        for method, row in rows.items()
    }
    assert len(verdicts) == 24
    assert {key for key, agrees in verdicts.items() if not agrees} == {
        ("3", "CLIP"),
        *(("5", method) for method in TABLES["5"]),
    }


def test_a_group_counts_once_however_many_datasets_it_has() -> None:
    found = group_average(cells("4", "VATT"))
    assert found.groups == pytest.approx({"STAL": 21.25, "VC(A)": 53.6, "VC(M)": 53.75, "VC(ML)": 33.3})
    assert found.value == pytest.approx((21.25 + 53.6 + 53.75 + 33.3) / 4)
    assert group_average(cells("4", "VATT"), include_tal=True).value == pytest.approx(39.44)
    assert (found.missing_datasets, found.missing_groups) == ((), ())


def test_what_is_missing_is_said() -> None:
    found = group_average({"AVA": 20.0, "K400": 70.0, "MiT": 30.0})
    assert found.value == pytest.approx((20 + 50) / 2)
    assert found.missing_datasets == ("AVA-K",)
    assert found.missing_groups == ("VC(M)", "VC(ML)")
    assert group_average({"AVA": 1.0}, include_tal=True).missing_groups[0] == "TAL"


def test_weighted_score_and_its_unit() -> None:
    assert weighted_score(VATT, GFLOPS) == pytest.approx(45.57, abs=0.005)
    in_mflops = {name: 1000 * cost for name, cost in GFLOPS.items()}
    assert weighted_score(VATT, in_mflops) == pytest.approx(46.93, abs=0.005)
    in_gmacs = {name: cost / 2 for name, cost in GFLOPS.items()}
    assert weighted_score(VATT, in_gmacs) == pytest.approx(44.64, abs=0.005)
    both = ("frozen", "mlap")
    assert weighted_score({n: VATT[n] for n in both}, {n: GFLOPS[n] for n in both}) == pytest.approx(42.59, abs=0.005)
    assert weighted_score({"frozen": 40.5}, {"frozen": 3.71}) == 40.5


def test_weights_sum_to_one_and_explode_at_one_gflop() -> None:
    weights = cost_weights(list(GFLOPS.values()))
    assert math.fsum(weights) == pytest.approx(1, abs=1e-15)
    by_hand = [1 / math.log10(cost) for cost in GFLOPS.values()]
    assert weights == pytest.approx([value / sum(by_hand) for value in by_hand])
    assert cost_weights([360.7, 1.05, 14.86, 7.41])[1] == pytest.approx(0.952, abs=0.0005)


@pytest.mark.parametrize("cost", [1.0, 0.5, 0.0, -3.0, math.inf, math.nan])
def test_costs_without_a_weight_are_refused(cost: float) -> None:
    with pytest.raises(UsageError, match=r"costs .* GFLOP; .* allowed is more than 1"):
        weighted_score({"frozen": 40.5, "mlap": 46.9}, {"frozen": 3.71, "mlap": cost})


def test_scores_that_cannot_be_averaged_are_refused() -> None:
    with pytest.raises(UsageError, match="no dataset 'Kinetics'; its datasets are ANet, AVA"):
        group_average({"Kinetics": 70.0})
    with pytest.raises(UsageError, match="score of K400 is nan"):
        group_average({"K400": math.nan})
    with pytest.raises(UsageError, match="no task group has a score"):
        group_average({"ANet": 35.3})
    with pytest.raises(UsageError, match="both need the same adaptations"):
        weighted_score(VATT, {"frozen": 3.71})
    with pytest.raises(UsageError, match="0 costs"):
        cost_weights([])
