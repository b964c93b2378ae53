"""`minisched`, a small block scheduler on which the explorer is measured against other checkers."""

from benchmarks.minisched.system import GEOMETRIES, Geometry, MiniSched

__all__ = ["GEOMETRIES", "Geometry", "MiniSched"]
