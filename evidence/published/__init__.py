"""Evidence: published settings and what is proven of them."""
