"""Refit: the ridge readout again for other labels, without touching the features again.

The eigenvectors of the train Gram matrix do not depend on labels. Features are rotated into them once; each set of
labels then costs one product with the train rows and one with the validation rows, choice of the penalty included.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.probes.ridge import PENALTIES, Features, RidgeHead, choose, eigenbasis
from coldframe.probes.split import Split


class Refit:
    """Train, validation and test features of one split, standardised on train and rotated, in float64."""

    def __init__(self, matrix: Features, split: Split, classes: int) -> None:
        train = matrix[split.train].astype(np.float64)
        varies = train.min(axis=0) != train.max(axis=0)  # constant features get no weight in `fit_ridge` either
        mean, scale = train[:, varies].mean(axis=0), train[:, varies].std(axis=0)
        standard = (train[:, varies] - mean) / scale
        self._eigenvalues, vectors = eigenbasis(standard)
        self._train = standard @ vectors
        # Any, because `RidgeHead` speaks of float32 rows and works on these just as well.
        self._validation: Any = (matrix[split.validation][:, varies] - mean) / scale @ vectors
        self._test: Any = (matrix[split.test][:, varies] - mean) / scale @ vectors
        self._classes = classes

    def predict(self, train: NDArray[np.int64], validation: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n_test,) class codes of the head that these labels of train and validation rows give."""
        wanted = np.where(train[:, None] == np.arange(self._classes), 1.0, -1.0)
        intercept = wanted.mean(axis=0)
        cross = self._train.T @ (wanted - intercept)
        heads = [
            RidgeHead(
                mean=np.zeros(len(cross)),
                scale=np.ones(len(cross)),
                weight=cross / (self._eigenvalues + len(train) * penalty)[:, None],
                intercept=intercept,
                penalty=float(penalty),
            )
            for penalty in PENALTIES
        ]
        head, _ = choose(heads, self._validation, validation, self._classes)
        return head.predict(self._test)
