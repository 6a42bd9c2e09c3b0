"""SSpMM: the transposed graph times a dense gradient, sampled at the CBSR's columns."""
