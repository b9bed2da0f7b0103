"""Evidence: a folder a page, each with prose, runs, pictures and the code that plays them."""
