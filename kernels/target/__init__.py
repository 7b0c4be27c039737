"""Everything that knows an instruction, a feature or a mnemonic of a CPU."""
