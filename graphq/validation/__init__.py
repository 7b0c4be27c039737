"""Proof by trial that passes keep a graph's numbers: `compile(..., verify="numeric")` and `testing.check_pass`.

`Validator` is called after every pass. It compares the op-by-op reference of the graph before the pass with that after
it, on adversarial inputs (`inputs`); then again for the part of the graph that the pass changed by itself (`changes`),
as inputs of the whole graph do not bring NaN or ties to every node. What differs is shrunk (`reduce`) and
printed as a test (`printed`).
"""
