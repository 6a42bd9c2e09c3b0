"""LayerNorm and MaxK in one pass: dense [N, D] -> CBSR [N, k] of the normalised rows."""
