"""Basics for all packages: open sizes, the limit of memory, locks between threads and forks, names of files, bars."""
