"""The search: the order of operands, the candidate that each tensor gets, the frontier, and the choice of a point."""
import numpy as np
import pytest
from float_networks import perceptron

from graphq.compile import compile
from graphq.errors import GraphError
from graphq.quantization import tuned
from graphq.quantization.compare import distance
from graphq.quantization.price import Price
from graphq.quantization.scheme import Candidate, Scheme, wider, with_scheme
from graphq.quantization.search import GOOD, RANGES, Point, Search, falling, growing, widest


@pytest.fixture(scope="module")
def work():
    return Search(*perceptron())


@pytest.fixture
def plain(work):
    return work.uniform(Candidate("mse"))


def noises(work, monkeypatch, of):
    """Let products have this noise, by name, with 16 bits for the other factor of all of them."""
    def noise(self, setting):
        part = "wide" if setting.scheme.wide_weights else "wide_weights"
        return {name: of(k, part) for k, name in enumerate(self.products)}

    monkeypatch.setattr(Search, "noise", noise)


def test_factors_are_tried_by_their_noise_then_by_their_loss(work, plain, monkeypatch):
    noises(work, monkeypatch, lambda k, part: 10.0 * k + (part == "wide_weights"))
    names = list(work.products)
    every = [(n, part) for n in reversed(names) for part in ("wide_weights", "wide")]
    assert len(every) > 3
    monkeypatch.setattr(tuned, "TRIED", 0)
    assert work.costs(plain) == every
    asked = []

    def loss(self, chosen, k, scheme):  # exact but for one factor
        ((name, q),) = chosen.items()
        asked.append((name, "wide" if q.wide_weights else "wide_weights"))
        return 1.0 if q.wide_weights else 0.5

    monkeypatch.setattr(tuned, "TRIED", 2)
    monkeypatch.setattr(Search, "loss_of", loss)
    assert work.costs(plain) == [every[1], every[0], *every[2:]]
    assert asked == every[:2]
    monkeypatch.setattr(Price, "exact", lambda self, name: 3.0 if name == every[1][0] else 1.0)
    monkeypatch.setattr(tuned, "TRIED", 4)
    assert work.costs(plain) == every[::-1]  # for the time that they take: 1, 1 / 2, 1 / 3 and 1 / 6
    wide = with_scheme(plain, wide=(names[-1],))
    monkeypatch.setattr(tuned, "TRIED", 0)
    assert work.costs(wide) == [x for x in every if x != (names[-1], "wide")]


def test_each_tensor_gets_its_own_best_candidate(work, monkeypatch):
    names = list(work.tensors)

    def noise(self, setting):
        (candidate,) = {c for _, c in setting.choices}
        tried.append(candidate)
        return {name: float((3 * k + 5 * tried.index(candidate)) % 7) for k, name in enumerate(self.products)}

    tried = []
    monkeypatch.setattr(Search, "noise", noise)
    made = dict(work.local().choices)
    assert list(made) == names and tried == [*RANGES] and len(set(tried)) == 5
    assert {(c.method, c.margin) for c in tried} == {("min_max", 0), ("mse", 0), ("percentile", 0), ("min_max", 0.5),
                                                      ("min_max", 1)}
    for name, chosen in made.items():
        users = [k for k, p in enumerate(work.products.values())
                 if name in [str(p.factors[a].name) for a in p.activations]]
        scores = {c: sum((3 * k + 5 * n) % 7 for k in users) for n, c in enumerate(tried)}
        assert chosen == widest(scores) and 0.75 * scores[chosen] <= min(scores.values())


def test_the_loss_of_outputs_does_not_choose_ranges(work, monkeypatch):
    """Narrow ranges may lose least on few batches, and most on larger ones."""
    taken = []
    narrow = {Candidate("mse"), Candidate("percentile")}
    monkeypatch.setattr(Search, "loss", lambda self, s, most=1.0: 1e-9 if {c for _, c in s.choices} <= narrow else 0.01)
    monkeypatch.setattr(Search, "frontier", lambda self, s: taken.append(s) or [Point(s, 0.5, 0.01)])
    monkeypatch.setattr(Search, "possible", lambda self, s: s)
    monkeypatch.setattr(Search, "local", lambda self: self.uniform(Candidate("min_max", margin=1.0)))
    monkeypatch.setattr(Price, "time", lambda self, s: 0.5)
    assert dict(work.run().choices) == dict.fromkeys(work.tensors, Candidate("min_max", margin=1.0))
    assert taken == [work.local()]


