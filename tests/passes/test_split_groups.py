"""SplitGroups: which axes become two, and what stays as it is."""
import pytest

import graphq as gq
from graphq.passes import SplitGroups, run_passes
from graphq.testing import check_pass

ONE = "u: u8[6,2,12,1], s: f32[3,2,4,1], z: u8[3,2,4,1]"


def test_axes_of_several_groups_of_several_elements_become_two():
    check_pass(SplitGroups(), count=1, before=f"""graph({ONE}) {{
        %y = dynamic_dequantize(u, s, z, qtype="per_group", group_shape=[2, 1, 3, 1])
        return %y }}""", after=f"""
      graph({ONE}) {{
        %0 = static_reshape(s, shape=[3, 1, 2, 4, 1, 1])
        %1 = static_reshape(z, shape=[3, 1, 2, 4, 1, 1])
        %2 = static_reshape(u, shape=[3, 2, 2, 4, 3, 1])
        %3 = dynamic_dequantize(%2, %0, %1, qtype="per_group", group_shape=[1, 2, 1, 1, 3, 1])
        %y = static_reshape(%3, shape=[6, 2, 12, 1])
        return %y
      }}""")


def test_without_zero_points_and_to_another_dtype():
    check_pass(SplitGroups(), count=1, before="""graph(x: s8[4,6], s: f16[1,3]) {
        %y = dynamic_dequantize(x, s, qtype="per_group", group_shape=[4, 2], dtype=bf16)
        return %y }""", after="""
      graph(x: s8[4,6], s: f16[1,3]) {
        %0 = static_reshape(s, shape=[1, 3, 1])
        %1 = static_reshape(x, shape=[4, 3, 2])
        %2 = dynamic_dequantize(%1, %0, qtype="per_group", group_shape=[4, 1, 2], dtype=bf16)
        %y = static_reshape(%2, shape=[4, 6])
        return %y
      }""")


@pytest.mark.parametrize("inputs, x, group_shape, reason", [
    ("x: u8[4,6], s: f32[4,1]", "x", [1, 6], "scales broadcast already"),
    ("x: u8[4,6], s: f32[4,6]", "x", [1, 1], "scales broadcast already"),
    ("x: u8[4,?], s: f32[4,3]", "x", [1, 2], "shapes are known only at run time"),
    ("x: u8[4,6], s: f32[1,2]", "constant(value=u8[1,4]{1, 2, 3, 4})", [1, 2],
     "constants are packed without this rewrite")])
def test_what_stays(inputs, x, group_shape, reason):
    g = gq.parse(f"""graph({inputs}) {{
        %0 = {"relu(s)" if x == "x" else x}
        %y = dynamic_dequantize({"x" if x == "x" else "%0"}, s, qtype="per_group", group_shape={group_shape})
        return %y, %0 }}""")
    before = gq.to_text(g)
    (refusal,) = run_passes(g, [SplitGroups()])
    assert reason in str(refusal) and gq.to_text(g) == before
