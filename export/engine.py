"""Engine: a TensorRT plan in a bundle, with everything that decides whether it may run here.

```
<bundle>/engines/<flavour>.<precision>.sm<capability>.<key>.plan         what TensorRT built
<bundle>/engines/<flavour>.<precision>.sm<capability>.<key>.plan.json    its record, written last
```

A plan says nothing about the weights it was built from, and TensorRT refuses a foreign one only late and not
always. So the record holds the weights' and the graph's digests, flavour and version, precision, GPU and batch
profile, the key is a digest over all of them, and `find_engine` refuses any difference before the plan is read.
The answer to a mismatch is always to build again; nothing is rebuilt behind the caller's back, since a
build takes minutes and an extraction would start with other numbers than planned.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from coldframe.errors import BundleError, UsageError
from coldframe.export.bundle_files import Bundle

Flavour = Literal["tensorrt", "tensorrt_rtx"]
FLAVOURS: tuple[Flavour, ...] = get_args(Flavour)
ENGINE_FORMAT = 1
ENGINE_FOLDER = "engines"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Batch sizes of the optimisation profile: any from `smallest` to `largest` runs, `best` runs fastest."""

    smallest: int = 1
    best: int = 4
    largest: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.best <= self.largest:
            raise UsageError(
                f"the batch profile is {self.smallest}, {self.best}, {self.largest}; "
                "wanted is 1 <= smallest <= best <= largest."
            )


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """Everything that decides what a plan computes and where it may run.

    Attributes:
        flavour, version: TensorRT library and its version.
        precision: arithmetic that the graph carries.
        compute_capability: such as `8.9`.
        gpu, driver: GPU and driver that a `tensorrt` plan was tuned on; None for `tensorrt_rtx`, which is
            finished on the target for any GPU of its compute capability.
        weights_sha256: digest of the encoder's weights (`Bundle.weights_sha256`).
        graph_sha256, graph_data_sha256: digests of the graph file and of the weights file beside it.
        clip: `(T, H, W, 3)`.
        profile: batch sizes.
    """

    flavour: Flavour
    version: str
    precision: str
    compute_capability: str
    gpu: str | None
    driver: str | None
    weights_sha256: str
    graph_sha256: str
    graph_data_sha256: str
    clip: tuple[int, int, int, int]
    profile: Profile = field(default_factory=Profile)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "clip": list(self.clip)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EngineSpec":
        clip = tuple(values["clip"])
        return cls(**{**values, "clip": clip, "profile": Profile(**values["profile"])})

    @property
    def key(self) -> str:
        """sha256 over all of it: two plans that could differ in any number have two keys."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        capability = self.compute_capability.replace(".", "")
        return f"{self.flavour}.{self.precision}.sm{capability}.{self.key[:16]}.plan"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A plan on disk.

    Attributes:
        path: the plan.
        spec: what it is.
        plan_bytes, plan_sha256: size and digest of the plan.
    """

    path: Path
    spec: EngineSpec
    plan_bytes: int
    plan_sha256: str

    def read_plan(self) -> bytes:
        """The plan, checked against its record.

        Raises:
            BundleError: it was cut or altered.
        """
        plan = self.path.read_bytes() if self.path.is_file() else b""
        if len(plan) != self.plan_bytes or hashlib.sha256(plan).hexdigest() != self.plan_sha256:
            raise BundleError(
                f"{self.path} is not the plan its record describes ({len(plan):,} bytes, recorded are "
                f"{self.plan_bytes:,}). Remove it and build it again: {rebuild(self.path.parents[1], self.spec)}"
            )
        return plan


def engine_spec(
    bundle: Bundle,
    *,
    flavour: Flavour,
    version: str,
    precision: str,
    compute_capability: str,
    gpu: str | None = None,
    driver: str | None = None,
    profile: Profile | None = None,
) -> EngineSpec:
    """The spec of a plan built from `bundle` by that library for that GPU.

    Raises:
        UsageError: the bundle has no graph of that precision.
    """
    if precision not in bundle.precisions:
        raise UsageError(
            f"{bundle.path} has no {precision} graph; it offers {', '.join(bundle.precisions)}. "
            "TensorRT runs what the graph says, so export the encoder in that precision first."
        )
    graph = bundle.graph(precision).name
    tuned = flavour == "tensorrt"
    return EngineSpec(
        flavour=flavour,
        version=version,
        precision=precision,
        compute_capability=compute_capability,
        gpu=gpu if tuned else None,
        driver=driver if tuned else None,
        weights_sha256=bundle.weights_sha256,
        graph_sha256=bundle.files[graph]["sha256"],
        graph_data_sha256=bundle.files[f"{graph}.data"]["sha256"],
        clip=bundle.geometry.clip_shape,
        profile=profile or Profile(),
    )


