"""Print every comparison."""

from benchmarks import calibration, startup

if __name__ == "__main__":
    calibration.main()
    print()
    startup.main()
