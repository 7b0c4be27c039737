"""The expression compiler: turns lane-wise expressions into NumPy results and into vector code."""
