"""`python -m dpacct_cli` is the same as `dpacct`."""

from dpacct_cli.app import main

if __name__ == "__main__":
    main()
