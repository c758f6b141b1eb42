"""Engines: keys that never collide, records that refuse what does not fit, and nothing half-written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldframe.errors import BundleError, UsageError
from coldframe.export import Bundle, export_bundle, save_reference
from coldframe.export.engine import (
    Engine,
    EngineSpec,
    Profile,
    engine_spec,
    find_engine,
    list_engines,
    mismatches,
    write_engine,
)
from coldframe.export.levjepa import LeVJEPA
from tests.export.conftest import TINY, lively_model

SPEC = EngineSpec(
    flavour="tensorrt",
    version="11.0.0",
    precision="fp16",
    compute_capability="9.0",
    gpu="NVIDIA H200",
    driver="580.65.06",
    weights_sha256="1" * 64,
    graph_sha256="2" * 64,
    graph_data_sha256="3" * 64,
    clip=(16, 224, 224, 3),
    profile=Profile(best=4, largest=8),
)
OTHERS: dict[str, Any] = {
    "flavour": "tensorrt_rtx",
    "version": "11.0.1",
    "precision": "bf16",
    "compute_capability": "8.9",
    "gpu": "NVIDIA H100",
    "driver": "580.65.07",
    "weights_sha256": "4" * 64,
    "graph_sha256": "5" * 64,
    "graph_data_sha256": "6" * 64,
    "clip": (16, 224, 256, 3),
    "profile": Profile(best=4, largest=16),
}


@pytest.fixture(scope="module")
def shared(tiny_model: LeVJEPA, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("engine")
    save_reference(tiny_model, root / "source")
    return export_bundle(root / "source", root / "bundle")


@pytest.fixture
def bundle(shared: Bundle, tmp_path: Path) -> Bundle:
    """The same bundle with an engine folder of its own: nothing here reads the other files."""
    return replace(shared, path=tmp_path)


def rtx(bundle: Bundle, **changes: Any) -> EngineSpec:
    facts = {"flavour": "tensorrt_rtx", "version": "1.7", "precision": "fp32", "compute_capability": "8.9"} | changes
    return engine_spec(bundle, **facts)


# --- keys (field case 33) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
def test_every_fact_is_in_the_key_and_in_the_file_name(name: str) -> None:
    other = replace(SPEC, **{name: OTHERS[name]})
    assert other.key != SPEC.key
    assert other.file_name != SPEC.file_name


def test_no_fact_was_forgotten_here() -> None:
    assert SPEC.to_dict().keys() == OTHERS.keys()


def test_key_survives_the_record() -> None:
    again = EngineSpec.from_dict(json.loads(json.dumps(SPEC.to_dict())))
    assert again == SPEC
    assert again.key == SPEC.key


def test_equal_graphs_with_other_weights_have_other_keys(shared: Bundle, tmp_path: Path) -> None:
    """Two encoders of one shape have graphs of one name and structure; only the weights beside them differ."""
    save_reference(lively_model(TINY, seed=1), tmp_path / "source")
    other = export_bundle(tmp_path / "source", tmp_path / "bundle")
    one, two = rtx(shared), rtx(other)
    assert one.clip == two.clip
    assert one.weights_sha256 != two.weights_sha256
    assert one.graph_data_sha256 != two.graph_data_sha256
    assert one.key != two.key


def test_tuned_plans_are_bound_to_gpu_and_driver_and_portable_ones_are_not(shared: Bundle) -> None:
    facts: dict[str, Any] = {"gpu": "NVIDIA L4", "driver": "1.2.3"}
    tuned = rtx(shared, flavour="tensorrt", **facts)
    assert (tuned.gpu, tuned.driver) == ("NVIDIA L4", "1.2.3")
    assert rtx(shared, **facts) == rtx(shared)


def test_missing_graph_is_refused(shared: Bundle) -> None:
    with pytest.raises(UsageError, match="has no int8 graph; it offers fp32"):
        rtx(shared, precision="int8")


@pytest.mark.parametrize("sizes", [(0, 1, 1), (2, 1, 4), (1, 5, 4)])
def test_impossible_profile_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="wanted is 1 <= smallest <= best <= largest"):
        Profile(smallest=sizes[0], best=sizes[1], largest=sizes[2])


# --- records and plans (field case 34) ------------------------------------------------------------------------------


def test_engine_is_found_again_and_its_plan_is_whole(bundle: Bundle) -> None:
    written = write_engine(bundle, rtx(bundle), b"plan")
    assert list_engines(bundle) == [written]
    found = find_engine(bundle, rtx(bundle))
    assert found == written
    assert found.read_plan() == b"plan"
    assert sorted(path.name for path in (bundle.path / "engines").iterdir()) == [
        written.path.name,
        f"{written.path.name}.json",
    ]


def test_no_engine_says_how_to_build_one(bundle: Bundle) -> None:
    with pytest.raises(
        UsageError, match=r"has no tensorrt_rtx engine in fp32. Build one: coldframe build-engine .*8.9"
    ):
        find_engine(bundle, rtx(bundle))
    write_engine(bundle, rtx(bundle), b"plan")
    with pytest.raises(UsageError, match="has no tensorrt engine in fp32"):
        find_engine(bundle, rtx(bundle, flavour="tensorrt"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": "1.8"}, "version is '1.7', here it is '1.8'"),
        ({"compute_capability": "12.0"}, "compute_capability is '8.9', here it is '12.0'"),
    ],
)
def test_plan_for_another_library_or_gpu_is_refused_without_reading_it(
    bundle: Bundle, change: dict[str, Any], match: str
) -> None:
    engine = write_engine(bundle, rtx(bundle), b"plan")
    engine.path.unlink()  # a plan that is not even there: the decision needs the record alone
    with pytest.raises(BundleError, match=f"no engine in .* fits here .*{match}.*Build one: coldframe build-engine"):
        find_engine(bundle, rtx(bundle, **change))


def test_tuned_plan_is_refused_on_another_gpu_or_driver(bundle: Bundle) -> None:
    facts: dict[str, Any] = {"flavour": "tensorrt", "gpu": "NVIDIA H200", "driver": "580.1"}
    write_engine(bundle, rtx(bundle, **facts), b"plan")
    with pytest.raises(BundleError, match=r"driver is '580.1', here it is '581.0'"):
        find_engine(bundle, rtx(bundle, **{**facts, "driver": "581.0"}))
    with pytest.raises(BundleError, match="gpu is 'NVIDIA H200', here it is 'NVIDIA GH200'"):
        find_engine(bundle, rtx(bundle, **{**facts, "gpu": "NVIDIA GH200"}))


def test_plan_of_other_weights_is_refused(bundle: Bundle) -> None:
    write_engine(bundle, rtx(bundle), b"plan")
    with pytest.raises(BundleError, match=r"weights_sha256 is [0-9a-f]{12}\.\.\., here it is 777777777777\.\.\."):
        find_engine(replace(bundle, weights_sha256="7" * 64), rtx(replace(bundle, weights_sha256="7" * 64)))


def test_largest_fitting_batch_is_taken(bundle: Bundle) -> None:
    for largest in (2, 16, 8):
        write_engine(bundle, rtx(bundle, profile=Profile(best=1, largest=largest)), b"plan")
    write_engine(bundle, rtx(bundle, version="1.8", profile=Profile(best=1, largest=64)), b"plan")
    assert find_engine(bundle, rtx(bundle)).spec.profile.largest == 16


def test_mismatches_name_every_difference_but_the_batch() -> None:
    other = replace(SPEC, **OTHERS)
    assert len(mismatches(SPEC, other)) == len(OTHERS) - 1
    assert mismatches(SPEC, replace(SPEC, profile=Profile(best=1, largest=1))) == []


@pytest.mark.parametrize("damage", [b"", b"pla", b"plan!", b"plaN"])
def test_cut_or_altered_plan_is_refused(bundle: Bundle, damage: bytes) -> None:
    engine = write_engine(bundle, rtx(bundle), b"plan")
    engine.path.write_bytes(damage)
    with pytest.raises(
        BundleError, match=r"is not the plan its record describes.*build it again: coldframe build-engine"
    ):
        engine.read_plan()


def record_of(engine: Engine) -> Path:
    return engine.path.with_name(f"{engine.path.name}.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda record: record.update(format=2), "has format 2; this Coldframe reads 1"),
        (lambda record: record["spec"].update(version="1.8"), "altered or renamed"),
        (lambda record: record["spec"].update(precision="fp16"), "altered or renamed"),
        (lambda record: record["spec"].pop("clip"), "cannot be read as an engine's record"),
        (lambda record: record["spec"].update(colour="blue"), "cannot be read as an engine's record"),
        (lambda record: record.pop("plan"), "cannot be read as an engine's record"),
    ],
)
def test_altered_record_is_refused(bundle: Bundle, change: Any, match: str) -> None:
    path = record_of(write_engine(bundle, rtx(bundle), b"plan"))
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(BundleError, match=match):
        list_engines(bundle)


def test_record_that_is_no_json_is_refused(bundle: Bundle) -> None:
    record_of(write_engine(bundle, rtx(bundle), b"plan")).write_text("[1,")
    with pytest.raises(BundleError, match=r"cannot be read as an engine's record.*Remove it"):
        list_engines(bundle)


def test_plan_without_a_record_does_not_exist(bundle: Bundle) -> None:
    record_of(write_engine(bundle, rtx(bundle), b"plan")).unlink()
    assert list_engines(bundle) == []
