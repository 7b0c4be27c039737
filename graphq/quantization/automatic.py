"""The best automatic setting: compare few settings with f32 on data held out, keep the best.

Cross-validation: statistics come from part of the batches, and comparisons are made on the others, in turns (`folds`);
then the best setting is made with the statistics of all. One model, compiled once, stands for all settings
(`parametrised`). The steps:

    1. for each tensor the `Candidate` (method of its range, channels divided or not) that changes the products which
       take it least, all else exact
    2. of that, and of one candidate for all tensors, what changes the outputs least; where its loss is above TARGET
       each also with 16 bits, as two of 8, for products that are little work; then biases corrected or not
    3. where the loss is still above TARGET: the products that lose most get 16 bits
    4. without convolutions, and where the loss is still above DYNAMIC_FROM: dynamic ranges by rows
    5. where much is still lost, networks are near to chaotic, and comparisons of few batches say little: the MADE best
       settings are made, and compared once more
    6. values between products in integers, too, which saves time: as many as lose hardly more
    7. where graphq compiles for a CPU without VNNI: weights of 7 bits, which are faster there, if the loss stays within
       TARGET
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from graphq.errors import GraphError
from graphq.ir import Graph
from graphq.kernels.matmul.plan import sorts
from graphq.quantization.calibrate import Batches
from graphq.quantization.estimate import Estimate
from graphq.quantization.products import CONVOLUTIONS
from graphq.quantization.scheme import Preset, Scheme
from graphq.quantization.search import TARGET, Search
from graphq.quantization.setting import Setting, with_scheme

DYNAMIC_FROM = 0.001
"""1 - cosine from which dynamic ranges are tried: they take longer when the model runs."""

MADE, MADE_FROM = 4, 0.005
"""Settings that are made and compared where all lose much; 1 - cosine from which they are."""


@dataclass
class Choice:
    """The quantized graph, its setting, and the loss of each setting tried: the largest 1 - cosine in a comparison.

    `estimate` has what the setting taken loses, and says how sure that is.
    """

    graph: Graph
    setting: Setting
    estimate: Estimate
    losses: dict[Setting, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """A table, a line for each setting in the order in which they were tried, with its loss; `*` is that taken."""
        lines = (f"{'*' if s == self.setting else ' '} {loss:.2e}  {s}" for s, loss in self.losses.items())
        return "\n".join([*lines, str(self.estimate)])


def automatic(graph: Graph, batches: Batches, scheme: Scheme | None = None, *,
              weight_bits: Literal[7, 8] | None = None) -> Choice:
    """Quantize by the setting whose outputs are nearest to f32 on data held out.

    A `scheme` of method "automatic" has the user's choices: products that stay in f32 or get 16 bits in any case,
    ranges of tensors, how zero points lie.
    Weights of 7 bits are less exact, and faster on CPUs without VNNI (`weights`). By default weights have 8 bits, and 7
    where graphq compiles for such a CPU and loses at most TARGET with them; the setting says so. Raises GraphError and
    InputError as `quantize` does.
    """
    if weight_bits not in (None, 7, 8):
        raise GraphError(f"automatic: weight_bits must be 7 or 8, got {weight_bits!r}")
    scheme = scheme or Scheme(method="automatic")
    if scheme.method != "automatic":
        raise GraphError(f"automatic: the scheme's method must be 'automatic', got {scheme.method!r}")
    weight_bits = 7 if scheme.weight_bits == 7 else weight_bits
    plain = replace(scheme, method="mse", preset="mixed", weight_bits=weight_bits or 8)
    work = Search(graph, batches, plain)
    setting = chosen_setting(work, scheme.preset)
    if weight_bits is None and sorts("u8", "rows", work.level):
        of_seven = with_scheme(setting, weight_bits=7)
        setting = of_seven if work.loss(of_seven) <= TARGET else setting
    made = work.made(setting)
    made.meta = {**made.meta, "quantization": {
        "setting": str(setting), "16 bits": list(setting.scheme.wide),
        "weights of 16 bits": list(setting.scheme.wide_weights), "f32": list(setting.scheme.exclude),
        "between products": list(setting.scheme.between), "cosine": 1 - work.loss(setting),
        "estimate": work.estimate(setting).json()}}
    return Choice(made, setting, work.estimate(setting), work.losses)


def chosen_setting(work: Search, preset: Preset = "mixed") -> Setting:
    """The best setting with all products quantized, by what the `preset` allows (`Scheme`)."""
    settings = [*(work.uniform(c._replace(smooth=s)) for s in (False, True) for c in work.ranges), work.local()]
    setting = work.best(settings)
    wide = preset != "performance"
    if wide and work.loss(setting) > TARGET:
        little = work.best([*map(work.widened_where_little, settings)])
        setting = little if work.pays(little, setting, 0) else setting
    setting = work.best([setting, replace(setting, correct=True)])
    setting = work.widened(setting) if wide else setting
    chosen = work.scheme.wide or work.scheme.wide_weights or work.scheme.limits
    if work.loss(setting) > DYNAMIC_FROM and not chosen and not work.graph.nodes_of(CONVOLUTIONS):
        setting = work.best([setting, Setting(scheme=replace(work.scheme, mode="dynamic", rows=True))])
    setting = work.best_made(MADE) if work.loss(setting) > MADE_FROM else setting
    if preset == "accuracy" or setting.scheme.mode != "static":
        return setting
    return work.between_products(setting, all_of_them=preset == "performance")
