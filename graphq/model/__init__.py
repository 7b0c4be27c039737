"""Compiled models: they make plans or read them from files, run them at the sizes of each call, and are saved."""
