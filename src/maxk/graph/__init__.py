"""From edges to a :class:`~maxk.graph.graph.Graph`: CSR, its transpose, scales and schedules."""
