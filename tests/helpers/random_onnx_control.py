"""Random ONNX models of control flow: If, Loop and Scan with random bodies, up to three deep, and what they must give.

All numbers are small integers, whatever their dtype, so every sum is exact and results are compared for equality.
Bodies take values of any dtype from the graphs around them, and loops end by their trips, their condition or both.
ONNX Runtime says what is right: ONNX's reference evaluator stacks the results of some loops wrongly.
"""
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import results
from random_onnx import RandomModel

import graphq as gq
from graphq.ir.interpret import named_outputs
from graphq.onnx.saving import to_model

OPSETS = (12, 13, 16, 19, 21)
DTYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int64": TensorProto.INT64,
          "int32": TensorProto.INT32, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "bool": TensorProto.BOOL}
NUMBERS = ("float32", "int64", "int32")
"""The dtypes of arithmetic; others are only cast, chosen and carried."""
SHAPES = ((), (), (1,), (3,), (2, 3), (4, 3), (2, 1, 3))
MOST = 40
"""Results of arithmetic are limited to [-MOST, MOST]."""


class Type(NamedTuple):
    """A dtype and a shape, in which None is an unknown dimension; the shape is None if the rank is unknown too."""

    dtype: str
    shape: tuple | None

    @property
    def known(self):
        return self.shape is not None and None not in self.shape


