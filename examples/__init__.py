"""Complete scripts; README.md lists them, and the tests run each."""
