"""Rounding ties: outputs near a tie are computed a second time, in the order of the graph as written.

A graph of quantized operators says: dequantize the operands, multiply and add them in f32, quantize the result. Kernels
add the integers instead. Integer sums are exact, faster, and the same in any order. The f32 sum as written has rounding
errors, some 1e-6 to 1e-4 of a step of the quantize. A tie is the middle between two integers. Both sums round to the
same integer, unless a tie lies between them:

        k                    tie                   k + 1
        |---------------------|---------------------|
                             x w                            x  the exact sum, w  the sum as written
                          [---+---]                         the band: an x within it is near the tie

The kernel knows only x, but the distance of w from x is bounded. The bound follows from the weights, from the order of
the sum, and from the operations between the sum and the quantize. An output is *near* a tie if x is within this bound
of the tie; one output in 10**3 to 10**5 is. graphq computes such outputs a second time: it adds their
products in f32, in the order as written. The output is then *settled*, and so is its quantize. Without the second
computation, one of 10**5 to 10**6 outputs would be another integer, and the rest of the network would carry the
difference on. With a few of these differences in MobileNetV2, the cosine of the last outputs is 0.98.

A kernel finds the outputs near a tie in three stages. First, its tiles quantize by a fast form (`lanes.fast_form`)
that also gives the least distance to a tie in each group of outputs. One comparison per group decides whether the
kernel lists the group in an entry. Second, the expression of these outputs is evaluated operation by operation, as the
graph states it, from the exact sum. The result shows which outputs are in the band. Third, their products are added as
written.

"As written" means in the orders of `kernels/numbers/sum_orders.py`, the orders of ONNX Runtime. `gq.reference` adds in
f64, so it does not decide ties. A *body* is the graph of a partition. Its *anchor* is the matmul or convolution whose
sum is exact, and its *epilogue* has the operations that follow. Lowering turns the epilogue into one expression
(`lanes.expression`) per output.

    attach          the entry point: adds the second computation (second look) to a lowered body
    error_bounds    bounds the difference after each operation of an epilogue: a new operation needs a rule here
    sum_errors      bounds the difference of the sum itself
    tie_kernels     the second computation; kernels call it without importing it (`lanes.outputs`)
    ordered_sums    the parts of tie_kernels: the f32 factors of a sum, and their sum in the order as written
"""
