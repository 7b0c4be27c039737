"""The search: the order in which factors are tried, which candidate each tensor gets, and when 16 bits are enough."""
import pytest
from float_networks import perceptron

from graphq.quantization import tuned
from graphq.quantization.price import Price
from graphq.quantization.scheme import Candidate, Scheme, wider, with_scheme
from graphq.quantization.search import Search, cautious


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


def test_products_are_ranked_by_their_noise(work, plain, monkeypatch):
    names, asked = list(work.products), []
    monkeypatch.setattr(Search, "noise", lambda self, setting: asked.append(setting) or {
        n: float(k % 2 * 10 - k) for k, n in enumerate(names)})
    order = sorted(names, key=lambda n: -(names.index(n) % 2 * 10 - names.index(n)))
    assert work.ranked(plain) == order and asked == [plain]


def test_each_tensor_gets_its_own_best_candidate(work, monkeypatch):
    names = list(work.tensors)

    def noise(self, setting):
        (candidate,) = {c for _, c in setting.choices}
        tried.append(candidate)
        return {name: float((3 * k + 5 * tried.index(candidate)) % 7) for k, name in enumerate(self.products)}

    tried = []
    monkeypatch.setattr(Search, "noise", noise)
    monkeypatch.setattr(tuned, "FEW", 0)
    made = dict(work.local().choices)
    assert list(made) == names and len(tried) == len(set(tried)) == 5 + 3
    assert {(c.method, c.margin) for c in tried} == {("min_max", 0), ("mse", 0), ("percentile", 0), ("min_max", 0.5),
                                                      ("min_max", 1)}
    for name, chosen in made.items():
        users = [k for k, p in enumerate(work.products.values())
                 if name in [str(p.factors[a].name) for a in p.activations]]
        scores = [sum((3 * k + 5 * n) % 7 for k in users) for n in range(len(tried))]
        assert chosen == tried[scores.index(min(scores))]


def test_of_few_batches_a_tensor_gets_the_widest_range_that_is_hardly_worse():
    names = {"min_max": Candidate("min_max"), "mse": Candidate("mse"), "half": Candidate("min_max", margin=0.5),
             "smooth": Candidate("min_max", True, 0.5), "full": Candidate("min_max", margin=1.0)}
    for noise, chosen in (
            (dict(min_max=1.0, mse=0.9, half=1.1, full=1.1), "full"), (dict(min_max=1.0, mse=0.9, full=1.3), "min_max"),
            (dict(min_max=2.0, mse=1.0, full=3.0), "mse"), (dict(half=1.1, smooth=1.0, full=2.0), "smooth"),
            (dict(half=0.0, full=0.1), "half"), (dict(min_max=0.0, full=0.0), "full")):
        assert cautious({names[k]: x for k, x in noise.items()}) == names[chosen]


def test_sixteen_bits_double_until_they_are_enough_and_then_become_as_few_as_are(work, plain, monkeypatch):
    factors = [(f"p{k}", "wide") for k in range(10)]
    monkeypatch.setattr(Search, "costs", lambda self, setting: factors)
    asked = []

    def losing(table):
        def loss(self, setting, most=1.0):
            count = len(setting.scheme.wide)
            asked.append(count)
            return table[count] / tuned.TARGET
        monkeypatch.setattr(Search, "excess", loss)
        asked.clear()
        made = work.widened(plain).scheme.wide
        assert made == tuple(n for n, _ in factors[:len(made)])
        return len(made), [n for k, n in enumerate(asked) if n and n not in asked[:k]]

    assert losing({0: 0.001}) == losing({0: tuned.TARGET}) == (0, [])
    assert losing({0: 1.0, 1: tuned.TARGET}) == (1, [1])
    assert losing({0: 1.0, 1: 0.9, 2: 0.5, 4: 0.001, 3: 0.4}) == (4, [1, 2, 4, 3])
    assert losing({0: 1.0, 1: 0.9, 2: 0.5, 4: 0.001, 3: 0.0015}) == (3, [1, 2, 4, 3])
    assert losing({0: 1.0, 1: 0.9, 2: 0.8, 4: 0.7, 5: 0.6}) == (4, [1, 2, 4, 5])
    assert losing({0: 1.0, 1: 0.7, 2: 0.6, 4: 0.5, 5: 0.45}) == (4, [1, 2, 4, 5])  # half of the factors at most
    assert losing({0: 1.0, 1: 0.001}) == (1, [1])


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


