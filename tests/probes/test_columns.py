import numpy as np
import pytest

from coldframe.errors import UsageError
from coldframe.probes.columns import doubtful_classes, require_classes, video_text
from tests.probes.memory import separable_store


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["a", "", "  ", "b c"], ["a", "", "", "b c"]),
        (np.array([3, -1, 10, 3]), ["3", "-1", "10", "3"]),
        (np.array([1.0, np.nan, 2.5, -0.0]), ["1", "", "2.5", "0"]),
        (np.array([True, False, True, True]), ["true", "false", "true", "true"]),
        (np.array(["x", "y", "", "z"]), ["x", "y", "", "z"]),
    ],
    ids=["list of text", "integers", "floats", "booleans", "array of text"],
)
def test_text_of_a_column(column: object, expected: list[str]) -> None:
    store = separable_store(videos=4, more={"extra": column})
    assert video_text(store, "extra") == expected


def test_unknown_column_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no column 'lable' .*: label, path, sha256, source\. .* --labels FILE"):
        video_text(separable_store(), "lable")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "'x' is empty"),
        (["a"] * 5, "'x' has the one value 'a' in all 5"),
        (["0.12", "3", "4.5e3", "7"], "4 distinct numbers in 4 videos"),
        (["1", "2", "3", "1", "1"], "3 distinct numbers in 5 videos"),
    ],
)
def test_columns_that_are_no_classes_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        require_classes("x", values)


@pytest.mark.parametrize("values", [["1", "2", "1", "2"], ["a", "b", "c", "d"], ["1", "2", "c"]])
def test_columns_that_may_be_classes_pass(values: list[str]) -> None:
    require_classes("x", values)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["red", "green"], []),
        (["1", "2", "10", "1_0", "-1"], []),
        (["123456789012345678901", "123456789012345678902"], []),
        (["red", " red", "Red "], ["' red', 'Red ', 'red' count as 3 classes"]),
        (["1", "01", "1.0", "2"], ["'01', '1', '1.0' count as 3 classes"]),
        (["0", "-0"], ["'-0', '0' count as 2 classes"]),
        (["caf\u00e9", "cafe\u0301", "tea"], ["count as 2 classes"]),
        (["nan", "x"], ["'nan' counts as a class"]),
        (["NaN", "nan", "x"], ["'NaN', 'nan' count as 2 classes", "'NaN' counts as a class"]),
    ],
)
def test_classes_that_differ_in_writing_only_are_named(names: list[str], said: list[str]) -> None:
    found = list(doubtful_classes(sorted(names)))
    assert len(found) == len(said)
    assert all(part in whole for part, whole in zip(said, found, strict=True))
