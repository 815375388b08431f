"""What low rank needs: the weights of a network, what they see, factors, budgets."""
