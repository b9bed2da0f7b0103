"""Lower bounds from observed attacks, to compare with the proven upper bounds of accounting."""
