"""`dpacct`, and `python -m dpacct_cli`, which is the same.

Nothing is imported up here, so that whatever goes wrong while numpy is imported is caught, Ctrl-C
above all.
"""


def main() -> None:
    """Run the command line and exit: 0 done, 2 bad input, 130 interrupted, 141 unread, else 1."""
    import gc
    import os

    # Threads of torch that wait for work spin, on the processor that another run computes on.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # What is imported stays. To look for garbage among it takes an eighth of a cold start.
    gc.disable()
    try:
        from dpacct_cli import terminal

        terminal.prepare()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    code = terminal.run(_start)
    gc.freeze()
    raise SystemExit(code)


def _start() -> None:
    from dpacct_cli.app import app

    app()


if __name__ == "__main__":
    main()
