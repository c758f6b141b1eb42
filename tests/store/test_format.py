"""docs/FORMAT.md says what the code does: codes, arrays, attributes, and a reader written from it alone."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import zarr

from coldframe.store import FORMAT_VERSION, Flag, Reason, Status, Store, seal
from tests.store.plans import annotated_store

TEXT = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text()


def section(title: str) -> str:
    return re.split(r"^#+ ", TEXT.split(f"### {title}\n")[1], maxsplit=1, flags=re.M)[0]


@pytest.mark.parametrize(("title", "codes"), [("status", Status), ("reason", Reason), ("flags", Flag)])
def test_code_tables_are_those_of_the_schema(title: str, codes: type[Status] | type[Reason] | type[Flag]) -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", section(title), flags=re.M)
    assert {int(code): name for code, name in rows} == {item.value: item.name for item in codes}
    assert len(rows) == len(codes)


def test_the_version_is_pinned() -> None:
    assert TEXT.startswith(f"# The store on disk, format version {FORMAT_VERSION}\n")
    assert f"| `format_version` | {FORMAT_VERSION} |" in TEXT


def test_the_array_table_is_what_a_store_has(filled: Store, tmp_path: Path) -> None:
    table = TEXT.split("## 2. Arrays")[1].split("A video that cannot be used")[0]
    documented: dict[str, tuple[str, str]] = {}
    for names, dims, kind in re.findall(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+?)[ ,|]", table, flags=re.M):
        documented |= dict.fromkeys(re.findall(r"`([^`]+)`", names), (dims, kind))
    assert documented.pop("video_<column>") == ("video", "one")
    assert documented.pop("annotation_<column>") == ("clip", "string")
    group = zarr.open_group(str(filled.path), mode="r")
    found = {name: array for name, array in group.arrays() if name not in ("video_label", "video_take")}
    actions = zarr.open_group(str(annotated_store(tmp_path).path), mode="r")
    found |= {name: array for name, array in actions.arrays() if name.startswith("annotation_")}
    assert set(found) == set(documented)
    for name, array in found.items():
        dims, kind = documented[name]
        metadata = array.metadata.to_dict()
        assert metadata["dimension_names"] == tuple(dims.split(", ")), name
        assert metadata["data_type"] == {"as": "float16"}.get(kind, kind), name


def test_the_attribute_table_is_what_a_store_has(filled: Store) -> None:
    table = TEXT.split("## 3. Root attributes")[1].split("**Canonical JSON**")[0]
    keys = {key for names in re.findall(r"^\| (`[^|]+) \|", table, flags=re.M) for key in re.findall(r"`(\w+)`", names)}
    attributes = zarr.open_group(str(filled.path), mode="r").attrs["coldframe"]
    assert isinstance(attributes, dict)
    assert "earlier_plans" not in attributes  # which a store has that grew: test_grow.py
    assert keys == {*attributes, "earlier_plans"}


def test_the_worked_example_is_a_marker(filled: Store) -> None:
    example = json.loads(TEXT.split("```json\n")[1].split("```")[0])
    marker = json.loads((filled.path / "units" / "1.json").read_text())
    assert set(example) == set(marker)
    assert set(example["failures"][0]) == set(marker["failures"][0])
    assert example["objects"]["cls/c/1/0"]["bytes"] == (filled.path / "cls/c/1/0").stat().st_size
    assert set(marker["objects"]) - set(example["objects"]) == {"patch/c/1/0/0/0/0"}


def read_as_a_stranger(folder: Path) -> dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float16]]]:
    """[CLS] of every ok row by row number, by the rules of FORMAT.md, without our reader; float16 only."""

    def digest(value: object) -> str:
        return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    root = json.loads((folder / "zarr.json").read_text())["attributes"]["coldframe"]
    assert root["recipe_id"] == digest(root["recipe"])
    tokens = {}
    for unit, start in enumerate(range(0, root["rows"], root["unit_rows"])):
        marker = json.loads((folder / "units" / f"{unit}.json").read_text())
        own = marker.pop("sha256")
        assert own == digest(marker)
        assert all((folder / key).stat().st_size == o["bytes"] for key, o in marker["objects"].items())
        rows = min(root["unit_rows"], root["rows"] - start)
        status = np.fromfile(folder / "status" / "c" / str(unit), np.uint8)[:rows]
        body = (folder / "cls" / "c" / str(unit) / "0").read_bytes()
        chunks = root["unit_rows"] // 16
        index = np.frombuffer(body[-16 * chunks - 4 : -4], "<u8").reshape(chunks, 2)
        for row in range(rows):
            offset, _ = index[row // 16].tolist()
            chunk = np.frombuffer(body[offset : offset + 32 * root["geometry"]["dim"]], "<f2").reshape(16, -1)
            if status[row] == 1:
                tokens[start + row] = chunk[row % 16]
    return tokens


def test_a_reader_written_from_the_document_gets_the_same_tokens(filled: Store) -> None:
    seal(filled)
    tokens = read_as_a_stranger(filled.path)
    assert sorted(tokens) == filled.ok_rows().tolist()
    np.testing.assert_array_equal(np.array([tokens[row] for row in sorted(tokens)], np.float32), filled.cls())
