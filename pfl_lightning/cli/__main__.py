"""`python -m pfl_lightning.cli` is `pfl-fit`."""

from pfl_lightning.cli.fit import main

if __name__ == "__main__":
    main()
