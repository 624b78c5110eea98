"""These are the parts of tools/compare.py. rows and report need only the standard library; the others need PyTorch."""
