"""Presets: attentive heads and their training, by the names of the protocols that they follow.

Sources: V-JEPA 2 heads and schedules from facebookresearch/vjepa2@c2963a4 (evals); VideoGLUE's single pooler from the
public frozen configs of tensorflow/models official/projects/videoglue and eq. 1-2 of arXiv 2307.03166. LeVJEPA's probe
code is not public: its paper describes the V-JEPA protocol unmodified, so `levjepa` is V-JEPA 2's depth 1 that also
reads [CLS]. `docs/probes.md` lists how each differs from its original.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from coldframe.errors import UsageError

Loss = Literal["cross_entropy", "focal"]
VJEPA2_RATES = (5e-3, 3e-3, 1e-3, 3e-4, 1e-4)
VJEPA2_DECAYS = (0.01, 0.1, 0.4, 0.8)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One head and how it is trained.

    Attributes:
        name: as on the command line.
        heads: attention heads.
        hidden: width of the attention; None is the width of the tokens.
        self_blocks: self-attention blocks over all tokens before the query reads them.
        rounds: feature maps that the query reads one after another; 1 reads the encoder's output only.
        reads_cls: whether [CLS] is one of the tokens.
        out_projection: whether cross-attention has an output projection.
        query_residual: whether the query is added to what it read.
        mlp: whether an MLP of ratio 4 with a residual follows.
        epsilon: of every LayerNorm in the head.
        init: `vjepa2` (normal 0.02, rescaled by depth) or `glorot` (uniform).
        dropout: before the classifier.
        label_smoothing: of the cross-entropy.
        loss: `cross_entropy`, averaged over a batch, or `focal`, summed over it.
        beta2: of AdamW; beta1 is 0.9.
        decays: what weight decay acts on: `all` parameters, or `matrices` (not on LayerNorm and biases).
        rates, weight_decays: the grid.
        warmup: share of the steps with a rising learning rate.
        epochs, batch: passes over the train rows, rows of one update.
    """

    name: str
    heads: int = 16
    hidden: int | None = None
    self_blocks: int = 0
    rounds: int = 1
    reads_cls: bool = False
    out_projection: bool = False
    query_residual: bool = True
    mlp: bool = True
    epsilon: float = 1e-5
    init: Literal["vjepa2", "glorot"] = "vjepa2"
    dropout: float = 0.0
    label_smoothing: float = 0.0
    loss: Loss = "cross_entropy"
    beta2: float = 0.999
    decays: Literal["all", "matrices"] = "all"
    rates: tuple[float, ...] = VJEPA2_RATES
    weight_decays: tuple[float, ...] = VJEPA2_DECAYS
    warmup: float = 0.0
    epochs: int = 20
    batch: int = 256

    def with_heads(self, heads: int | None) -> Self:
        """The same with another number of attention heads; None changes nothing."""
        return self if heads is None else replace(self, heads=heads)

    def width(self, dim: int) -> int:
        """Width of the attention over tokens of width `dim`.

        Raises:
            UsageError: the attention heads do not divide it.
        """
        width = self.hidden or dim
        if width % self.heads:
            raise UsageError(
                f"preset {self.name} has {self.heads} attention heads, which do not divide its width {width}. "
                "Give a number that does with --heads; it is a deviation and the report says so."
            )
        return width


_VIDEOGLUE = Preset(
    name="videoglue",
    heads=12,
    hidden=768,
    reads_cls=False,
    out_projection=True,
    query_residual=False,
    mlp=False,
    epsilon=1e-6,
    init="glorot",
    dropout=0.5,
    label_smoothing=0.1,
    decays="matrices",
    rates=(1e-4,),
    weight_decays=(1e-5,),
    warmup=0.05,
    epochs=50,
)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(name="levjepa", reads_cls=True),
        Preset(name="vjepa2-d1"),
        Preset(name="vjepa2-d4", self_blocks=3),
        _VIDEOGLUE,
        replace(_VIDEOGLUE, name="mlap4", rounds=4, query_residual=True, mlp=True),
    )
}

# EK100 of facebookresearch/vjepa2@c2963a4, configs/eval: weight decays of its own, focal loss, batch 2 x 64
_EK100 = Preset(name="ek100", self_blocks=3, loss="focal", weight_decays=(1e-4, 1e-3, 1e-2, 1e-1), batch=128)

ACTION_PRESETS: Mapping[str, Preset] = {
    preset.name: preset for preset in (_EK100, replace(_EK100, name="ek100-d1", self_blocks=0), PRESETS["levjepa"])
}