def test_a_tensor_gets_the_widest_range_that_is_hardly_worse():
    names = {"min_max": Candidate("min_max"), "mse": Candidate("mse"), "half": Candidate("min_max", margin=0.5),
             "full": Candidate("min_max", margin=1.0)}
    for noise, chosen in (
            (dict(min_max=1.0, mse=0.9, half=1.1, full=1.1), "full"), (dict(min_max=1.0, mse=0.9, full=1.3), "min_max"),
            (dict(min_max=2.0, mse=1.0, full=3.0), "mse"), (dict(half=1.1, min_max=1.0, full=2.0), "half"),
            (dict(half=0.0, full=0.1), "half"), (dict(min_max=0.0, full=0.0), "full")):
        assert widest({names[k]: x for k, x in noise.items()}) == names[chosen]


def test_more_factors_are_added_to_those_that_are_wide(plain):
    made = wider(with_scheme(plain, wide=("a",)), [("b", "wide"), ("c", "wide_weights"), ("d", "wide")])
    assert made.scheme.wide == ("a", "b", "d") and made.scheme.wide_weights == ("c",) and made.choices == plain.choices


def test_operands_get_16_bits_or_their_product_f32_whichever_is_faster(work, plain, monkeypatch):
    """Two operands of one product count together; products to which the user gave 16 bits keep them."""
    first, last = work.products
    monkeypatch.setattr(Price, "faster_exact", lambda self, operands: [
        n for n, count in operands.items() if n == first or count == 2])
    found = {"one": [(last, "wide")], "both": [(last, "wide"), (last, "wide_weights")],
             "each": [(first, "wide_weights"), (last, "wide_weights")]}
    schemes = {name: work.exact(plain, factors).scheme for name, factors in found.items()}
    assert {name: (s.wide, s.wide_weights, s.exclude) for name, s in schemes.items()} == {
        "one": ((last,), (), ()), "both": ((), (), (last,)), "each": ((), (last,), (first,))}
    for given in (Scheme(wide=[first]), Scheme(limits={str(work.products[first].factors[0].name): (0, 1)})):
        monkeypatch.setattr(work, "given", given)
        assert work.exact(plain, found["each"]).scheme.exclude == ()


@pytest.fixture
def of_operands(work, plain, monkeypatch):
    """A function: the frontier of ten operands that add 0.1 to a time of 0.3, of these losses by their number."""
    operands = [(f"p{k}", "wide") for k in range(10)]
    monkeypatch.setattr(Search, "costs", lambda self, setting: operands)
    monkeypatch.setattr(Search, "exact", lambda self, setting, factors: wider(setting, factors))
    monkeypatch.setattr(Price, "time", lambda self, setting: 0.3 + 0.1 * len(setting.scheme.wide))

    def made(losses, first=plain):
        monkeypatch.setattr(Search, "loss", lambda self, setting, most=1.0: losses.get(len(setting.scheme.wide), 1e-3))
        return [(len(p.setting.scheme.wide), p.loss) for p in work.frontier(first)]

    return made


def test_the_frontier_has_points_that_lose_less_for_more_time(of_operands, monkeypatch):
    losses = {0: 0.1, 1: 0.05, 2: 0.06, 3: 0.04, 4: 0.03, 6: 0.02}
    assert of_operands(losses) == [(0, 0.1), (1, 0.05), (3, 0.04), (4, 0.03), (6, 0.02)]  # 9 take more time than f32
    assert of_operands(losses | {3: GOOD}) == [(0, 0.1), (1, 0.05), (3, GOOD)]
    assert of_operands({0: GOOD}) == [(0, GOOD)]
    monkeypatch.setattr(Price, "time", lambda self, setting: 2.0 + 0.5 * len(setting.scheme.wide))
    assert of_operands(losses) == [(0, 0.1), (1, 0.05)] and 2 + 0.5 * 2 <= 2 * tuned.LONGEST < 2 + 0.5 * 3


