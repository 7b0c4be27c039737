"""Products of heads that share keys and values: text in and text out, with the negatives."""
import pytest

from graphq.passes import MoveRepeat, ShareHeads
from graphq.testing import check_pass

INPUTS = "q: f32[2,6,5,4], k: f32[2,3,7,4]"
CONSTANT = "%c = constant(value=f32[]{0.5})"
REPEAT = f"""{CONSTANT}
            %0 = static_reshape(k, shape=[2,3,1,7,4])
            %1 = expand(%0, shape=[2,3,2,7,4])
            %2 = static_reshape(%1, shape=[2,6,7,4])"""


def repeated(x, n, rows, columns, start=3):
    a, b, c = (f"%{start + k}" for k in range(3))
    return f"""{a} = static_reshape({x}, shape=[2,{n},1,{rows},{columns}])
               {b} = expand({a}, shape=[2,{n},2,{rows},{columns}])
               {c} = static_reshape({b}, shape=[2,{2 * n},{rows},{columns}])
               return {c}"""


@pytest.mark.parametrize("operation, rows, columns", [
    ("static_transpose({}, order=[0,1,-1,2])", 4, 7), ("type_cast({}, dtype=f16)", 7, 4), ("multiply({}, %c)", 7, 4)])
def test_each_matrix_is_computed_once(operation, rows, columns):
    check_pass(MoveRepeat(), f"{REPEAT}\n %3 = {operation.format('%2')}\n return %3", f"""
        {CONSTANT}
        %0 = static_reshape(k, shape=[2,3,1,7,4])
        %1 = static_reshape(%0, shape=[2,3,7,4])
        %2 = {operation.format('%1')}
        {repeated('%2', 3, rows, columns)}""", inputs=INPUTS, count=1)


@pytest.mark.parametrize("attrs, keys", [("transpose_b=true", "k: f32[2,3,7,4]"), ("", "k: f32[2,3,4,9]")])
def test_rows_of_heads_become_those_of_one_matrix(attrs, keys):
    r, c = (7, 4) if attrs else (4, 9)
    text = REPEAT.replace("7,4", f"{r},{c}")
    more = f", {attrs}" if attrs else ""
    check_pass(ShareHeads(), f"{text}\n %3 = matmul(q, %2{more})\n return %3", f"""
        {CONSTANT}
        %0 = static_reshape(k, shape=[2,3,1,{r},{c}])
        %1 = static_reshape(q, shape=[2,3,10,4])
        %2 = static_reshape(%0, shape=[2,3,{r},{c}])
        %3 = matmul(%1, %2{more})
        %4 = static_reshape(%3, shape=[2,6,5,{7 if attrs else 9}])
        return %4""", inputs=f"q: f32[2,6,5,4], {keys}", count=1)


@pytest.mark.parametrize("name, text", [
    (MoveRepeat, f"{REPEAT}\n %3 = static_transpose(%2, order=[1,0,2,3])\n return %3"),
    (MoveRepeat, f"{REPEAT}\n %3 = multiply(%2, f)\n return %3"),
    (MoveRepeat, f"{REPEAT}\n %3 = multiply(%2, %c)\n return %2, %3"),
    (MoveRepeat, f"{REPEAT}\n %h = constant(value=f32[6,1,1]{{1,2,3,4,5,6}})\n %3 = multiply(%2, %h)\n return %3"),
    (MoveRepeat, f"{REPEAT}\n %h = constant(value=f32[2,1,1,1]{{1,2}})\n %3 = multiply(%2, %h)\n return %3"),
    (MoveRepeat, REPEAT.replace("[2,3,1,7,4]", "[6,1,7,4]").replace("[2,3,2,7,4]", "[6,2,7,4]").replace(
        "[2,6,7,4]", "[12,28]") + "\n %3 = multiply(%2, %c)\n return %3"),
    (MoveRepeat, f"""{CONSTANT}\n %0 = static_reshape(k, shape=[2,3,1,7,4])\n %1 = expand(%0, shape=[2,3,2,7,4])
        %2 = static_reshape(%1, shape=[2,3,14,4])\n %3 = multiply(%2, %c)\n return %3"""),
    (ShareHeads, f"{REPEAT}\n %3 = matmul(q1, %2, transpose_b=true)\n return %3"),
    (MoveRepeat, """%0 = expand(one, shape=[2,7,4])\n %1 = static_reshape(%0, shape=[14,4])
        %2 = type_cast(%1, dtype=f16)\n return %2"""),
    (MoveRepeat, """%0 = expand(k, shape=[2,3,7,4])\n %1 = static_reshape(%0, shape=[2,3,7,4])
        %2 = type_cast(%1, dtype=f16)\n return %2"""),
    (ShareHeads, f"{REPEAT}\n %3 = matmul(qt, %2, transpose_a=true, transpose_b=true)\n return %3"),
    (ShareHeads, f"{REPEAT}\n %3 = matmul(q, %2, transpose_b=true)\n return %2, %3")])
def test_what_stays(name, text):
    check_pass(name(), text, inputs=f"{INPUTS}, f: f32[4], q1: f32[1,6,5,4], qt: f32[2,6,4,5], one: f32[1,7,4]")


@pytest.mark.parametrize("rewrite, after", [(MoveRepeat, "multiply(%2, %c)"), (ShareHeads, "matmul(q, %2)")])
def test_unknown_shapes_stay(rewrite, after):
    if rewrite is ShareHeads:
        check_pass(rewrite(), f"{REPEAT}\n %3 = matmul(q, %2, transpose_b=true)\n return %3",
                   inputs="q: f32[2,6,?,4], k: f32[2,3,7,4]", sizes={"q": (2, 6, 5, 4)})
    check_pass(rewrite(), f"""{CONSTANT}
        %0 = static_reshape(k, shape=[2,3,1,4,-1])
        %1 = expand(%0, shape=[2,3,2,4,1])\n %2 = static_reshape(%1, shape=[2,6,4,-1])\n %3 = {after}\n return %3""",
               inputs="q: f32[2,6,5,4], k: f32[2,3,4,?]", sizes={"k": (2, 3, 4, 7)})
