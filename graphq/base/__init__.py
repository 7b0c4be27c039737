"""Basics for all packages: open sizes, memory limits, locks that survive forks, names of files, and progress bars."""