def test_the_frontier_goes_on_where_exact_operands_are_faster(of_operands, monkeypatch):
    """Losses up to GOOD count as equal, and so do times up to EQUAL: no other setting is measured after them."""
    monkeypatch.setattr(Price, "time", lambda self, setting: 1.0 - 0.03 * (len(setting.scheme.wide) % 5))
    assert of_operands({0: 0.01, 1: GOOD, 2: 0.0, 3: GOOD, 4: 0.0, 6: 0.0, 9: 0.0, 10: 0.0}) == [(3, GOOD)]
    assert of_operands({0: GOOD, 1: 0.0, 2: 2 * GOOD, 3: 3 * GOOD, 4: GOOD / 2, 9: 0.0, 10: 0.0}) == [(4, GOOD / 2)]


def test_no_point_loses_as_much_as_one_that_takes_no_longer(plain):
    points = [Point(plain, *x) for x in [(0.5, 2e-3), (0.3, 1e-2), (0.5, 1e-3), (0.6, 1e-3), (0.7, 5e-3), (0.7, 1e-4)]]
    assert [(p.time, p.loss) for p in falling(points)] == [(0.3, 1e-2), (0.5, 1e-3), (0.7, 1e-4)]


@pytest.mark.parametrize("goal, second", [({"preset": "fast"}, 5e-3), ({"max_time": 0.45}, 3e-3)])
def test_a_chosen_point_leaves_no_other_that_loses_as_much(work, plain, monkeypatch, goal, second):
    """The second point loses less than plain min-max, but its graph loses more."""
    curve = [Point(with_scheme(plain, exclude=names), 0.3 + 0.1 * len(names), loss)
             for names, loss in (((), 1e-2), (("a",), second), (("a", "b"), 1e-3))]
    losses = {p.setting: p.loss for p in curve} | {work.uniform(Candidate("min_max")): 4e-3}
    monkeypatch.setattr(Search, "frontier", lambda self, s: curve)
    monkeypatch.setattr(Search, "loss", lambda self, s, most=1.0: losses[s])
    monkeypatch.setattr(Search, "possible", lambda self, s: losses.update({curve[1].setting: 2e-2}) or s)
    monkeypatch.setattr(Price, "time", lambda self, s: 0.3 + 0.1 * len(s.scheme.exclude))
    assert work.run(Scheme(method="automatic", **goal)) == work.curve[0].setting
    assert [(p.time, p.loss) for p in work.curve] == [(0.3, 4e-3), (0.5, 1e-3)]


@pytest.mark.parametrize("goal, chosen", [({"max_time": 0.45}, 0), ({"preset": "fast"}, 0), ({"max_loss": 2e-3}, 2)])
def test_a_point_whose_graph_fails_leaves_the_choice_to_the_other_points(plain, monkeypatch, goal, chosen):
    """The goal still holds: the point that loses least takes too long."""
    work = Search(*perceptron())
    settings = [with_scheme(plain, exclude=names) for names in ((), ("a",), ("a", "b"))]
    losses = dict(zip(settings, (3e-3, 2e-3, 1e-3), strict=True)) | {work.uniform(Candidate("min_max")): 4e-3}
    monkeypatch.setattr(Search, "local", lambda self: settings[0])
    monkeypatch.setattr(Search, "frontier", lambda self, s: [self.point(x) for x in settings])
    monkeypatch.setattr(Search, "loss_of", lambda self, of, k, scheme, *_: losses[of])
    monkeypatch.setattr(Search, "chosen", lambda self, setting, of: setting)
    monkeypatch.setattr(Search, "made", lambda self, setting: work.graph if setting != settings[1] else 1 / 0)
    monkeypatch.setattr(Search, "lost", lambda *_: 0.0)
    monkeypatch.setattr(Price, "time", lambda self, s: 0.4 + 0.01 * len(s.scheme.exclude) ** 4)
    assert work.run(Scheme(method="automatic", **goal)) == settings[chosen]
    assert [*work.failed] == [settings[1]] and settings[1] not in [p.setting for p in work.curve]


@pytest.mark.parametrize("most, numbers", [(0, []), (1, [1]), (5, [1, 2, 3, 4, 5]), (10, [1, 2, 3, 4, 6, 9, 10])])
def test_half_as_many_operands_again(most, numbers):
    assert growing(most) == numbers


