"""Evidence: Laplacian smoothing on MNIST."""
