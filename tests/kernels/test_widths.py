"""What multiplies no integers is the same code at all ISA levels whose vectors are equally wide."""
from contextlib import ExitStack

import pytest
from levels import OF_WIDTH, WIDTHS

import graphq as gq
from graphq.kernels import levels
from graphq.kernels.jit import modules
from graphq.kernels.target import isa
from graphq.testing import random_inputs

LISTS = "strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1]"
GRAPHS = {
    "eltwise": "x: u8[3,21]) { %0 = dequantize(x, scales=[0.1])\n %1 = tanh(%0)\n"
               " %y = quantize(%1, dtype=s8, scales=[0.01]) return %y }",
    "row": "x: f32[3,21]) { %y = softmax(x, axis=-1) return %y }",
    "pool": "x: f32[1,5,6,21]) { %y = avg_pool(x, kernel=[3, 3], exclude_pad=true, LISTS) return %y }",
    "interpolate": "x: f32[1,5,6,21]) { %y = interpolate(x, mode=\"linear\", sizes=[7, 9]) return %y }",
    "depthwise": "x: f32[1,5,6,21], w: f32[3,3,1,21]) {"
                 " %y = convolution(x, w, groups=21, dilations=[1, 1], LISTS) return %y }",
    "convolution": "x: f32[1,5,6,21], w: f32[3,3,21,8]) {"
                   " %y = convolution(x, w, dilations=[1, 1], LISTS) return %y }",
    "concat": "x: u8[3,21], z: u8[3,5]) { %0 = dequantize(x, scales=[0.1])\n %1 = dequantize(z, scales=[0.2])\n"
              " %2 = concat(%0, %1, axis=1)\n %y = quantize(%2, dtype=u8, scales=[0.1]) return %y }",
    "transpose": "x: u8[2,40,35]) { %y = static_transpose(x, order=[2, 0, 1]) return %y }",
    "dynamic quantize": "x: f32[7], s: f32[], z: s32[]) { %y = dynamic_quantize(x, s, z, dtype=u8) return %y }",
}

@pytest.mark.parametrize("base", WIDTHS)
@pytest.mark.parametrize("name", GRAPHS)
def test_one_code_for_all_levels_of_a_width(name, base):
    g = gq.parse("graph net(" + GRAPHS[name].replace("LISTS", LISTS))
    first, *others = OF_WIDTH[base]
    assert first == base and (others or first == "scalar")
    inputs = random_inputs(g)
    # the emulated form of the first level is a level of its own
    made = {first} if first in [x.name for x in isa.available()] else {first, *others[:1]}
    for level in (first, *others):
        with ExitStack() as stack:
            if level not in [x.name for x in isa.available()]:
                stack.enter_context(isa.emulate(level))
            levels.resolve(level)  # which tries a kernel of integers
            before = modules.statistics()
            gq.compile(g, isa=level, threads=1, strict=True)(inputs)
            assert level in made or modules.statistics() == before, level
