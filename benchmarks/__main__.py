"""Print every comparison."""

from benchmarks import (
    audits,
    calibration,
    examples,
    federated,
    ledger,
    poisson_range,
    risk,
    startup,
)

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
    print()
    poisson_range.main()
    print()
    audits.main()
