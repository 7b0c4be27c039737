"""Pads of zeros become the padding of a convolution; text in and text out, with the negatives."""
import numpy as np
import pytest

import graphq as gq
from graphq.passes.simplify_moves import FoldPadIntoConvolution
from graphq.testing import check_pass

CONV = "convolution({}, w{}, strides=[1,2], {}, dilations=[1,1]{})"
PAD = "pad({}, pads_begin=[0,1,0,0], pads_end=[0,2,3,0]{})"
OWN, SUM = "pads_begin=[0,1], pads_end=[1,0]", "pads_begin=[1,1], pads_end=[3,3]"
INPUTS = "x: {}[1,5,6,3], w: f32[3,3,3,2], b: f32[2]"


def check(before, after=None, dtype="f32"):
    check_pass(FoldPadIntoConvolution(), before, after, inputs=INPUTS.format(dtype))


@pytest.mark.parametrize("bias", ["", ", b"])
def test_of_floats(bias):
    check(f"%0 = {PAD.format('x', '')}\n %1 = {CONV.format('%0', bias, OWN, '')}\n return %1",
          f"%0 = {CONV.format('x', bias, SUM, '')}\n return %0")


def test_through_a_dequantize():
    dequantize = "dequantize({}, scales=[0.1], zps=[7])"
    rest = f"%1 = {dequantize.format('%0')}\n %2 = {CONV.format('%1', '', OWN, '')}\n return %2"
    check(f"%0 = {PAD.format('x', ', value=7')}\n {rest}",
          f"%0 = {dequantize.format('x')}\n %1 = {CONV.format('%0', '', SUM, '')}\n return %1", "u8")
    check(f"%0 = {PAD.format('x', '')}\n {rest}", dtype="u8")


@pytest.mark.parametrize("axis, size, folds", [(0, 1, True), (1, 8, False), (2, 9, False), (-2, 9, False),
                                               (3, 3, True), (-1, 3, True)])
def test_scales_of_what_is_padded_are_more_than_without_the_pad(axis, size, folds):
    channels = f'dequantize({{}}, qtype="per_channel", axis={axis}, scales={[0.5] * size}, zps={[7] * size})'
    before = f"%0 = {PAD.format('x', ', value=7')}\n %1 = {channels.format('%0')}"
    after = f"%0 = {channels.format('x')}\n %1 = {CONV.format('%0', '', SUM, '')}\n return %1"
    check(f"{before}\n %2 = {CONV.format('%1', '', OWN, '')}\n return %2", after if folds else None, "u8")


def test_channels_first_and_valid():
    inputs = "x: f32[1,3,5,6], w: f32[2,3,3,3]"
    conv = 'convolution({}, w, strides=[1,1], {}, dilations=[1,1], {}data_format="NCX", weights_format="OIX")'
    own, sums = "pads_begin=[9,9], pads_end=[9,9]", "pads_begin=[1,0], pads_end=[2,3]"
    before = f"""graph({inputs}) {{\n %0 = pad(x, pads_begin=[0,0,1,0], pads_end=[0,0,2,3])
        %1 = {conv.format('%0', own, 'auto_pad="valid", ')}\n return %1\n}}"""
    after = f"graph({inputs}) {{\n %0 = {conv.format('x', sums, '')}\n return %0\n}}"
    check_pass(FoldPadIntoConvolution(), before=before, after=after)


@pytest.mark.parametrize("more", [", value=1", ', mode="edge"', ', mode="reflect"'])
def test_other_pads_stay(more):
    check(f"%0 = {PAD.format('x', more)}\n %1 = {CONV.format('%0', '', OWN, '')}\n return %1")


@pytest.mark.parametrize("begin", ["[1,0,0,0]", "[0,1,-1,0]"])
def test_batches_and_elements_that_are_cut_off_stay(begin):
    check(f"%0 = pad(x, pads_begin={begin}, pads_end=[0,0,0,0])\n %1 = {CONV.format('%0', '', OWN, '')}\n return %1")


def test_a_convolution_that_pads_by_itself_and_a_second_user_stay():
    same = CONV.format("%0", "", OWN, ', auto_pad="same_upper"')
    check(f"%0 = {PAD.format('x', '')}\n %1 = {same}\n return %1")
    check(f"%0 = {PAD.format('x', '')}\n %1 = {CONV.format('%0', '', OWN, '')}\n return %1, %0")


def test_a_pad_between_quantized_convolutions_goes_away():
    g = gq.parse(f"""graph(x: u8[1,5,6,3], w: s8[3,3,3,2]) {{\n %0 = dequantize(x, scales=[0.1], zps=[7])
        %1 = {PAD.format('%0', '')}\n %2 = quantize(%1, dtype=u8, scales=[0.1], zps=[7])
        %3 = dequantize(%2, scales=[0.1], zps=[7])\n %4 = dequantize(w, scales=[0.02])
        %5 = {CONV.format('%3', '', OWN, '').replace(' w,', ' %4,')}\n %6 = quantize(%5, dtype=u8, scales=[0.3])
        return %6\n}}""")
    model = gq.compile(g)
    assert [n.op.name for n in model.graph.nodes] == ["partition"] and model.coverage().share == 1
    feeds = gq.testing.random_inputs(g)
    np.testing.assert_array_equal(model(feeds), model.formula(feeds))
    assert np.abs(model(feeds).astype(int) - gq.reference(g, feeds)).max() <= 1
