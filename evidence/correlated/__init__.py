"""Correlated noise beside sampling, on FEMNIST by writer."""
