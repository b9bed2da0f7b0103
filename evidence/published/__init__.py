"""Evidence: published settings and their proven epsilons."""