class Block:
    """A graph that grows node by node, inside another one or outermost; `types` has the values that it can see."""

    def __init__(self, rng, opset, outer=None):
        self.rng, self.opset, self.outer = rng, opset, outer
        self.types = {} if outer is None else dict(outer.types)
        self.count = [0] if outer is None else outer.count
        self.depth = 0 if outer is None else outer.depth + 1
        self.nodes, self.initializers, self.own = [], [], []

    def choice(self, options):
        return options[self.rng.integers(len(options))]

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def add(self, type, prefix="v"):
        """A new name for a value of this type."""
        self.count[0] += 1
        name = f"{prefix}{self.count[0]}"
        self.types[name] = type
        self.own.append(name)
        return name

    def constant(self, array):
        array = np.asarray(array)
        name = self.add(Type(array.dtype.name, array.shape), "c")
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def random(self, type):
        """An array of small integers of this type."""
        low = 0 if type.dtype in ("uint8", "bool") else -5
        return self.rng.integers(low, 2 if type.dtype == "bool" else 6, type.shape).astype(type.dtype)

    def node(self, op, inputs, type, **attrs):
        """Add a node of one result."""
        out = self.add(type)
        self.nodes.append(helper.make_node(op, inputs, [out], **attrs))
        return out

    def pick(self, accept=lambda t: True):
        """A visible value, this graph's own ones more often; a new constant if there is none."""
        own = [n for n in self.own if accept(self.types[n])]
        every = [n for n, t in self.types.items() if accept(t)]
        found = own if own and self.chance() else every
        if found and not (self.outer is None and self.chance(0.1)):
            return self.choice(found)
        shapes = [Type(d, s) for d in DTYPES for s in SHAPES if accept(Type(d, s))]
        return self.constant(self.random(self.choice(shapes)))

    def limited(self, x):
        """`x` within [-MOST, MOST]."""
        type = self.types[x]
        for op, limit in (("Min", MOST), ("Max", -MOST)):
            x = self.node(op, [x, self.constant(np.asarray(limit, type.dtype))], type)
        return x

    def as_dtype(self, x, dtype):
        """`x` cast to `dtype`; negative numbers lose their sign where `dtype` has none."""
        type = self.types[x]
        if type.dtype == dtype:
            return x
        if dtype == "uint8" and type.dtype not in ("uint8", "bool"):
            if type.dtype not in NUMBERS:
                x = self.node("Cast", [x], Type("int32", type.shape), to=TensorProto.INT32)
            x = self.node("Abs", [x], Type(self.types[x].dtype, type.shape))
        return self.node("Cast", [x], Type(dtype, type.shape), to=DTYPES[dtype])

    def scalar(self, dtype):
        """A number or truth that depends on some value."""
        x = self.as_dtype(self.pick(), "float32")
        x = self.node("ReduceMax", [x], Type("float32", ()), keepdims=0) if self.types[x] != Type("float32", ()) else x
        if self.types[x] == Type("float32", ()) and dtype == "bool":
            return self.node("Greater", [x, self.constant(np.float32(self.rng.integers(-3, 4)))], Type("bool", ()))
        return self.as_dtype(x, dtype)

    def of(self, type):
        """A visible value of this type, which has a known shape, made of others if there is none."""
        found = [n for n, t in self.types.items() if t == type]
        if found and self.chance(0.7):
            return self.choice(found)
        if type.shape == () and self.chance() and self.sized():
            return self.scalar(type.dtype)
        same = [n for n, t in self.types.items() if t.shape == type.shape]
        return self.as_dtype(self.choice(same), type.dtype) if same else self.constant(self.random(type))

    def sized(self):
        """Whether any visible value is certain to have elements, of which a maximum can be taken."""
        return all(t.known and 0 not in t.shape for t in self.types.values())

    def fresh(self, x):
        """A result of this graph that is `x`: ONNX Runtime wants results to be made in the graph that returns them."""
        made = {n for node in self.nodes for n in node.output}
        return x if x in made and self.chance(0.8) else self.node("Identity", [x], self.types[x])

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def arithmetic(self):
        a = self.pick(lambda t: t.dtype in NUMBERS and t.known)
        type = self.types[a]

        def fits(t):
            return t.dtype == type.dtype and t.known and (t.shape in ((), (1,), type.shape) or type.shape == ())

        b = self.pick(fits)
        shape = np.broadcast_shapes(type.shape, self.types[b].shape)
        op = self.choice(["Add", "Sub", "Mul", "Max", "Min", "Add"])
        return self.limited(self.node(op, [a, b] if self.chance() else [b, a], Type(type.dtype, shape)))

    def unary(self):
        a = self.pick(lambda t: t.dtype in NUMBERS)
        op = self.choice(["Neg", "Abs", *(["Relu", "Floor"] if self.types[a].dtype == "float32" else [])])
        return self.node(op, [a], self.types[a])

    def product(self):
        a = self.pick(lambda t: t.dtype == "float32" and t.known and len(t.shape) > 1 and t.shape[-1] == 3)
        shape, weights = self.types[a].shape, self.rng.integers(-2, 3, (3, 3))
        w = self.constant(weights.astype(np.float32))
        if self.chance(0.4):
            a, w = self.quantized(a), self.node(
                "DequantizeLinear", [self.constant(weights.astype(np.int8)), self.constant(np.float32(1)),
                                     self.constant(np.int8(0))], Type("float32", (3, 3)))
        return self.limited(self.node("MatMul", [a, w], Type("float32", shape)))

    def quantized(self, x):
        """`x` in steps of 1, or of 0.5, between 0 and 255 or from -128 to 127 of them."""
        dtype, scale = self.choice(["uint8", "int8"]), self.constant(np.float32(self.choice([1, 0.5])))
        zero = self.constant(np.asarray(self.choice([0, 20]), dtype))
        q = self.node("QuantizeLinear", [x, scale, zero], Type(dtype, self.types[x].shape))
        return self.node("DequantizeLinear", [q, scale, zero], self.types[x])

    def cast(self):
        return self.as_dtype(self.pick(), self.choice(list(DTYPES)))

    def where(self):
        a = self.pick(lambda t: t.known and t.shape and t.dtype in (*NUMBERS, "uint8"))
        c = self.pick(lambda t: t.dtype == "bool" and t.shape in ((), (1,), self.types[a].shape))
        return self.node("Where", [c, a, self.of(self.types[a])], self.types[a])

    def compare(self):
        a = self.pick(lambda t: t.dtype in NUMBERS and t.known)
        return self.node(self.choice(["Less", "Greater", "Equal"]), [a, self.of(self.types[a])],
                         Type("bool", self.types[a].shape))

    def logic(self):
        a = self.pick(lambda t: t.dtype == "bool" and t.known)
        if self.chance():
            return self.node("Not", [a], self.types[a])
        return self.node(self.choice(["And", "Or", "Xor"]), [a, self.of(self.types[a])], self.types[a])

    def fill(self, least=1, most=5):
        """Add some nodes, and control flow unless this graph is deep inside."""
        for _ in range(self.rng.integers(least, most)):
            makers = [self.arithmetic, self.arithmetic, self.unary, self.cast, self.where, self.compare, self.logic,
                      self.product]
            self.choice(makers)()
            if self.depth < 2 and self.chance(0.15):
                self.control()

    # -- control flow --------------------------------------------------------------------------------------------------

    def control(self):
        self.choice([self.branches, self.loop, self.loop, self.scan])()

    def body(self, name, inputs, outputs, given=0, all_outputs=False):
        """This block as a graph; it declares shapes of the first `given` inputs or of all outputs, of others or not."""
        def infos(names, stated):
            return [helper.make_tensor_value_info(n, DTYPES[self.types[n].dtype], self.types[n].shape if told else None)
                    for n, told in zip(names, stated, strict=True)]

        stated = self.chance()
        outputs = [n if outputs.index(n) == k else self.node("Identity", [n], self.types[n])  # ONNX Runtime mixes up
                   for k, n in enumerate(outputs)]                                            # results that are one
        return helper.make_graph(self.nodes, name, infos(inputs, [stated or k < given for k in range(len(inputs))]),
                                 infos(outputs, [stated or all_outputs] * len(outputs)), self.initializers)

    def node_of(self, op, inputs, types, **attrs):
        outs = [self.add(t) for t in types]
        self.nodes.append(helper.make_node(op, inputs, outs, **attrs))

    def condition(self, *shapes):
        """A truth of one of these shapes, as a constant or one that some value decides."""
        if self.chance(0.15):
            return self.constant(np.full(self.choice(shapes), self.chance()))
        return self.pick(lambda t: t.dtype == "bool" and t.shape in shapes)

    def branches(self):
        cond, inner = self.condition((), (1,)), [Block(self.rng, self.opset, self) for _ in range(2)]
        for block in inner:
            block.fill(0, 4)
        types = [t for t in (inner[0].types[n] for n in inner[0].types) if t.known]
        types = [self.choice(types) for _ in range(self.rng.integers(1, 4))] if types else [Type("float32", (3,))]
        outputs, other = [[b.fresh(b.of(t)) for t in types] for b in inner], list(types)
        for k, t in enumerate(types):
            if t.dtype in NUMBERS and self.chance(0.2):  # the second branch gives another shape
                shape = self.choice(SHAPES)
                outputs[1][k] = inner[1].fresh(inner[1].of(Type(t.dtype, shape)))
                other[k] = t if shape == t.shape else Type(t.dtype, None)
        graphs = [b.body(name, [], outs) for b, name, outs in zip(inner, ("then", "else"), outputs, strict=True)]
        self.node_of("If", [cond], other, then_branch=graphs[0], else_branch=graphs[1])

    def states(self, most):
        return [self.pick(lambda t: t.known) for _ in range(self.rng.integers(0, most))]

    def kept(self, block, most):
        """Results of a body that are stacked."""
        return [block.fresh(block.pick(lambda t: t.known)) for _ in range(block.rng.integers(0, most))]

    def loop(self):
        states, inner = self.states(4), Block(self.rng, self.opset, self)
        bounded = self.chance(0.75)
        trips = self.trips() if bounded else ""
        cond = self.condition(()) if self.chance() else ""
        i, going = inner.add(Type("int64", ())), inner.add(Type("bool", ()))
        carried = [inner.add(self.types[s]) for s in states]
        inner.fill()
        grown = [k for k in range(len(states)) if self.types[states[k]].shape == (3,) and self.chance(0.3)]
        after = [inner.fresh(inner.of(self.types[s])) for s in states]
        for k in grown:  # the state gets longer with each turn
            inner.types[carried[k]] = Type(self.types[states[k]].dtype, (None,))
        if grown:
            return self.growing(states)
        more = inner.choice([going, *[n for n, t in inner.types.items() if t == Type("bool", ())]])
        if not bounded:
            last = inner.constant(np.int64(self.rng.integers(0, 4)))
            more = inner.node("Less", [i, last], Type("bool", ()))
        values = self.kept(inner, 4)
        if not states and not values:
            values = [inner.fresh(i)]
        outputs = [inner.fresh(more), *after, *values]
        stacked = [Type(inner.types[v].dtype, (None, *inner.types[v].shape)) for v in values]
        self.node_of("Loop", [trips, cond, *states], [*(self.types[s] for s in states), *stacked],
                     body=inner.body("body", [i, going, *carried], outputs, 2))
        return None

    def growing(self, states):
        """A loop whose state gets longer with each turn, by a value from outside."""
        start = next(s for s in states if self.types[s].shape == (3,))
        inner, dtype = Block(self.rng, self.opset, self), self.types[start].dtype
        i, going, state = (inner.add(t) for t in (Type("int64", ()), Type("bool", ()), Type(dtype, (None,))))
        longer = inner.node("Concat", [state, inner.of(Type(dtype, (3,)))], Type(dtype, (None,)), axis=0)
        self.node_of("Loop", [self.trips(), "", start], [Type(dtype, (None,))],
                     body=inner.body("growing", [i, going, state], [inner.fresh(going), longer], 2))

    def trips(self):
        """The number of trips: 0 to 3, as a constant or an input of the model, in places of one dimension."""
        n = np.int64(self.choice([0, 1, 2, 2, 3, 3]))
        shaped = self.constant(n if self.chance(0.8) else [n])
        top = self
        while top.outer is not None:
            top = top.outer
        return self.choice([shaped, *top.trips_given])

    def scan(self):
        inner, states = Block(self.rng, self.opset, self), self.states(3)
        length = int(self.rng.integers(1, 4))
        scanned, axes = [], []
        for _ in range(self.rng.integers(1, 3)):
            accepts = [n for n, t in self.types.items() if t.known and length in t.shape]
            x = self.choice(accepts) if accepts and self.chance(0.8) else self.constant(
                self.random(Type(self.choice(list(DTYPES)), (length, 3))))
            shape = self.types[x].shape
            axis = self.choice([k for k, d in enumerate(shape) if d == length])
            scanned.append(x)
            axes.append(axis - len(shape) * self.chance(0.3))
        carried = [inner.add(self.types[s]) for s in states]
        parts = [inner.add(Type(self.types[x].dtype, tuple(np.delete(self.types[x].shape, a).tolist())))
                 for x, a in zip(scanned, axes, strict=True)]
        inner.fill()
        values = self.kept(inner, 4)
        if not states and not values:
            values = [inner.fresh(parts[0])]
        outputs = [*(inner.fresh(inner.of(self.types[s])) for s in states), *values]
        places, types = [], []
        for v in values:
            shape = inner.types[v].shape
            k = int(self.rng.integers(len(shape) + 1))
            places.append(k - (len(shape) + 1) * self.chance(0.3))
            types.append(Type(inner.types[v].dtype, (*shape[:k], length, *shape[k:])))
        attrs = {"scan_input_axes": axes, "scan_output_axes": places,
                 "scan_input_directions": [int(self.chance(0.3)) for _ in scanned],
                 "scan_output_directions": [int(self.chance(0.3)) for _ in values]}
        self.node_of("Scan", [*states, *scanned], [*(self.types[s] for s in states), *types],
                     body=inner.body("body", [*carried, *parts], outputs, 0, True), num_scan_inputs=len(scanned),
                     **{k: v for k, v in attrs.items() if v and (any(v) or self.chance())})


