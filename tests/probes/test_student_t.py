import pytest
from scipy import stats

from coldframe.probes.student_t import t_cdf, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 9, 30, 500, 20_000])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9995])
def test_quantile_equals_scipy(degrees: int, probability: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-9)


def test_distribution_equals_scipy_and_starts_at_one_half() -> None:
    assert t_cdf(0.0, 5) == 0.5
    for value in (0.01, 0.7, 2.0, 12.0):
        assert t_cdf(value, 7) == pytest.approx(stats.t.cdf(value, 7), rel=1e-12)
