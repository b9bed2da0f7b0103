"""Two claims on long training, at the papers' privacy settings and in a small network."""
