"""Run the command line with ``python -m streamtron``."""

from streamtron.cli.main import main

if __name__ == "__main__":
    main()
