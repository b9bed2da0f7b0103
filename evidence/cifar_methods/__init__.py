"""Evidence: every method on CIFAR-10 at one epsilon."""
