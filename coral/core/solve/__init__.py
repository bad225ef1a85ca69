"""Solving in a process of its own: no abort, hang or leak of a solver takes the caller along."""

from coral.core.solve.choice import supervised_solver
from coral.core.solve.supervised import SupervisedSolver

__all__ = ["SupervisedSolver", "supervised_solver"]
