"""Parity: how far an exported graph is from the PyTorch reference, measured on the machine that exports.

Compared: [CLS] (of the clip, or of every frame where the encoder has one a frame) and every patch token of a
structured clip, and of one that turns to noise half-way, by cosine and by largest difference, and so the patch tokens
of every further layer; and, within the graph alone, what changes between the two: the last step and [CLS] always,
steps before the noise exactly where attention is full. The worst patch token counts, since a mean hides a wrong
corner. Cosine does not see a wrong scale, so the largest difference over the largest value has a budget too. Two clips
serve both purposes, because a large encoder takes ten seconds for each.

Not compared: real videos (weights decide numerics more than pixels do), other batch sizes (tests do that),
speed.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coldframe.export.geometry import Geometry, HasGeometry, as_geometry
from coldframe.export.pixels import Clips
from coldframe.export.tokens import Tokens

SEED = 20240607
Encode = Callable[[Clips], Tokens]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a precision may differ by at most.

    Attributes:
        cls_cosine, patch_cosine_mean, patch_cosine_worst: least cosine to the reference.
        relative_max_abs: largest absolute difference over the largest absolute value of the reference.
        prefix_max_abs: largest change of earlier frames' tokens when later frames change, unless attention is full.
        response_min: least change of the last frame's tokens, of [CLS], and of earlier frames' tokens where
            attention is full, when the later frames change.
    """

    cls_cosine: float
    patch_cosine_mean: float
    patch_cosine_worst: float
    relative_max_abs: float
    prefix_max_abs: float
    response_min: float


# One budget for both 16-bit precisions.
_HALF = Budget(
    cls_cosine=0.9995,
    patch_cosine_mean=0.9995,
    patch_cosine_worst=0.998,
    relative_max_abs=0.05,
    prefix_max_abs=1e-5,
    response_min=1e-4,
)
# Cosines are the promise of each tier. The other limits catch what cosines do not see:
#   relative_max_abs  a wrong scale. Both sides add the same numbers in another order (fp32, 24 blocks stay near 1e-6);
#                     11 and 8 bits of mantissa gave 2e-3 and 6e-3 on random weights, and real ones have outliers.
#   prefix_max_abs    a lost mask. The same sums over the same rows give the same bits in every precision.
BUDGETS: dict[str, Budget] = {
    "fp32": Budget(
        cls_cosine=0.99999,
        patch_cosine_mean=0.99999,
        patch_cosine_worst=0.99999,
        relative_max_abs=1e-4,
        prefix_max_abs=1e-5,
        response_min=1e-4,
    ),
    "fp16": _HALF,
    "bf16": _HALF,
}
_AT_LEAST = ("cls_cosine", "patch_cosine_mean", "patch_cosine_worst")
_PATCH_MEASURES = ("patch_cosine_mean", "patch_cosine_worst", "relative_max_abs", "max_abs")
Limit = tuple[str, float | None, str, float]  # name, value, whether the bound is its least or most, bound


PREDICTOR = "onnxruntime/fp32/predictor"  # key of the predictor's record in `parity.json`


def variant(backend: str, precision: str) -> str:
    """Key of a record in `parity.json`."""
    return f"{backend}/{precision}"


