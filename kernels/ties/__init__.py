"""How outputs near a rounding tie are computed as the graph has them written.

A graph of quantised operators says: dequantize the operands, multiply and add them in f32, quantize the result. Kernels
add the integers instead: that is exact, faster, and the same in any order. The f32 sum as written has rounding errors,
some 1e-6 to 1e-5 of a step of the quantize. So both round to the same integer, unless a tie, the middle between two
integers, lies between them:

        k                    tie                   k + 1
        |---------------------|---------------------|
                             e w                            e  the exact sum, w  the sum as written
                          [---+---]                         near: what is this close to the tie

Of e alone nobody can tell, but how far w may lie from it is bounded: by the weights, by the order of the sum, and by
what operations between the sum and the quantize do to a difference. An output whose e lies within this bound of a tie,
one in 10**3 to 10**5, is computed a second time: its products are added in f32, in the order as written. Without that
one of 10**5 to 10**6 outputs would be another integer, and a network carries such a step on to the end: with a few of
them in MobileNetV2 the cosine of the last outputs is 0.98.

The door is `attach`, which reads a lowered body. `error_bounds` and `sum_errors` bound the difference.
`fast_requantize` finds quantizes that take fewer operations, and are right but for outputs near a tie, which a bit of
them shows.
`tie_kernels` is the second look that other rooms' kernels call without knowing of it (`lanes.second_look`).
"""
