"""Schemes and settings: what is refused, and what settings are called."""
import pytest

from graphq.dtypes import u8, u16
from graphq.errors import GraphError
from graphq.quantization.scheme import Candidate, Scheme, Setting, with_scheme


@pytest.mark.parametrize("options, message", [
    ({"mode": "other"}, "mode must be one of static, dynamic, weight_only, got 'other'"),
    ({"method": "max"}, "method must be one of min_max, percentile, mse"),
    ({"weight_bits": 5}, "weight_bits must be one of 4, 7, 8, None, got 5"),
    ({"bias": "s16"}, "bias must be one of s32, f32"), ({"rounding": "up"}, "rounding must be one of nearest, gptq"),
    ({"activations": "f32"}, "must be one of u8, s8, u16"),
    ({"percentile": 50}, r"percentile must be in \(50, 100\], got 50"), ({"percentile": 100.5}, "got 100.5"),
    ({"headroom": 0.05}, r"headroom must be in \[0.1, 10\], got 0.05"), ({"headroom": 11}, "got 11"),
    ({"block": 0}, "block must be positive, got 0"),
    ({"exclude": "y"}, "exclude must be a collection of names, got 'y'"),
    ({"exclude": [""]}, "exclude must hold names that are not empty"), ({"wide": [3]}, "wide must hold names that"),
    ({"wide": "y"}, "wide must be a collection"), ({"wide_weights": "y"}, "wide_weights must be a collection"),
    ({"wide": ["y"], "mode": "dynamic"}, "wide and wide_weights need mode 'static' and 8-bit activations"),
    ({"wide_weights": ["y"], "activations": "s16"}, "wide and wide_weights need"),
    ({"weight_bits": 7, "mode": "weight_only"}, "7-bit weights need integer layers"),
    ({"weight_bits": 4}, "4-bit weights need mode 'weight_only', got 'static'"),
    ({"rounding": "gptq", "mode": "dynamic"}, "rounding has no effect in mode 'dynamic'; it needs mode 'weight_only'"),
    ({"method": "percentile", "mode": "dynamic"}, "method has no effect in mode 'dynamic'; it needs mode 'static'"),
    ({"activations": "s8", "mode": "weight_only"}, "activations has no effect in mode 'weight_only'"),
    ({"limits": {"x": (0, 1)}, "mode": "dynamic"}, "limits has no effect"),
    ({"states": True, "mode": "dynamic"}, "states has no effect"),
    ({"rows": True}, "rows has no effect in mode 'static'"),
    ({"rows": True, "mode": "weight_only"}, "rows has no effect in mode 'weight_only'; it needs mode 'dynamic'"),
    *(({"method": "automatic", **other}, "method 'automatic' needs mode 'static' and 8-bit activations")
      for other in ({"mode": "dynamic"}, {"mode": "weight_only"}, {"activations": "u16"}, {"activations": "s16"})),
    *(({"between": ["x"], "mode": mode}, "between has no effect in mode") for mode in ("dynamic", "weight_only")),
    *(({"preset": preset, "method": "mse"}, f"preset '{preset}' needs method 'automatic', got 'mse'")
      for preset in ("fast", "accurate")),
    ({"max_loss": 0.01}, "max_loss 0.01 needs method 'automatic', got 'mse'"),
    ({"max_time": 0, "method": "automatic"}, "max_time must be positive, got 0"),
    ({"max_loss": "0.1", "method": "automatic"}, "max_loss must be positive, got '0.1'"),
    ({"headroom": 2, "method": "automatic"}, "headroom has no effect with method 'automatic'"),
    ({"block": 8}, "block has no effect in mode 'static'; it needs mode 'weight_only'"),
    ({"limits": {"x": 3}}, r"limits must be like {'x': \(0, 1\)}, got {'x': 3}"),
    ({"limits": {"x": (0, 1, 2)}}, "limits of 'x' must be finite, the first below the second, got 0 and 1 and 2"),
    ({"max_time": 1, "preset": "fast", "method": "automatic"}, "give only one of preset, max_time"),
    *(({name: value, "mode": "dynamic"}, f"{name} has no effect in mode 'dynamic'; it needs mode 'static'")
      for name, value in (("percentile", 99), ("headroom", 2), ("symmetric", True), ("activations", "s8"))),
    *(({"limits": {"x": limits}}, "limits of 'x' must be finite, the first below the second")
      for limits in ((2, 1), (0, 0), (0, float("inf")), (float("-inf"), 0), (float("nan"), 1)))])
def test_refused_schemes(options, message):
    with pytest.raises(GraphError, match=f"scheme: .*{message}"):
        Scheme(**options)


def test_what_a_scheme_is_if_nothing_is_said():
    """As docs/quantization.md and the command line have it."""
    assert vars(Scheme()) == {
        "mode": "static", "activations": u8, "symmetric": False, "method": "mse", "percentile": 99.99, "headroom": 1.0,
        "per_channel": True, "weight_bits": 8, "block": 32, "rounding": "nearest", "bias": "s32", "rows": False,
        "states": False, "exclude": (), "wide": (), "wide_weights": (), "between": (), "preset": "balanced",
        "max_loss": None, "max_time": None, "limits": ()}
    assert Candidate("mse") == Candidate("mse", margin=0.0)


def test_schemes_at_their_limits():
    assert Scheme(percentile=100, headroom=10).headroom == 10 and Scheme(headroom=0.1).headroom == 0.1
    assert Scheme(mode="weight_only", block=1).block == 1
    assert Scheme().activations is u8 and Scheme(activations="u16").activations is u16
    assert Scheme(mode="weight_only", weight_bits=4, rounding="gptq").rounding == "gptq"
    assert Scheme(wide=["y"], wide_weights=["z"], activations="s8").wide == ("y",)
    assert [Scheme(weight_bits=7, mode=m).weight_bits for m in ("static", "dynamic")] == [7, 7]
    assert [Scheme(method="automatic", weight_bits=bits).weight_bits for bits in (None, 7, 8)] == [None, 7, 8]


def test_candidates():
    assert str(Candidate("min_max")) == "min-max"
    assert str(Candidate("min_max", 0.5)) == "min-max margin 0.5"


def test_settings():
    mse, least = Candidate("mse"), Candidate("min_max", margin=1.0)
    assert str(Setting((("a", mse), ("b", mse)))) == "mse"
    mixed = Setting((("a", mse), ("b", least), ("c", least)))
    assert str(mixed) == "2 x min-max margin 1, 1 x mse"
    more = with_scheme(mixed, weight_bits=7, wide=("p", "q", "r"), wide_weights=("a", "b", "c", "d"), exclude=("x",))
    assert str(more) == ("2 x min-max margin 1, 1 x mse, 7-bit weights, "
                         "p, q, r with 16-bit activations, 4 layers with 16-bit weights, x in f32")
    assert more.choices == mixed.choices and mixed.scheme == Scheme()
    names = ("/features/features.1/conv/conv.0", "/features/features.2/conv/conv.0")
    assert str(with_scheme(Setting((("a", mse),)), exclude=names, wide=names[:1])) == \
        "mse, 1 layer with 16-bit activations, 2 layers in f32"
    several = [Candidate("mse", margin=k / 8) for k in (1, 1, 1, 2, 2, 3, 4)]
    assert str(Setting(tuple((str(k), c) for k, c in enumerate(several)))) == \
        "3 x mse margin 0.125, 2 x mse margin 0.25, 1 x mse margin 0.375, 1 x mse margin 0.5"
