"""`dpacct`, and `python -m dpacct_cli`, which is the same.

Nothing is imported up here: what goes wrong while numpy is imported, Ctrl-C above all, must find
somebody who catches it.
"""


def main() -> None:
    """Run the command line and exit: 0 done, 2 bad input, 130 interrupted, 141 unread, else 1."""
    try:
        from dpacct_cli import terminal

        terminal.prepare()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(terminal.run(_start))


def _start() -> None:
    import warnings
    from importlib import import_module

    with warnings.catch_warnings():
        # Older releases of Typer import what newer ones of click are about to drop.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="typer")
        import_module("typer")

    from dpacct_cli.app import app

    app()


if __name__ == "__main__":
    main()
