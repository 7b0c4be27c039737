"""Tools for all packages: sizes known only at run time, memory limits, locks that survive forks, files, progress."""
