"""Test whether passes keep a graph's numbers: `compile(..., verify="numeric")` and `testing.check_pass`.

`Validator` runs after every pass. On adversarial inputs (`inputs`), it compares the op-by-op references before and
after the pass: first for the part of the graph that the pass changed (`subgraphs`), then for the whole graph. The part
comes first because inputs of the whole graph do not bring NaN or ties to every node. A graph whose numbers differ is
shrunk (`reduce`) and printed as a test (`printed`).
"""
