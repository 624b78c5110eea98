"""The parts of tools/compare.py. rows, report and capi need only the standard library; the others need PyTorch."""