def test_a_setting_loses_little_enough_beside_a_target_and_beside_plain_methods(work, plain, monkeypatch):
    """Plain methods, with 8 bits for everything, lose 0.001 and 0.002 on the batches that they saw."""
    schemes = []

    def seen(self, setting, most=1.0):
        (method,) = {c.method for _, c in setting.choices}
        schemes.append(setting.scheme)
        return {"min_max": 0.002, "percentile": 0.001, "mse": 3e-4}[method]

    monkeypatch.setattr(Search, "seen", seen)
    assert work.allowed == pytest.approx(tuned.PART * 0.001) and not any(s.exclude or s.wide for s in schemes)
    for loss, excess in ((1e-4, 3e-4 / (tuned.PART * 0.001)), (tuned.TARGET, 1.0), (0.008, 0.008 / tuned.TARGET)):
        monkeypatch.setattr(Search, "loss", lambda self, setting, most, loss=loss: loss)
        assert work.excess(plain) == pytest.approx(max(excess, 3e-4 / (tuned.PART * 0.001)))


def test_what_is_seen_is_compared_with_the_statistics_of_all_batches(work, plain, monkeypatch):
    asked = []
    monkeypatch.setattr(Search, "chosen", lambda self, setting, seen: asked.append(seen) or {})
    monkeypatch.setattr(Search, "loss_of", lambda self, chosen, k, scheme, between: float(k))
    setting = with_scheme(plain, wide=("a",))
    held_out = [k for fold in work.folds for k in fold.held_out]
    assert work.seen(setting) == max(held_out) and asked == [work.every] * len(held_out)


@pytest.mark.parametrize("added, most", [(0.0, 0.75), (0.25, 0.75**2.5), (0.5, 0.75**4), (1.5, 0.75**10)])
def test_sixteen_bits_must_take_away_more_where_they_take_more_time(added, most, work, plain, monkeypatch):
    """If they take all the time that 8 bits save, here a half: of what is left RECOVERS three times (PRICE)."""
    wide = with_scheme(plain, wide=("a",))
    monkeypatch.setattr(Price, "time", lambda self, setting: 1 + added * (setting == wide))
    monkeypatch.setattr(Price, "saved", 0.5)
    for part, pays in ((0.99, True), (1.01, False)):
        for least, left in ((0.25, most), (0, most / 0.75)):
            losses = {plain: 3.0, wide: 3 * part * left}
            monkeypatch.setattr(Search, "excess", lambda self, setting, most=1.0, losses=losses: losses[setting])
            assert work.pays(wide, plain, least) is pays


@pytest.mark.parametrize("wary, least, cautious", [(0.0010, 0.0006, True), (0.0100, 0.0090, True),
                                                   (0.0100, 0.0050, False)])
def test_of_one_batch_a_setting_with_margins_may_lose_a_little_more(wary, least, cautious, monkeypatch):
    graph, batches = perceptron()
    monkeypatch.setattr("graphq.quantization.estimate.halves", lambda batch: [batch])
    work = Search(graph, batches[:1])
    settings = [work.uniform(Candidate("min_max", margin=1.0)), work.uniform(Candidate("min_max"))]
    losses = dict(zip(settings, (wary, least), strict=True))
    monkeypatch.setattr(Search, "loss", lambda self, setting, most=1.0: losses[setting])
    assert work.best(settings) == settings[0 if cautious else 1]


def test_little_work_in_floats_needs_no_sixteen_bits(monkeypatch):
    """Products that the user gave 16 bits keep them, and stay in integers."""
    graph, batches = perceptron()
    first, last = Search(graph, batches).products
    monkeypatch.setattr(Price, "little", lambda self, names: [first, last])
    work = Search(graph, batches, Scheme(wide=[first]))
    wide = wider(work.uniform(Candidate("mse")), [(last, "wide"), (last, "wide_weights")])
    found = work.exact_where_little(wide).scheme
    assert (found.wide, found.wide_weights, found.exclude) == ((first,), (), (last,))
