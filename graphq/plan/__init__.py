"""Plans: lists of kernel calls that share one block of memory, a builder of plans, and a runtime that runs them."""
