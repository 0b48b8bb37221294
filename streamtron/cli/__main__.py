"""``python -m streamtron.cli``: what the installed command does."""

from streamtron.cli.main import main

if __name__ == "__main__":
    main()
