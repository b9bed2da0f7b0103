"""The parts that privacy depends on: bounds, masks, noise, randomness, and the charge."""
