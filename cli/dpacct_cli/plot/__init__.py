"""`dpacct plot ...`: pictures, to files and to the terminal."""
