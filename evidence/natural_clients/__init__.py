"""Evidence: FEMNIST and Shakespeare."""
