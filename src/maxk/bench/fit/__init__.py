"""How well one hidden layer of MaxK fits a function."""