def test_batches_are_compared_with_the_ranges_of_the_file_as_well(work, plain, monkeypatch):
    """Three batches: each is held out, then compared with the statistics of all."""
    cases = []

    def loss(self, chosen, k, scheme, between=None):
        cases.append(k)
        return 1e-3 * len(cases)

    monkeypatch.setattr(Search, "loss_of", loss)
    seen = []
    monkeypatch.setattr(Search, "chosen", lambda self, setting, of: seen.append(of) or {})
    setting = with_scheme(plain, exclude=("nothing",))
    assert work.loss(setting) == 6e-3
    assert sorted(zip(seen, cases, strict=True)) == [
        ((0, 1), 2), ((0, 1, 2), 0), ((0, 1, 2), 1), ((0, 1, 2), 2), ((0, 2), 1), ((1, 2), 0)]


def test_presets_and_limits_choose_points_of_the_frontier(work, plain, monkeypatch):
    """min-max loses 0.01. Half the loss may take 1.41 times as long, but a loss of at most 0.0003 is enough."""
    curve = [(0.30, 0.01), (0.31, 0.008), (0.40, 0.003), (0.50, 0.002), (0.90, 0.0008)]
    monkeypatch.setattr(work, "curve", [Point(plain, *x) for x in curve], raising=False)
    monkeypatch.setattr(Price, "time", lambda self, setting: 0.3)
    monkeypatch.setattr(Search, "loss", lambda self, setting, most=1.0: 0.01)

    def chosen(**goal):
        return work.curve.index(work.choose(Scheme(method="automatic", **goal)))

    assert chosen(preset="accurate") == 4
    assert chosen() == 2 and 0.003 * 0.4**2 < min(0.002 * 0.5**2, 0.0008 * 0.9**2, 0.008 * 0.31**2)
    assert chosen(max_loss=0.005) == 2 and chosen(max_time=0.6) == 3
    with pytest.raises(GraphError, match=r"^no setting loses at most 1e-05: the least loss is 8.00e-04$"):
        chosen(max_loss=1e-5)
    with pytest.raises(GraphError, match=r"^no setting takes at most 0.2 of the time of f32: the fastest takes 0.30, "):
        chosen(max_time=0.2)
    work.curve[:] = [Point(plain, 0.30, 2.8e-4), Point(plain, 0.40, 1e-5)]
    assert chosen() == 0
    monkeypatch.setattr(Search, "loss", lambda self, setting, most=1.0: 0.001)
    assert chosen() == 1  # here a loss of at most 0.00015 is enough


@pytest.mark.parametrize("time, loss, text", [
    (0.8500000001, 1.2301e-3, "0.86  1.24e-03"), (0.85, 1.23e-3, "0.85  1.23e-03"), (1.1, 9.991e-5, "1.10  1.00e-04"),
    (12.3401, 0.0, "12.35  0.00e+00"), (0.301, 0.5, "0.31  5.00e-01")])
def test_printed_numbers_choose_their_point(work, plain, monkeypatch, time, loss, text):
    """They are rounded up, never to a number that the point exceeds; a point that is slower than f32 says so."""
    point = Point(plain, time, loss)
    slower = ", slower than f32" if time > 1 else ""
    assert str(point) == f"{text:>15}  {plain}{slower}" and point.shown == tuple(text.split())
    monkeypatch.setattr(work, "curve", [Point(plain, time / 2, 2 * loss + 1), point], raising=False)
    shown = dict(zip(("max_time", "max_loss"), map(float, text.split()), strict=True))
    assert all(work.choose(Scheme(method="automatic", **{k: x})) == point for k, x in shown.items() if x)


@pytest.mark.parametrize("seed", range(20))
def test_presets_stand_in_order_on_the_curve(work, monkeypatch, seed):
    """The faster preset never loses less, whatever the points of the curve and the losses of plain methods."""
    rng, settings = np.random.default_rng(seed), [work.uniform(Candidate("min_max"))]
    settings += [work.uniform(Candidate("mse", float(k))) for k in range(12)]
    times, losses = (dict(zip(settings, x, strict=True))
                     for x in (rng.uniform(0.3, 1.2, 13).tolist(), (GOOD * 10**rng.uniform(-1, 3, 13)).tolist()))
    monkeypatch.setattr(Search, "loss", lambda self, s, most=1.0: losses.get(s, 1e-3))
    monkeypatch.setattr(Price, "time", lambda self, s: times[s])
    found = falling([work.point(s) for s in settings])
    chosen = []
    for preset in ("fast", "balanced", "accurate"):
        monkeypatch.setattr(work, "curve", [*found], raising=False)
        chosen.append(work.choose(Scheme(method="automatic", preset=preset)))
    assert [p.time for p in chosen] == sorted(p.time for p in chosen)
    assert [p.loss for p in chosen] == sorted((p.loss for p in chosen), reverse=True)