def write_engine(bundle: Bundle, spec: EngineSpec, plan: bytes) -> Engine:
    """Put a plan into `bundle`, its record last, so that a plan without one is never used."""
    folder = bundle.path / ENGINE_FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / spec.file_name
    write_whole(path, plan)
    engine = Engine(path=path, spec=spec, plan_bytes=len(plan), plan_sha256=hashlib.sha256(plan).hexdigest())
    record = {
        "format": ENGINE_FORMAT,
        "key": spec.key,
        "spec": spec.to_dict(),
        "plan": {"bytes": engine.plan_bytes, "sha256": engine.plan_sha256},
    }
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    write_whole(path.with_name(path.name + ".json"), text.encode())
    return engine


def find_engine(bundle: Bundle, wanted: EngineSpec) -> Engine:
    """The engine in `bundle` that may run as `wanted`; its batch profile is the plan's own.

    Of several the one with the largest batch is taken. No plan is read.

    Raises:
        UsageError: there is none of this flavour and precision.
        BundleError: there are some, and each differs in something that matters; all differences are named.
    """
    fix = f"Build one: {rebuild(bundle.path, wanted)}"
    known = [
        engine
        for engine in list_engines(bundle)
        if (engine.spec.flavour, engine.spec.precision) == (wanted.flavour, wanted.precision)
    ]
    if not known:
        raise UsageError(f"{bundle.path} has no {wanted.flavour} engine in {wanted.precision}. {fix}")
    differences = {engine.path.name: mismatches(engine.spec, wanted) for engine in known}
    fitting = [engine for engine in known if not differences[engine.path.name]]
    if not fitting:
        told = "; ".join(f"{name}: {', '.join(found)}" for name, found in differences.items())
        raise BundleError(f"no engine in {bundle.path / ENGINE_FOLDER} fits here ({told}). {fix}")
    return max(fitting, key=lambda engine: engine.spec.profile.largest)


def mismatches(found: EngineSpec, wanted: EngineSpec) -> list[str]:
    """Every difference that forbids running `found` as `wanted`, in words; the batch profile is no such thing."""
    here, there = found.to_dict(), replace(wanted, profile=found.profile).to_dict()
    return [
        f"{name} is {_short(here[name])}, here it is {_short(there[name])}"
        for name in here
        if here[name] != there[name]
    ]


def list_engines(bundle: Bundle) -> list[Engine]:
    """Every engine with a record, by file name.

    Raises:
        BundleError: a record cannot be read, is of another format, or does not match its own key.
    """
    records = sorted((bundle.path / ENGINE_FOLDER).glob("*.plan.json"))
    return [_read_record(path) for path in records]


def rebuild(bundle_path: Path, spec: EngineSpec) -> str:
    """The command that builds `spec` anew."""
    target = f" --compute-capability {spec.compute_capability}" if spec.flavour == "tensorrt_rtx" else ""
    return (
        f"coldframe build-engine {bundle_path} --flavour {spec.flavour} --precision {spec.precision}{target}"
        f" --max-batch {spec.profile.largest}"
    )


def _read_record(path: Path) -> Engine:
    fix = f"Remove it and build the engine again (coldframe build-engine {path.parents[1]} --help)."
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != ENGINE_FORMAT:
            raise BundleError(f"{path} has format {record['format']!r}; this Coldframe reads {ENGINE_FORMAT}. {fix}")
        engine = Engine(
            path=path.with_suffix(""),
            spec=EngineSpec.from_dict(record["spec"]),
            plan_bytes=record["plan"]["bytes"],
            plan_sha256=record["plan"]["sha256"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path} cannot be read as an engine's record: {error!r}. {fix}") from error
    if engine.spec.key != record.get("key") or engine.path.name != engine.spec.file_name:
        raise BundleError(f"{path} was altered or renamed: it does not match its own key. {fix}")
    return engine


def write_whole(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _short(value: Any) -> str:
    """A value for a message; digests are cut."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else repr(value)
