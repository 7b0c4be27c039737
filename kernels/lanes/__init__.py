"""The expression compiler: expressions of output elements, evaluated in NumPy and compiled to vector code."""