@pytest.mark.parametrize("losses, chosen", [
    ((0.03, 0.025, 0.001), None), ((0.019, 0.001, 1e-4), 1), ((0.004, 0.0035, 1e-4), 0), ((2.8e-4, 1e-4, 6e-5), 0)])
def test_fast_is_the_best_point_of_those_about_as_fast_as_min_max(work, monkeypatch, losses, chosen):
    """min-max takes 0.5 and loses 0.02; losses up to 0.0003 count as equal."""
    mse, percentile = work.uniform(Candidate("mse")), work.uniform(Candidate("percentile"))
    times = {mse: 0.4, percentile: 0.5 * tuned.EQUAL, work.uniform(Candidate("min_max", 1.0)): 0.5 * tuned.EQUAL + 0.01}
    monkeypatch.setattr(Search, "loss", lambda self, setting, most=1.0: 0.02)
    monkeypatch.setattr(Price, "time", lambda self, setting: times.get(setting, 0.5))
    monkeypatch.setattr(work, "curve", [Point(s, t, loss) for (s, t), loss in zip(times.items(), losses, strict=True)],
                        raising=False)
    points = [*work.curve]
    point = work.choose(Scheme(method="automatic", preset="fast"))
    if chosen is None:
        assert point.setting == work.uniform(Candidate("min_max")) and work.curve == [point, *points[1:]]
    else:
        assert point is points[chosen] and work.curve == points


def test_a_point_that_typically_loses_more_than_min_max_is_not_fast(monkeypatch):
    """Heavy-tailed data: min-max of the whole tensor loses most on one batch, and a margin more on all others."""
    work = Search(*perceptron())
    wide, settings = work.uniform(Candidate("min_max", 1.0)), {}
    losses = {wide: 4e-3, work.uniform(Candidate("min_max")): 1e-3}

    def loss(self, chosen, k, scheme, between=None):
        return 3e-2 if k == 1 and settings["now"] is not wide else losses.get(settings["now"], 1.0)

    monkeypatch.setattr(Search, "loss_of", loss)
    monkeypatch.setattr(Search, "chosen", lambda self, setting, seen: settings.update(now=setting) or {})
    monkeypatch.setattr(Price, "time", lambda self, setting: 0.3 if setting is wide else 0.5)
    work.curve = [work.point(wide)]
    plain = work.point(work.uniform(Candidate("min_max")))
    assert work.curve[0].loss == 4e-3 < plain.loss == 3e-2
    assert work.typical(wide) == pytest.approx(4e-3)
    assert work.typical(plain.setting) == pytest.approx((1e-3 ** 4 * 3e-2 ** 2) ** (1 / 6))
    for preset in ("fast", "balanced"):
        assert work.choose(Scheme(method="automatic", preset=preset)) == plain


@pytest.mark.parametrize("share, chosen", [(2.0, 0), (0.5, 1), (1e-6, None)])
def test_the_loss_is_that_of_the_graph(monkeypatch, share, chosen):
    """The model of all settings may lose less; a point whose graph loses more than `max_loss` is not chosen."""
    graph, batches = perceptron()
    monkeypatch.setattr(Search, "loss_of", lambda *_: 1e-11)
    work, f32 = Search(graph, batches), compile(graph)
    plain, names = work.uniform(Candidate("min_max")), tuple(work.products)
    settings = [plain, with_scheme(plain, wide=names, wide_weights=names)]
    monkeypatch.setattr(Search, "frontier", lambda self, s: [
        Point(s, self.price.time(s), loss) for s, loss in zip(settings, (1e-11, 1e-12), strict=True)])
    models = [compile(work.made(s)) for s in settings]
    lost = [max(distance(f32(x), model(x)) for x in batches) for model in models]
    assert 1e-6 * lost[0] < lost[1] < lost[0] / 100
    scheme = Scheme(method="automatic", max_loss=share * lost[0])
    if chosen is None:
        with pytest.raises(GraphError, match="^no setting loses at most .*: the least loss is [^1]"):
            work.run(scheme)
    else:
        assert work.run(scheme) == settings[chosen]
        found = next(p for p in work.curve if p.setting == settings[chosen])
        assert found.loss == work.estimate(settings[chosen]).seen == pytest.approx(lost[chosen], rel=0.05)
