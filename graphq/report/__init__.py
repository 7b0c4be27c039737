"""Reports on compiled models: fusions, reasons against fusions, the share of integer work, times, instructions."""
