"""Print every comparison."""

from benchmarks import calibration, examples, federated, ledger, risk, startup

if __name__ == "__main__":
    calibration.main()
    print()
    risk.main()
    print()
    startup.main()
    print()
    ledger.main()
    print()
    federated.main()
    print()
    examples.main()
