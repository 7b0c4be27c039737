"""Tests whether passes keep a graph's numbers: `compile(..., verify="numeric")` and `testing.check_pass`.

`Validator` is called after every pass. It compares the op-by-op references of the graph before and after the pass, on
adversarial inputs (`inputs`). Then it compares just the part of the graph that the pass changed (`changes`), since
inputs of the whole graph do not bring NaN or ties to every node. A graph that differs is shrunk (`reduce`) and printed
as a test (`printed`).
"""
