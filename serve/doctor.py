"""Doctor: tries every decoder on samples of a corpus and says which one to trust with which files.

Files are grouped by what makes decoders differ. Samples of each group are decoded by all decoders; the reference is
PyAV reading in one sequential pass, and PyAV reading each frame by itself is one of those that have to meet it. A
decoder that gives other frames, other colours or other features than the reference is quarantined for the group.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coldframe.errors import ColdframeError, VideoError
from coldframe.serve.agreement import Agreement, Square, compare
from coldframe.serve.clips import ClipReader, PyAVReader, VideoClips
from coldframe.serve.container import file_sha256
from coldframe.serve.kinds import Kind, Looked, look_at_files
from coldframe.store.text import path_to_text

MIN_COSINE = 0.999
_NEIGHBOURS = 2  # frames on each side that a picture is held against, to see which one it is
_WHOLE_FRAMES = 600  # up to here the reference is read from the first frame to the last, without a seek


class Encode(Protocol):
    """An encoder for the comparison of features: clips (B, T, S, S, 3) uint8 to [CLS] vectors (B, dim)."""

    def __call__(self, clips: NDArray[np.uint8]) -> NDArray[np.float32]: ...


@dataclass(kw_only=True)
class BackendResult:
    """One decoder on the samples of one group.

    Attributes:
        verdict: `agree`, in what the decoder differs, `other features`, `leaks`, or `not used` where it leaves all
            samples to PyAV.
        fallbacks: samples that it left to PyAV, by reason.
        agreements: of the samples that it decoded.
        cosine: smallest cosine of [CLS] vectors; None without an encoder.
    """

    verdict: str = "agree"
    fallbacks: dict[str, int] = field(default_factory=dict)
    agreements: list[Agreement] = field(default_factory=list)
    cosine: float | None = None


@dataclass(kw_only=True)
class Group:
    """Files of one kind and what came out for them.

    Attributes:
        recommended: the decoder to use; None if no sample can be decoded.
        quarantined: decoders that gave something else than the reference.
        unusable: samples with a frame that PyAV cannot read, with the reason. No decoder is tried with them.
    """

    kind: Kind
    files: int
    samples: list[str]
    backends: dict[str, BackendResult] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    recommended: str | None = None
    quarantined: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(kw_only=True)
class Diagnosis:
    """Groups, most files first, and files that cannot be read at all."""

    groups: list[Group]
    unusable: dict[str, str]

    @property
    def exit_code(self) -> int:
        """3 if a decoder is quarantined or a file is unusable."""
        return 3 if self.unusable or any(group.quarantined or group.unusable for group in self.groups) else 0

    @property
    def recommended(self) -> str | None:
        """The decoder for all files: the first that agrees in some group and is quarantined in none."""
        tried = {name: None for group in self.groups for name in group.backends}  # in order of preference
        agree = [name for name in tried if any(_verdict(group, name) == "agree" for group in self.groups)]
        return next((name for name in agree if not any(name in group.quarantined for group in self.groups)), None)


def diagnose(
    paths: Sequence[str],
    backends: Mapping[str, Callable[[], ClipReader]],
    *,
    size: int,
    frames: int,
    samples: int,
    encode: Encode | None = None,
    on_file: Callable[[], object] = lambda: None,
    threads: int = 1,
) -> Diagnosis:
    """Group `paths` and try `backends` on samples.

    Args:
        paths: files.
        backends: makers of readers by name, in order of preference; each gives squares of `size` pixels.
        size: side of the squares in pixels.
        frames: frames a sample; with `encode`, the clip length that it takes.
        samples: most files tried in one group.
        encode: compares features too.
        on_file: called after each file was looked at.
        threads: files looked at together, each in a process that can be killed.
    """
    groups: dict[Kind, list[Looked]] = defaultdict(list)
    unusable = {}
    for path, found in zip(paths, look_at_files(paths, threads), strict=True):
        if isinstance(found, VideoError):
            unusable[path] = f"{found.reason}: {found}"
        else:
            groups[found.kind].append(found)
        on_file()
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), str(item[0])))
    return Diagnosis(
        groups=[_try_group(kind, members, backends, size, frames, samples, encode) for kind, members in ordered],
        unusable=unusable,
    )


def _verdict(group: Group, backend: str) -> str | None:
    return group.backends[backend].verdict if backend in group.backends else None


def _try_group(
    kind: Kind,
    members: Sequence[Looked],
    backends: Mapping[str, Callable[[], ClipReader]],
    size: int,
    frames: int,
    samples: int,
    encode: Encode | None,
) -> Group:
    chosen = [members[place] for place in sorted({*np.linspace(0, len(members) - 1, samples).round().astype(int)})]
    group = Group(kind=kind, files=len(members), samples=[member.path for member in chosen])
    trials: list[_Trial] = []
    for member in chosen:
        trial = _reference(member, size, frames)
        if isinstance(trial, VideoError):
            group.unusable[member.path] = f"{trial.reason}: {trial}"
        else:
            trials.append(trial)
    if not trials:
        return group
    for name, make in backends.items():
        with closing(make()) as reader:
            group.backends[name] = _try_backend(reader, trials, encode)
    group.quarantined = [name for name, result in group.backends.items() if result.verdict not in ("agree", "not used")]
    group.recommended = next((name for name, result in group.backends.items() if result.verdict == "agree"), None)
    return group


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trial:
    """One sample: what is asked of every decoder, and the reference's pictures, neighbours included.

    `numbers` are at most `frames` frames, fewer in a short video.
    """

    video: VideoClips
    numbers: NDArray[np.int64]
    frames: int
    reference: dict[int, Square]


def _reference(looked: Looked, size: int, frames: int) -> _Trial | VideoError:
    """Frames spread over the video, ends included, and read in one pass with their neighbours."""
    path, count = looked.path, looked.frames
    numbers = np.unique(np.linspace(0, count - 1, frames).round().astype(np.int64))
    near = numbers[:, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)
    near = np.unique(near[(near >= 0) & (near < count)])
    every = np.arange(count) if count <= _WHOLE_FRAMES else near
    try:
        sha256, _ = file_sha256(path)
    except VideoError as error:
        return error
    reader = PyAVReader(image_size=size)
    pictures: dict[int, Square] = {}
    problem: VideoError | None = None
    for number, answer in zip(every.tolist(), reader.read(_frames(path, sha256, every)), strict=True):
        if isinstance(answer[1], VideoError):
            problem = problem or answer[1]
        elif number in near:
            pictures[number] = answer[1][0]
    if problem is not None:
        return problem
    return _Trial(video=_frames(path, sha256, numbers), numbers=numbers, frames=frames, reference=pictures)


def _frames(path: str, sha256: str, numbers: NDArray[np.int64]) -> VideoClips:
    """Every frame as a row of its own."""
    return VideoClips(
        path=path, sha256=sha256, rows=np.arange(len(numbers)), frame_index=numbers[:, None].astype(np.int32)
    )


def _try_backend(reader: ClipReader, trials: Sequence[_Trial], encode: Encode | None) -> BackendResult:
    result = BackendResult()
    pictures = _read_all(reader, trials, result)
    for place, trial in enumerate(trials):
        found = pictures[place]
        if found is None:
            continue
        if set(found) != set(trial.numbers.tolist()):
            result.verdict = "missing frames"
            continue
        agreement = compare(found, trial.reference)
        result.agreements.append(agreement)
        if agreement.verdict != "agree":
            result.verdict = agreement.verdict
        if encode is not None:
            cosine = _cosine(encode, found, trial)
            result.cosine = cosine if result.cosine is None else min(result.cosine, cosine)
    if not any(found is not None for found in pictures):
        result.verdict = "not used"
    elif result.verdict == "agree" and result.cosine is not None and result.cosine < MIN_COSINE:
        result.verdict = "other features"
    elif result.verdict == "agree" and _leaks(reader, trials, pictures):
        result.verdict = "leaks"
    return result


def _read_all(
    reader: ClipReader, trials: Sequence[_Trial], result: BackendResult | None = None
) -> list[dict[int, Square] | None]:
    """Squares by frame number for each trial, read in this order; None for a file that was left to PyAV."""
    reader.begin([trial.video for trial in trials])
    answers: list[dict[int, Square] | None] = []
    left = 0
    for trial in trials:
        rows = list(reader.read(trial.video))
        fallbacks = reader.provenance().get("decoder_fallbacks", {})
        total = sum(reason["videos"] for reason in fallbacks.values())
        if result is not None:
            result.fallbacks = {reason: counts["videos"] for reason, counts in fallbacks.items()}
        found = {int(trial.numbers[row]): clip[0] for row, clip in rows if not isinstance(clip, VideoError)}
        answers.append(None if total > left else found)
        left = total
    return answers


def _leaks(reader: ClipReader, trials: Sequence[_Trial], expected: Sequence[dict[int, Square] | None]) -> bool:
    """True if a file's pictures depend on which files were read before it."""
    order = list(range(len(trials)))[::-1]  # the one order in which every file follows another than before
    found = _read_all(reader, [trials[place] for place in order])
    for place, pictures in zip(order, found, strict=True):
        known = expected[place]
        if (pictures is None) != (known is None):
            return True
        if pictures is not None and known is not None:
            if set(pictures) != set(known):
                return True
            if any(not np.array_equal(pictures[number], known[number]) for number in known):
                return True
    return False


def _cosine(encode: Encode, found: Mapping[int, Square], trial: _Trial) -> float:
    numbers = trial.numbers.tolist()
    numbers += numbers[-1:] * (trial.frames - len(numbers))
    left, right = (
        encode(np.stack([pictures[number] for number in numbers])[None])[0].astype(np.float64)
        for pictures in (found, trial.reference)
    )
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise ColdframeError(
            f"The encoder gives a [CLS] that is not finite for frames of {path_to_text(trial.video.path)}, so features "
            "cannot be compared. Export the encoder again, or run doctor without --encoder."
        )
    return float(left @ right / max(float(np.linalg.norm(left) * np.linalg.norm(right)), 1e-12))