def random_control(seed):
    """The model of a seed, feeds, and what ONNX Runtime says its outputs are."""
    rng = np.random.default_rng(seed)
    top = Block(rng, int(rng.choice(OPSETS)))
    feeds, infos, opened = {}, [], rng.random() < 0.4
    for type in [Type(top.choice(list(DTYPES)), top.choice(SHAPES)) for _ in range(rng.integers(2, 6))]:
        name = top.add(type, "x")
        feeds[name] = top.random(type)
        infos.append(helper.make_tensor_value_info(name, DTYPES[type.dtype],
                                                   [None if opened and top.chance() else d for d in type.shape]))
    top.trips_given = []
    for shape in [(), (1,)][:rng.integers(3)]:
        name = top.add(Type("int64", shape), "n")
        top.trips_given.append(name)
        feeds[name] = np.full(shape, rng.integers(0, 4))
        infos.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
    top.fill(0, 4)
    for _ in range(rng.integers(1, 3)):
        top.control()
        top.fill(0, 3)
    flow = ("If", "Loop", "Scan")
    outputs = [n for node in top.nodes for n in node.output if node.op_type in flow or top.chance(0.2)]
    graph = helper.make_graph(
        top.nodes, "control", infos,
        [helper.make_tensor_value_info(n, DTYPES[top.types[n].dtype], None) for n in outputs], top.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", top.opset)], ir_version=8)
    return RandomModel(model, feeds, dict(zip(outputs, results(model, feeds), strict=True)))


def control_faults(made, *, compiled, isa=None, threads=None):
    """What is wrong with a random model: its reference, its kernels, its saved form, or nodes of ONNX's reference."""
    graph = gq.load_onnx(made.model)
    found = [f"by ONNX's reference: {n.attrs['op_type']}: {n.meta['why']}" for n in graph.nodes_of({"onnx_node"})]
    found += differences("reference", graph, gq.reference(graph, made.feeds), made.wanted)
    if compiled:
        model = gq.compile(graph, isa=isa, threads=threads)
        found += differences("compiled", graph, model(made.feeds), made.wanted)
        assert model.explain(full=True)
        again = gq.load_onnx(to_model(graph))
        found += differences("saved and loaded", again, gq.reference(again, made.feeds), made.wanted)
    return found


def differences(what, graph, result, wanted):
    """Lines on the outputs that differ."""
    got = named_outputs(graph.output_names, result)
    return [f"{what}, output {k}: {got[k].dtype}{list(got[k].shape)} {got[k].tolist()} instead of "
            f"{want.dtype}{list(want.shape)} {want.tolist()}" for k, want in wanted.items()
            if got[k].dtype != want.dtype or not (np.array_equal(got[k], want) or _empty(got[k], want))]


def _empty(got, want):
    """Whether both are results of no turn, and differ only in sizes or ranks that one inference lacks, and makes 0."""
    return got.shape[:1] == want.shape[:1] == (0,) and (want.ndim == 1 or got.ndim == want.ndim and all(
        a == b or 0 in (a, b) for a, b in zip(want.shape, got.shape, strict=True)))
