"""Who was there? Attacks on models with and without privacy."""
