"""Outputs near a rounding tie, which are computed twice: from the exact integer sum, and from the f32 sum as written.

`drift` and `sum_errors` bound how far the two may lie apart; `quick` marks the outputs where that decides the rounding;
`settle` computes their literal sums (`literal` has the orders) in kernels.
"""
