"""Losses against the written formula and PyTorch's own functions."""

import math

import pytest
import torch
from torch.nn import functional

from coldframe.probes.losses import focal


@pytest.mark.parametrize(("classes", "wanted"), [(97, 12.5), (289, 37.5), (3568, 463.6)])
def test_focal_loss_at_zero_logits_is_that_of_the_released_protocol(classes: int, wanted: float) -> None:
    loss = focal(torch.zeros(1, 1, classes, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    # one positive with weight 0.25 and classes - 1 negatives with 0.75, each 0.25 log 2
    assert float(loss) == pytest.approx((0.25 + 0.75 * (classes - 1)) * 0.25 * math.log(2))
    assert float(loss) == pytest.approx(wanted, abs=0.06)


def test_focal_loss_is_the_weighted_binary_cross_entropy_of_its_formula() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 5, dtype=torch.float64) * 3, torch.tensor([4, 0, 2])
    hot = functional.one_hot(target, 5).double().expand(2, -1, -1)
    p = torch.sigmoid(logits)
    right = p * hot + (1 - p) * (1 - hot)
    plain = functional.binary_cross_entropy(p, hot, reduction="none")
    wanted = ((0.25 * hot + 0.75 * (1 - hot)) * (1 - right) ** 2 * plain).sum(-1)
    torch.testing.assert_close(focal(logits, target), wanted)
