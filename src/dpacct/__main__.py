"""`python -m dpacct`, which is the same as `dpacct`."""

from dpacct_cli.__main__ import main

if __name__ == "__main__":
    main()
