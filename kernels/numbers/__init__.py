"""What kernels compute where an order of sums matters, stated in NumPy; references of operations use it, too."""