def parity_clips(geometry: Geometry | HasGeometry) -> dict[str, Clips]:
    """Fixed clips `(1, T, H, W, 3)` by name.

    `moving` is a disc over a colour ramp; `noise` is the same up to the middle (`shared_steps`), and noise after it.
    """
    shape = as_geometry(geometry)
    frames, height, width = shape.frames, shape.height, shape.width
    noise = np.random.default_rng(SEED).integers(0, 256, (1, frames, height, width, 3), dtype=np.uint8)
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width]).reshape(2, 1, 1)
    moving = np.empty_like(noise)
    for t in range(frames):
        phase = t / frames
        ramp = np.stack((x, y, np.full_like(x, phase)), axis=-1) * 200 + 20
        inside = (x - 0.2 - 0.6 * phase) ** 2 + (y - 0.5 - 0.2 * np.sin(6 * phase)) ** 2 < 0.02
        moving[0, t] = np.where(inside[..., None], (240, 60, 30), ramp)
    shared = shared_steps(shape) * (frames // shape.times)
    noise[:, :shared] = moving[:, :shared]
    return {"moving": moving, "noise": noise}


def shared_steps(geometry: Geometry | HasGeometry) -> int:
    """Steps, of the tokens' time axis, that the two clips of `parity_clips` begin with in common."""
    return as_geometry(geometry).times // 2


def remembered(encode: Encode) -> Encode:
    """`encode`, which keeps what it gave for each clip: the reference is slow, and asked the same for every variant."""
    known: dict[bytes, Tokens] = {}

    def once(clips: Clips) -> Tokens:
        key = clips.tobytes()
        if key not in known:
            known[key] = encode(clips)
        return known[key]

    return once


def measure_parity(reference: Encode, candidate: Encode, geometry: Geometry | HasGeometry) -> dict[str, Any]:
    """Measure `candidate` against `reference`, one clip at a time.

    Returns:
        JSON-ready record: the worst of every measure over clips, the measures of each clip, `prefix`, and
        under `layers` the worst measures of each further layer. What concerns [CLS] is None without one.
    """
    clips = parity_clips(geometry)
    tokens = {name: candidate(clip) for name, clip in clips.items()}
    truth = {name: reference(clip) for name, clip in clips.items()}
    by_clip = {name: compare(truth[name], tokens[name]) for name in truth}
    layers = {
        str(layer): _worst(
            [compare_patch(truth[name].layers[layer], tokens[name].layers[layer]) for name in truth], _PATCH_MEASURES
        )
        for layer in as_geometry(geometry).layers
    }
    prefix = compare_prefix(tokens["moving"], tokens["noise"], shared_steps(geometry))
    return {
        **_worst(list(by_clip.values()), ("cls_cosine", *_PATCH_MEASURES)),
        "attention": as_geometry(geometry).attention,
        "prefix": prefix,
        "layers": layers,
        "clips": by_clip,
    }


def _worst(records: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    """The worst of every measure; a NaN is worse than anything, and None everywhere stays None."""
    worst: dict[str, Any] = {}
    for name in names:
        values = [record[name] for record in records]
        pick = min if name in _AT_LEAST else max
        worst[name] = None if None in values else pick(values, key=_nan_is_worst(name))
    return worst


def compare(reference: Tokens, candidate: Tokens) -> dict[str, Any]:
    """Measures of one batch against the reference; not finite where either side is not."""
    measures = compare_patch(reference.patch, candidate.patch)
    if reference.vectors is None or candidate.vectors is None:
        return {"cls_cosine": None, **measures}
    largest = max(_largest(reference.vectors), _largest(reference.patch))
    max_abs = max(_largest(reference.vectors - candidate.vectors), measures["max_abs"])
    return {
        **measures,
        "cls_cosine": float(cosine(reference.vectors, candidate.vectors).min()),
        "max_abs": max_abs,
        "relative_max_abs": max_abs / largest if largest > 0 else float("nan"),
    }


def compare_patch(reference: NDArray[np.float32], candidate: NDArray[np.float32]) -> dict[str, Any]:
    """Measures of vectors along the last axis, such as the patch tokens of one layer."""
    patch = cosine(reference, candidate)
    largest, max_abs = _largest(reference), _largest(reference - candidate)
    return {
        "patch_cosine_mean": float(patch.mean()),
        "patch_cosine_worst": float(patch.min()),
        "max_abs": max_abs,
        "relative_max_abs": max_abs / largest if largest > 0 else float("nan"),
    }


def compare_prefix(whole: Tokens, cut: Tokens, shared: int) -> dict[str, Any]:
    """What changed between two clips that have their first `shared` steps in common, and no later one."""
    change = np.abs(whole.patch - cut.patch)
    earlier, cls = float(change[:, :shared].max(initial=0.0)), None
    if whole.has_cls:
        cls = _largest(whole.cls - cut.cls)
    elif whole.has_frame_cls:
        vectors = np.abs(whole.frame_cls - cut.frame_cls)
        earlier, cls = max(earlier, float(vectors[:, :shared].max(initial=0.0))), float(vectors[:, -1].max())
    return {
        "earlier_frames": shared,
        "max_abs": earlier,
        "last_frame": float(change[:, -1].max()),
        "cls": cls,
    }


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine along the last axis in float64; NaN for a vector of zeros."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(wide_a, axis=-1) * np.linalg.norm(wide_b, axis=-1)
    dots = np.einsum("...i,...i->...", wide_a, wide_b)
    cosines: NDArray[np.float64] = np.divide(dots, norms, out=np.full_like(dots, np.nan), where=norms > 0)
    return cosines


def over_budget(record: Mapping[str, Any], precision: str) -> list[str]:
    """Every measure of `record` that misses the budget of `precision`, in words; a NaN always misses."""
    budget = asdict(BUDGETS[precision])
    prefix = record["prefix"]
    limits: list[Limit] = [(name, record[name], "least", budget[name]) for name in _AT_LEAST]
    limits += [
        ("relative_max_abs", record["relative_max_abs"], "most", budget["relative_max_abs"]),
        _prefix_limit(record, budget),
        ("change of the last frame", prefix["last_frame"], "least", budget["response_min"]),
        ("change of cls", prefix["cls"], "least", budget["response_min"]),
    ]
    missed = _misses(limits)
    for layer, measures in record["layers"].items():
        missed += [f"layer {layer} {miss}" for miss in patch_over_budget(measures, precision)]
    return missed


def patch_over_budget(measures: Mapping[str, Any], precision: str) -> list[str]:
    """The same for measures of patch tokens alone (`compare_patch`)."""
    budget = asdict(BUDGETS[precision])
    limits: list[Limit] = [(name, measures[name], "least", budget[name]) for name in _AT_LEAST[1:]]
    return _misses([*limits, ("relative_max_abs", measures["relative_max_abs"], "most", budget["relative_max_abs"])])


def _prefix_limit(record: Mapping[str, Any], budget: Mapping[str, float]) -> Limit:
    """What may become of earlier frames when later ones change. One step has no earlier ones."""
    change = record["prefix"]["max_abs"]
    if record["attention"] == "full" and record["prefix"]["earlier_frames"]:
        return ("change of earlier frames", change, "least", budget["response_min"])
    return ("change of earlier frames", change, "most", budget["prefix_max_abs"])


def _misses(limits: list[Limit]) -> list[str]:
    """In words, every limit that is not kept; None stands for what the encoder does not have."""
    return [
        f"{name} is {value:.6g}, allowed is at {bound} {limit:g}"
        for name, value, bound, limit in limits
        if value is not None and not (value >= limit if bound == "least" else value <= limit)
    ]


def _largest(values: NDArray[np.float32]) -> float:
    return float(np.abs(values).max())


def _nan_is_worst(name: str) -> Callable[[float], float]:
    worst = -np.inf if name in _AT_LEAST else np.inf
    return lambda value: worst if np.isnan(value) else value
