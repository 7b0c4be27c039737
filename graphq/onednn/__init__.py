"""oneDNN's side of graphs: its JSON files, kinds and partitions, and benchdnn's knobs and runner."""
