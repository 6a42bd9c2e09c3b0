"""MaxK: dense [N, D] -> CBSR [N, k], and its adjoint, the scatter back to dense."""
